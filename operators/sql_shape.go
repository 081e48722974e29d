package operators

import (
	"context"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// binder binds the queries of all operators of this process.
var binder duck.Binder

// describe returns the columns of a query as they are stored, nil if it cannot be bound to the relations. The error is
// that of a column that no storage can hold.
func describe(ctx context.Context, query string, relations map[string][]duck.Column) ([]dag.Column, error) {
	columns, err := binder.Describe(ctx, query, relations)
	if err != nil {
		return nil, nil //nolint:nilerr // nothing is known
	}
	written, err := sqltext.WrittenAll(columns)
	if err != nil {
		return nil, err
	}
	return columnsOf(written), nil
}

// shape returns the columns that the queries of a job read and write.
func (o *sqlOperator) shape(job *dag.Job, inputs [][]dag.Column) (shape dag.Shape) {
	ctx := context.Background() // Shape takes no context, and nothing is run
	parser, err := o.parser.Get(ctx)
	if err != nil {
		return shape
	}
	queries, err := queriesFor(job.Config, job.Outputs)
	if err != nil {
		return shape
	}

	relations, complete := relationsOf(job, inputs)
	shape.Writes = make([][]dag.Column, len(queries))
	read, named := map[string][]string{}, true
	for i, query := range queries {
		q, err := parser.Parse(ctx, query)
		if err != nil {
			return dag.Shape{}
		}
		for relation, columns := range q.Columns(relations) {
			read[relation] = append(read[relation], columns...)
		}
		named = named && q.NamesColumns()

		// Of a partition without times, start and end are NULL, whose type only a run knows.
		timeless := job.PartitionBy.Kind != dag.ByTime && strings.Contains(strings.ToLower(query), "getvariable")
		if complete && !timeless {
			if shape.Writes[i], err = describe(ctx, query, relations); err != nil {
				shape.Refused = append(shape.Refused, refused(job, i, err))
			}
		}
	}

	checked, err := checkReads(ctx, parser, job, relations)
	if err != nil {
		return dag.Shape{}
	}
	shape.Reads = make([][]string, len(job.Inputs))
	for i, in := range job.Inputs {
		if named && inputs[i] != nil {
			shape.Reads[i] = readOf(in, append(read[in.As], checked[in.As]...))
		}
	}
	return shape
}

// refused returns the fault of the query of an output.
func refused(job *dag.Job, output int, err error) dag.ConfigError {
	if _, one := job.Config["query"]; one {
		return dag.ConfigError{Key: "query", Message: fault.Text(err)}
	}
	return dag.ConfigError{Key: "queries", Message: job.Outputs[output] + ": " + fault.Text(err)}
}

// checkReads returns the columns of inputs that the job's checks name. What else a check selects, it only counts.
func checkReads(
	ctx context.Context, parser *duck.Session, job *dag.Job, relations map[string][]duck.Column,
) (map[string][]string, error) {
	read := map[string][]string{}
	for _, check := range job.Checks {
		if check.To != nil {
			read[check.To.Input] = append(read[check.To.Input], check.To.Column)
		}
		if check.SQL == "" {
			continue
		}
		q, err := parser.Parse(ctx, check.SQL)
		if err != nil {
			return nil, err
		}
		for relation, columns := range q.NamedColumns(relations) {
			read[relation] = append(read[relation], columns...)
		}
	}
	return read, nil
}

// readOf returns the columns that a query names, and those that select the rows of its input.
func readOf(in dag.Input, named []string) []string {
	read := append([]string{}, named...)
	for _, c := range in.Where {
		read = append(read, c.Column)
	}
	slices.Sort(read)
	return slices.Compact(read)
}

// relationsOf returns the inputs of a job whose columns are known, by the names that queries use, and whether that is
// all of them.
func relationsOf(job *dag.Job, inputs [][]dag.Column) (relations map[string][]duck.Column, complete bool) {
	relations, complete = map[string][]duck.Column{}, true
	for i, in := range job.Inputs {
		if inputs[i] == nil {
			complete = false
			continue
		}
		columns := make([]duck.Column, len(inputs[i]))
		for n, c := range inputs[i] {
			columns[n] = duck.Column(c)
		}
		relations[in.As] = columns
	}
	return relations, complete
}

func columnsOf(columns []duck.Column) []dag.Column {
	list := make([]dag.Column, len(columns))
	for i, c := range columns {
		list[i] = dag.Column{Name: c.Name, Type: c.Type}
	}
	return list
}

// BinderMain makes this process one that binds queries for its parent, if it was started for that. main must call it
// first; where nobody does, queries are bound in the process itself.
func BinderMain() { duck.BinderMain() }
