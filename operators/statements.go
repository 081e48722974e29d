package operators

import (
	"context"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
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

// ask asks an engine that parses.
func (s *statements) ask(q engine.Question, answer any) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), parseWithin, // those who ask have no context
		fault.New(fault.TooLarge, "the statement could not be parsed within %s", parseWithin))
	defer cancel()
	purpose := engine.Purpose{Kind: engine.Parse, Org: s.org, Each: parseTime,
		Limits: relations.Limits{Memory: parseMemory, Threads: 1}}
	return s.engines.Do(ctx, purpose, q, answer)
}

// form returns the hash of a parsed statement, so that comments and layout do not cause rebuilds.
func (s *statements) form(query string) (form string, err error) {
	err = s.found.recall(&form, []any{"form", query}, func() error {
		return s.ask(engine.Canonical{SQL: query}, &form)
	})
	return form, err
}

// statement returns an error unless the SQL is one SELECT that a job or a check may run.
func (s *statements) statement(query string) error {
	_, err := s.form(query)
	return err
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
			return nil, &dag.ConfigError{Key: "query", Message: fault.Text(err)}
		}
		return map[string]any{"query": form}, nil
	}

	forms := map[string]any{}
	for _, name := range sortedKeys(queries) {
		query, _ := queries[name].(string)
		form, err := s.form(query)
		if err != nil {
			return nil, &dag.ConfigError{Key: "queries", Message: name + ": " + fault.Text(err)}
		}
		forms[name] = form
	}
	return map[string]any{"queries": forms}, nil
}
