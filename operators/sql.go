package operators

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/storage"
)

// sqlOperator runs one SELECT per output over the job's inputs. Each input is a relation with its `as` name.
//
// getvariable('partition'), a VARCHAR, is the partition that the task makes. For partitions of time,
// getvariable('start') and getvariable('end'), TIMESTAMPTZ, are its half-open range; otherwise they are NULL. They are
// values that are set before the statement runs, never text in it, so no partition key can change what a query means.
// TIMESTAMPTZ is shown and truncated in the time zone of partition_by, UTC by default.
type sqlOperator struct {
	options Options
	parser  *duck.Shared // for all parsing; it cannot access files
	forms   formCache
	derived derivationCache
}

func newSQL(o Options) *sqlOperator {
	return &sqlOperator{options: o,
		parser: &duck.Shared{Config: duck.Config{Threads: 1, MemoryLimit: 256 << 20}}}
}

const sqlSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "query": {"type": "string", "minLength": 1,
      "description": "One SELECT over the inputs by name. Its rows, in order, are the output."},
    "queries": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string", "minLength": 1},
      "description": "A SELECT for each output, by the output's name."}
  }
}`

func (o *sqlOperator) Spec() dag.OperatorSpec {
	spec := dag.OperatorSpec{
		Name: "sql", Version: "1.0.0", Reactive: true, Effect: dag.EffectInternal,
		ConfigSchema: json.RawMessage(sqlSchema),
		Canonical:    o.canonical,
		Shape:        o.shape,
	}
	if o.options.ReuseByColumn {
		spec.Derive = o.derive
	}
	return spec
}

// canonical returns the hash of each parsed query, so that comments and layout do not cause rebuilds.
func (o *sqlOperator) canonical(config map[string]any) (any, *dag.ConfigError) {
	ctx := context.Background() // Canonical takes no context, and parsing is quick
	query, one := config["query"].(string)
	queries, several := config["queries"].(map[string]any)
	if one == several {
		return nil, &dag.ConfigError{Message: "sql needs either `query`, or `queries` with one for each output"}
	}
	if one {
		form, err := o.forms.of(ctx, o.parser, query)
		if err != nil {
			return nil, &dag.ConfigError{Key: "query", Message: fault.Text(err)}
		}
		return map[string]any{"query": form}, nil
	}

	forms := map[string]any{}
	for _, name := range sortedKeys(queries) {
		query, _ := queries[name].(string)
		form, err := o.forms.of(ctx, o.parser, query)
		if err != nil {
			return nil, &dag.ConfigError{Key: "queries", Message: name + ": " + fault.Text(err)}
		}
		forms[name] = form
	}
	return map[string]any{"queries": forms}, nil
}

// statement returns an error unless the SQL is one SELECT that a job or a check may run.
func (o *sqlOperator) statement(query string) error {
	_, err := o.forms.of(context.Background(), o.parser, query) // validation takes no context, and parsing is quick
	return err
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

	run := sqlRun{Task: t, session: session, relations: map[string][]storage.Column{}, rows: map[string]int64{}}
	for i := range t.Inputs {
		if err := run.input(ctx, i); err != nil {
			return Result{}, err
		}
	}

	for i, query := range queries {
		t.Progress(100*i/len(queries), "running the query of output "+t.Outputs[i].Name)
		if err := run.output(ctx, i, query); err != nil {
			return Result{}, fmt.Errorf("output %q: %w", t.Outputs[i].Name, err)
		}
	}

	var result Result
	if result.Columns, err = o.lineage(ctx, &run); err != nil {
		return Result{}, err
	}
	result.Result, err = json.Marshal(map[string]any{"rows": run.rows})
	return result, err
}

// sqlRun is the run of a task in a session.
type sqlRun struct {
	*Task
	session   *duck.Session
	known     []string // relations
	relations map[string][]storage.Column
	selects   []*duck.Select     // by output index
	columns   [][]storage.Column // by output index
	rows      map[string]int64   // by output name
}

func (r *sqlRun) input(ctx context.Context, i int) error {
	rel, err := r.relation(i)
	if err != nil {
		return err
	}
	if err := r.session.Create(ctx, rel); err != nil {
		return err
	}
	columns, err := r.session.Describe(ctx, "FROM "+sqltext.Quote(rel.Name))
	r.known, r.relations[rel.Name] = append(r.known, rel.Name), columns
	return err
}

// output runs one query and writes its rows to the output's file.
func (r *sqlRun) output(ctx context.Context, i int, query string) error {
	parsed, err := r.session.Parse(ctx, query)
	if err != nil {
		return err
	}
	if err := parsed.Check(r.known); err != nil {
		return err
	}
	view, err := r.session.View(ctx, parsed)
	if err != nil {
		return err
	}

	columns, err := r.session.Describe(ctx, view)
	if err != nil {
		return err
	}
	r.selects, r.columns = append(r.selects, parsed), append(r.columns, columns)
	r.rows[r.Outputs[i].Name], err = r.session.CopyToParquet(ctx, view, filepath.Join(r.OutputDirs[i], "part.parquet"))
	return err
}

// lineage uses the parser's session, which has DuckDB's functions already.
func (o *sqlOperator) lineage(ctx context.Context, r *sqlRun) ([]ColumnOrigin, error) {
	session, err := o.parser.Get(ctx)
	if err != nil {
		return nil, err
	}

	var columns []ColumnOrigin
	for i, parsed := range r.selects {
		origins, err := session.Lineage(ctx, parsed, r.relations, r.columns[i])
		if err != nil {
			return nil, err
		}

		for _, origin := range origins {
			input := slices.Index(r.known, origin.Relation)
			columns = append(columns, ColumnOrigin{
				Output: r.Outputs[i].Index, OutputColumn: origin.OutputColumn,
				Input: r.Inputs[input].Index, InputColumn: origin.Column, Transform: origin.Transform,
			})
		}
	}
	return columns, nil
}

// open starts a session that can access only the task's inputs, outputs and scratch folder.
func (o *sqlOperator) open(ctx context.Context, t *Task) (*duck.Session, error) {
	return duck.OpenData(ctx, duck.Data{Scope: t.Scope(), Limits: o.options.limits(),
		Files: slices.Concat(t.InputFiles...), Dirs: append(slices.Clone(t.OutputDirs), t.Scratch), Spill: t.Scratch})
}

// scopeOf returns the scope in which all data is read for a partition: by its job, its checks and its programs.
func scopeOf(by dag.Partitioning, p *PartitionRange) duck.Scope {
	s := duck.Scope{Zone: cmp.Or(by.Timezone, "UTC")}
	if p != nil {
		s.Partition, s.Start, s.End = &p.Key, p.Start, p.End
	}
	return s
}

// Scope returns the scope of the task's own partition.
func (a Assignment) Scope() duck.Scope { return scopeOf(a.PartitionBy, a.Partition) }

// relation returns an input of the task with the rows that pass its `where` and, for a slice, lie in the range of the
// output partition.
func (t *Task) relation(i int) (duck.Relation, error) {
	in := t.Inputs[i]
	rel := relation(in, t.InputFiles[i])
	if in.Map != dag.MapSlice || t.Partition == nil {
		return rel, nil
	}
	from, to, err := t.PartitionBy.Range(t.Partition.Key)
	rel.Range = &duck.Range{Column: in.PartitionBy.Column, From: from, To: to}
	return rel, err
}

// relation is an input as a query sees it.
func relation(in AssignedInput, files []string) duck.Relation {
	where := make([]duck.Condition, len(in.Where))
	for i, c := range in.Where {
		where[i] = duck.Condition{Column: c.Column, Values: c.Values}
	}
	return duck.Relation{Name: in.As, Files: files, Schema: in.Schema, Fill: in.Kept, Where: where}
}

// queriesOf returns the query of each output, by its index.
func queriesOf(t *Task) ([]string, error) {
	outputs := make([]string, len(t.Outputs))
	for i, output := range t.Outputs {
		outputs[i] = output.Name
	}
	return queriesFor(t.Config, outputs)
}

// queriesFor returns the query of each of the named outputs.
func queriesFor(config map[string]any, outputs []string) ([]string, error) {
	if query, ok := config["query"].(string); ok {
		if len(outputs) != 1 {
			return nil, fault.New(fault.Invalid, "the job has %d outputs but one query", len(outputs)).
				WithHint("give `queries` with one for each output's name")
		}
		return []string{query}, nil
	}

	named, _ := config["queries"].(map[string]any)
	queries := make([]string, len(outputs))
	for i, output := range outputs {
		query, ok := named[output].(string)
		if !ok {
			return nil, fault.New(fault.Invalid, "queries: there is no query for output %q", output)
		}
		queries[i] = query
	}

	if len(named) != len(queries) {
		return nil, fault.New(fault.Invalid, "queries: there are %d for %d outputs", len(named), len(queries))
	}
	return queries, nil
}
