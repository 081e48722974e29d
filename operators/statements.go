package operators

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// statements looks at the statements of an org's documents, without running them, in an engine of the org. It remembers
// what it found: a plan and the deploy after it ask the same of all jobs, and so did the last deploy of most.
type statements struct {
	engines *engine.Engines
	org     string
	found   *remembered
}

// Those who look at statements without a server's org, such as a client's `validate`, are one org.
const noOrg = "local"

func newStatements(o Options) *statements { return &statements{o.Engines, noOrg, &remembered{}} }

// of returns statements for an org, with the same memory: what was found says nothing of who asked.
func (s *statements) of(org string) *statements { return &statements{s.engines, org, s.found} }

const (
	// parseWithin is how long a look at statements may take before it is given up, and parseTime how much of the
	// processor's time. Statements take milliseconds.
	parseWithin = 20 * time.Second
	parseTime   = 2 * time.Second
	parseMemory = 256 << 20
)

// unseenError says that a statement found no engine to look at it: that says nothing of the statement.
type unseenError struct{ error }

func (e unseenError) Unwrap() error { return e.error }

// unseen returns the error of a look for which there was no engine; nil for any other.
func unseen(err error) error {
	if none, ok := errors.AsType[unseenError](err); ok {
		return none.error
	}
	return nil
}

// ask asks an engine that parses. The error is an unseenError where there is none.
func (s *statements) ask(q engine.Question, answer any) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), parseWithin, // those who ask have no context
		fault.New(fault.TooLarge, "the statement could not be parsed within %s", parseWithin))
	defer cancel()
	purpose := engine.Purpose{Kind: engine.Parse, Org: s.org, Each: parseTime,
		Limits: relations.Limits{Memory: parseMemory, Threads: 1}}
	taken, err := s.engines.Take(ctx, purpose)
	if err != nil {
		return unseenError{err}
	}
	defer taken.Release()
	return taken.Do(ctx, q, answer)
}

// Statements looks at the SQL in the configs of operators in folders of their own, as that of operator sql is looked
// at: it is one SELECT that users may run, and reads nothing but inputs.
type Statements struct{ own *statements }

// NewStatements returns Statements of no org.
func NewStatements(o Options) Statements { return Statements{newStatements(o)} }

// For returns Statements for an org.
func (s Statements) For(org dag.Org) Statements { return Statements{s.own.of(org.ID)} }

// Form returns the hash of a parsed statement, which comments and layout do not change.
func (s Statements) Form(query string) (hash string, fault *dag.ConfigError) {
	form, err := s.own.form(query)
	if err != nil {
		return "", statementFault("", "", err)
	}
	return form.Hash, nil
}

// UnknownInput returns an error for a relation that a statement reads and that is no input of the job. which is what
// the error calls the statement.
func (s Statements) UnknownInput(job *dag.Job, query, which string) *dag.ConfigError {
	form, err := s.own.form(query)
	if err != nil {
		return statementFault("", "", err)
	}
	return unknownInput(job, form, which)
}

// Reads returns the columns that queries over the inputs of a job read, as Shape.Reads has them, and what is wrong with
// each query; nil: nothing is.
func (s Statements) Reads(
	job *dag.Job, inputs [][]dag.Column, queries []string,
) (reads [][]string, wrong []*dag.ConfigError, err error) {
	asking := *job
	asking.Config, asking.Outputs = map[string]any{}, make([]string, len(queries))
	named := map[string]any{}
	for i, query := range queries {
		asking.Outputs[i] = fmt.Sprint(i)
		named[asking.Outputs[i]] = query
	}
	asking.Config["queries"] = named

	shape, err := s.own.shape(&asking, inputs)
	wrong = make([]*dag.ConfigError, len(queries))
	for _, refused := range shape.Refused {
		number, text, _ := strings.Cut(refused.Message, ": ")
		if i, err := strconv.Atoi(number); err == nil && i < len(wrong) {
			wrong[i] = &dag.ConfigError{Message: text}
		}
	}
	return shape.Reads, wrong, err
}

// form returns the hash of a parsed statement, so that comments and layout do not cause rebuilds, and what it reads.
func (s *statements) form(query string) (form engine.Form, err error) {
	err = s.found.recall(&form, []any{"form", query}, func() error {
		return s.ask(engine.Canonical{SQL: query}, &form)
	})
	return form, err
}

// expand writes out the macros that statements call.
func (s *statements) expand(files, queries []string) (expanded dag.Expanded, err error) {
	err = s.found.recall(&expanded, []any{"expand", files, queries}, func() error {
		return s.ask(engine.Expand{Files: files, Statements: queries}, &expanded)
	})
	return expanded, err
}

// statementFault returns what the look at a statement found against it.
func statementFault(key, of string, err error) *dag.ConfigError {
	return &dag.ConfigError{Key: key, Message: of + fault.Text(err), Unseen: unseen(err)}
}

// check returns what is wrong with the SQL of a check: it is not one SELECT that users may run, or reads what is
// neither the output nor an input.
func (s *statements) check(job *dag.Job, query string) *dag.ConfigError {
	form, err := s.form(query)
	if err != nil {
		return statementFault("", "", err)
	}
	form.Reads = slices.DeleteFunc(slices.Clone(form.Reads), func(m engine.Mention) bool {
		return sqltext.Same(m.Name, engine.Output)
	})
	return unknownInput(job, form, "the check")
}

// checkJob returns what the queries of a job read that is none of its inputs.
func (s *statements) checkJob(job *dag.Job) *dag.ConfigError {
	config, named := job.Config["queries"].(map[string]any)
	if !named {
		config = map[string]any{"query": job.Config["query"]}
	}

	for _, name := range sortedKeys(config) {
		query, _ := config[name].(string)
		form, err := s.form(query)
		if unseen(err) != nil {
			return statementFault("", "", err)
		}
		if err != nil {
			return nil // canonical has said it
		}
		key, which := "query", "its query"
		if named {
			key, which = "queries", "its query "+name
		}
		if refused := unknownInput(job, form, which); refused != nil {
			refused.Key = key
			return refused
		}
	}
	return nil
}

// statementsIn returns the paths of a config that lead to statements.
func statementsIn(config map[string]any) (paths [][]string) {
	if _, one := config["query"].(string); one {
		paths = append(paths, []string{"query"})
	}
	queries, _ := config["queries"].(map[string]any)
	for _, name := range sortedKeys(queries) {
		paths = append(paths, []string{"queries", name})
	}
	return paths
}

// unknownInput returns an error for a relation that a statement reads and that is no input of the job.
func unknownInput(job *dag.Job, form engine.Form, which string) *dag.ConfigError {
	inputs := make([]string, len(job.Inputs))
	for i, in := range job.Inputs {
		inputs[i] = in.As
	}
	if slices.Contains(inputs, "") {
		return nil // that input is at fault itself
	}
	for _, m := range form.Reads {
		if !slices.ContainsFunc(inputs, func(as string) bool { return sqltext.Same(as, m.Name) }) {
			return &dag.ConfigError{Unknown: m.Name, Known: inputs,
				Message: fmt.Sprintf("job %q has no input %q, which %s reads%s", job.Name, m.Name, which, m.Place)}
		}
	}
	return nil
}

// canonical returns the forms of a job's queries.
func (s *statements) canonical(config map[string]any) (any, *dag.ConfigError) {
	query, one := config["query"].(string)
	queries, several := config["queries"].(map[string]any)
	if one == several {
		return nil, &dag.ConfigError{Message: "sql needs either `query`, or `queries` with one for each output"}
	}
	if one {
		form, err := s.form(query)
		if err != nil {
			return nil, statementFault("query", "", err)
		}
		return map[string]any{"query": form.Hash}, nil
	}

	forms := map[string]any{}
	for _, name := range sortedKeys(queries) {
		query, _ := queries[name].(string)
		form, err := s.form(query)
		if err != nil {
			return nil, statementFault("queries", name+": ", err)
		}
		forms[name] = form.Hash
	}
	return map[string]any{"queries": forms}, nil
}
