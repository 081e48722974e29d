package operators

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
)

// sqlOperator runs one SELECT per output over the job's inputs, each a relation by its `as` name.
//
// The partition being made is in getvariable('partition'), a VARCHAR, and where partitions are of time its half-open
// range in getvariable('start') and getvariable('end'), TIMESTAMPTZ. They are values set before the statement is run,
// never text put into it, so no partition key can change what a query means. Without one they are NULL.
// TIMESTAMPTZ is shown and truncated in the time zone of partition_by, UTC by default.
type sqlOperator struct {
	options Options
	parser  func() (*duck.Session, error) // one session for all parsing; it may touch no file
}

func newSQL(o Options) *sqlOperator {
	return &sqlOperator{options: o, parser: sync.OnceValues(func() (*duck.Session, error) {
		return duck.Open(context.Background(), duck.Config{Threads: 1, MemoryLimit: 256 << 20})
	})}
}

const sqlSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "query": {"type": "string", "minLength": 1, "description": "One SELECT over the inputs, by their names. Its rows are the output, in its order."},
    "queries": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string", "minLength": 1}, "description": "A SELECT for each output, by the output's name."}
  }
}`

func (o *sqlOperator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: "sql", Version: "1.0.0", Reactive: true, Effect: dag.EffectInternal,
		ConfigSchema: json.RawMessage(sqlSchema),
		Canonical:    o.canonical,
	}
}

// canonical is the parsed form of each query, so that comments and layout rebuild nothing.
func (o *sqlOperator) canonical(config map[string]any) (any, *dag.ConfigError) {
	session, err := o.parser()
	if err != nil {
		return nil, &dag.ConfigError{Key: "query", Message: err.Error()}
	}
	query, one := config["query"].(string)
	queries, several := config["queries"].(map[string]any)
	if one == several {
		return nil, &dag.ConfigError{Message: "sql needs either `query`, or `queries` with one for each output"}
	}
	if one {
		parsed, err := session.Parse(context.Background(), query)
		if err != nil {
			return nil, &dag.ConfigError{Key: "query", Message: withHint(err)}
		}
		return map[string]any{"query": parsed.Canonical}, nil
	}
	forms := map[string]any{}
	for _, name := range sortedKeys(queries) {
		query, _ := queries[name].(string)
		parsed, err := session.Parse(context.Background(), query)
		if err != nil {
			return nil, &dag.ConfigError{Key: "queries", Message: name + ": " + withHint(err)}
		}
		forms[name] = parsed.Canonical
	}
	return map[string]any{"queries": forms}, nil
}

// withHint tells an error with what to do about it, where there is but one line for both.
func withHint(err error) string {
	var f *fault.Error
	if errors.As(err, &f) && f.Hint != "" {
		return err.Error() + "; " + f.Hint
	}
	return err.Error()
}

func (o *sqlOperator) Run(ctx context.Context, t *Task) (Result, error) {
	queries, err := queriesOf(t)
	if err != nil {
		return Result{}, Permanent(err)
	}
	session, err := o.open(ctx, t)
	if err != nil {
		return Result{}, err
	}
	defer session.Close()
	known := make([]string, len(t.Inputs))
	for i, in := range t.Inputs {
		known[i] = in.As
		if err := session.Create(ctx, relation(in, t.InputFiles[i])); err != nil {
			return Result{}, err
		}
	}
	var result Result
	rows := map[string]int64{}
	for i, query := range queries {
		t.Progress(100*i/len(queries), "running the query of output "+t.Outputs[i].Name)
		n, err := write(ctx, session, query, known, filepath.Join(t.OutputDirs[i], "part.parquet"))
		if err != nil {
			return Result{}, fmt.Errorf("output %q: %w", t.Outputs[i].Name, err)
		}
		rows[t.Outputs[i].Name] = n
	}
	result.Result, err = json.Marshal(map[string]any{"rows": rows})
	return result, err
}

// write runs one query into a file.
func write(ctx context.Context, session *duck.Session, query string, known []string, file string) (int64, error) {
	parsed, err := session.Parse(ctx, query)
	if err != nil {
		return 0, err
	}
	if err := parsed.Check(known); err != nil {
		return 0, err
	}
	view, err := session.View(ctx, parsed)
	if err != nil {
		return 0, err
	}
	return session.CopyToParquet(ctx, view, file)
}

// open starts a session that reaches the task's inputs, outputs and scratch, and nothing else.
func (o *sqlOperator) open(ctx context.Context, t *Task) (*duck.Session, error) {
	return duck.Open(ctx, duck.Config{
		AllowedPaths: slices.Concat(t.InputFiles...),
		AllowedDirs:  append(slices.Clone(t.OutputDirs), t.Scratch),
		TempDir:      t.Scratch,
		MemoryLimit:  o.options.MemoryLimit,
		Threads:      o.options.Threads,
		TimeZone:     t.PartitionBy.Timezone,
		Variables:    partitionVariables(t.Partition),
	})
}

// partitionVariables are what getvariable() knows. All are set, so that a query may name any.
func partitionVariables(p *PartitionRange) map[string]any {
	variables := map[string]any{"partition": nil, "start": nil, "end": nil}
	if p != nil {
		variables["partition"] = p.Key
		if p.Start != nil && p.End != nil {
			variables["start"], variables["end"] = *p.Start, *p.End
		}
	}
	return variables
}

// relation is an input as SQL sees it.
func relation(in AssignedInput, files []string) duck.Relation {
	where := make([]duck.Condition, len(in.Where))
	for i, c := range in.Where {
		where[i] = duck.Condition(c)
	}
	return duck.Relation{Name: in.As, Files: files, Schema: in.Schema, Where: where}
}

// queriesOf returns the query of each output, by its index.
func queriesOf(t *Task) ([]string, error) {
	if query, ok := t.Config["query"].(string); ok {
		if len(t.Outputs) != 1 {
			return nil, fault.New(fault.Invalid, "the job has %d outputs and one query", len(t.Outputs)).
				WithHint("give `queries` with one for each output's name")
		}
		return []string{query}, nil
	}
	named, _ := t.Config["queries"].(map[string]any)
	queries := make([]string, len(t.Outputs))
	for i, output := range t.Outputs {
		query, ok := named[output.Name].(string)
		if !ok {
			return nil, fault.New(fault.Invalid, "queries: there is none for output %q", output.Name)
		}
		queries[i] = query
	}
	if len(named) != len(queries) {
		return nil, fault.New(fault.Invalid, "queries: there are %d for %d outputs", len(named), len(queries))
	}
	return queries, nil
}
