package operators

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
)

// sqlOperator runs one SELECT per output over the job's inputs. Each input is a relation with its `as` name.
//
// getvariable('partition'), a VARCHAR, is the partition that the task makes. For partitions of time,
// getvariable('start') and getvariable('end'), TIMESTAMPTZ, are its half-open range; otherwise they are NULL. They are
// values that are set before the statement runs, never text in it, so no partition key can change what a query means.
// TIMESTAMPTZ is shown and truncated in the time zone of partition_by, UTC by default.
type sqlOperator struct {
	options    Options
	statements *statements // of no org; see Registry.Catalog
}

func newSQL(o Options) *sqlOperator { return &sqlOperator{o, newStatements(o)} }

// NeedsColumns reports whether tasks of an operator need the columns of all their inputs, of those without rows, too.
func NeedsColumns(operator string) bool { return operator == "sql" }

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

func (o *sqlOperator) Spec() dag.OperatorSpec { return o.spec(o.statements) }

// spec returns the spec whose functions look at statements for an org.
func (o *sqlOperator) spec(s *statements) dag.OperatorSpec {
	spec := dag.OperatorSpec{
		Name: "sql", Version: "1.0.0", Reactive: true, Effect: dag.EffectInternal, Splits: true,
		ConfigSchema: json.RawMessage(sqlSchema),
		SQL:          statementsIn,
		Canonical:    s.canonical,
		CheckJob:     s.checkJob,
		Shape:        s.shape,
		Queries:      s.queries,
	}
	if o.options.ReuseByColumn {
		spec.Derive = s.derive
	}
	return spec
}

func (o *sqlOperator) Run(ctx context.Context, t *Task) (Result, error) {
	queries, err := queriesOf(t)
	if err != nil {
		return Result{}, Permanent(err)
	}
	if err := t.openInputs(ctx); err != nil {
		return Result{}, err
	}

	var result Result
	rows := map[string]int64{}
	for i, query := range queries {
		name := t.Outputs[i].Name
		t.Progress(100*i/len(queries), "running the query of output "+name)
		var selected engine.Selected
		err := t.work.write(ctx, filepath.Join(t.OutputDirs[i], "part.parquet"), func(inside string) engine.Question {
			return engine.Select{SQL: query, Target: inside}
		}, &selected)
		if err != nil {
			return Result{}, fmt.Errorf("output %q: %w", name, err)
		}
		rows[name] = selected.Rows
		result.Columns = append(result.Columns, t.origins(t.Outputs[i].Index, selected.Origins)...)
	}
	result.Result, err = json.Marshal(map[string]any{"rows": rows})
	return result, err
}

// openInputs opens the inputs of the task as relations.
func (t *Task) openInputs(ctx context.Context) error {
	all, err := t.relations()
	if err != nil {
		return err
	}
	return t.work.open(ctx, t.Scope(), all)
}

// origins returns where the columns of an output come from, by inputs in place of relations.
func (t *Task) origins(output int, origins []relations.Origin) []ColumnOrigin {
	var columns []ColumnOrigin
	for _, origin := range origins {
		input := slices.IndexFunc(t.Inputs, func(in AssignedInput) bool { return in.As == origin.Relation })
		columns = append(columns, ColumnOrigin{
			Output: output, OutputColumn: origin.OutputColumn,
			Input: t.Inputs[input].Index, InputColumn: origin.Column, Transform: origin.Transform,
		})
	}
	return columns
}

// scopeOf returns the scope in which all data is read for a partition: by its job, its checks and its programs.
func scopeOf(by dag.Partitioning, p *PartitionRange) relations.Scope {
	s := relations.Scope{Zone: cmp.Or(by.Timezone, "UTC")}
	if p != nil {
		s.Partition, s.Start, s.End = &p.Key, p.Start, p.End
	}
	return s
}

// Scope returns the scope of the task's own partition.
func (a Assignment) Scope() relations.Scope { return scopeOf(a.PartitionBy, a.Partition) }

// relation returns an input of the task with the rows that pass its `where` and, for a slice, lie in the range of the
// output partition.
func (t *Task) relation(i int) (relations.Relation, error) {
	in := t.Inputs[i]
	rel := relation(in, t.InputFiles[i])
	if in.Map != dag.MapSlice || t.Partition == nil {
		return rel, nil
	}
	from, to, err := t.PartitionBy.Range(t.Partition.Key)
	rel.Range = &relations.Range{Column: in.PartitionBy.Column, From: from, To: to}
	return rel, err
}

// relation is an input as a query sees it.
func relation(in AssignedInput, files []string) relations.Relation {
	where := make([]relations.Condition, len(in.Where))
	for i, c := range in.Where {
		where[i] = relations.Condition{Column: c.Column, Values: c.Values}
	}
	return relations.Relation{Name: in.As, Files: files, Schema: in.Schema, Fill: in.Kept || in.Mixed,
		Only: in.Kept, Where: where}
}

// ForOrg implements PerOrg. It returns the catalog with the functions that look at statements in an engine of an org.
func (o *sqlOperator) ForOrg(c dag.Catalog, org dag.Org) dag.Catalog {
	s := o.statements.of(org.ID)
	own := o.spec(s)
	spec := c.Operators[own.Name]
	spec.Canonical, spec.CheckJob, spec.Shape, spec.Derive = own.Canonical, own.CheckJob, own.Shape, own.Derive
	spec.Queries = own.Queries
	c.Operators = maps.Clone(c.Operators)
	c.Operators[own.Name], c.Statement, c.Expand = spec, s.check, s.expand
	if c.Names != nil {
		c.Names = s.names
	}
	return c
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
