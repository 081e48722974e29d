package deploy

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/registry/contract"
)

// refuseLiterals refuses a document whose `where` or accepted_values compares a column with what can never equal it, as
// far as the columns are known.
func (d *deploy) refuseLiterals(ctx context.Context, tx pgx.Tx, next contract.Contract) error {
	foreign, err := d.foreignDatasets(ctx, tx)
	if err != nil {
		return err
	}
	known := make(map[outputRef][]dag.Column, len(next.Datasets))
	for _, n := range next.Datasets {
		known[outputRef{n.Job, n.Output}] = n.Columns
	}

	var problems dag.Problems
	for _, job := range d.doc.Jobs {
		for _, in := range job.Inputs {
			columns := known[outputRef{in.Job, in.Output}]
			if in.Job == "" {
				columns = foreign[in.Dataset].columns
			}
			for _, c := range in.Where {
				where := "`where` of input " + in.As
				problems = appendNeverEqual(problems, in.Position, where, c.Column, columns, c.Values)
			}
		}

		for _, check := range job.Checks {
			for _, column := range check.Columns {
				problems = appendNeverEqual(problems, job.Position, "check "+check.Name, column,
					known[outputRef{job.Name, check.Output}], check.Values)
			}
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return problems.Fault()
}

// appendNeverEqual adds a problem for each value that can never equal the column.
func appendNeverEqual(
	problems dag.Problems, at dag.Position, where, column string, columns []dag.Column, values dag.Values,
) dag.Problems {
	i := slices.IndexFunc(columns, func(c dag.Column) bool { return c.Name == column })
	if i < 0 || columns[i].Type == "" {
		return problems
	}
	for _, v := range values {
		_, err := literal.Compare(column, columns[i].Type, v)
		var refused *fault.Error
		if errors.As(err, &refused) {
			problems = append(problems, dag.Problem{Position: at, Code: dag.CodeValue,
				Message: where + ": " + refused.Message, Suggestion: refused.Hint})
		}
	}
	return problems
}
