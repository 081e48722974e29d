package operators

import (
	"context"
	"maps"
	"path/filepath"
	"slices"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
)

// maxAsked is how many bytes the rows of Ask may have.
const maxAsked = 32 << 20

// Select runs a SELECT over the inputs, each under its name and with the rows that the job reads, in the task's engine.
// It writes the rows, in their order, to the Parquet file of that name in the folder of an output.
func (t *Task) Select(ctx context.Context, query string, output int, file string) (
	rows int64, columns []ColumnOrigin, err error,
) {
	all, err := t.relations()
	if err != nil {
		return 0, nil, err
	}
	return t.SelectFrom(ctx, query, all, output, file)
}

// SelectFrom is Select over other relations than the inputs. One that has the name of an input stands for it.
func (t *Task) SelectFrom(ctx context.Context, query string, all []relations.Relation, output int, file string) (
	rows int64, columns []ColumnOrigin, err error,
) {
	selected, err := t.selectFrom(ctx, query, all, filepath.Join(t.OutputDirs[output], file))
	if err != nil {
		return 0, nil, err
	}
	return selected.Rows, t.origins(t.Outputs[output].Index, selected.Origins), nil
}

// SelectTo is Select for a file that is of no output.
func (t *Task) SelectTo(ctx context.Context, query, file string) (rows int64, err error) {
	all, err := t.relations()
	if err != nil {
		return 0, err
	}
	selected, err := t.selectFrom(ctx, query, all, file)
	return selected.Rows, err
}

func (t *Task) selectFrom(
	ctx context.Context, query string, all []relations.Relation, target string,
) (selected engine.Selected, err error) {
	if !t.work.has(t.Scope(), all) {
		if err := t.work.open(ctx, t.Scope(), all); err != nil {
			return selected, err
		}
	}
	err = t.work.write(ctx, target, func(inside string) engine.Question {
		return engine.Select{SQL: query, Target: inside}
	}, &selected)
	return selected, err
}

// Ask runs a SELECT over the inputs, as Select does, and over more relations, and returns its rows, at most that many,
// as values of JSON: whole numbers are int64. More rows are an error.
func (t *Task) Ask(ctx context.Context, query string, most int, more ...relations.Relation) ([][]any, error) {
	all, err := t.relations()
	if err != nil {
		return nil, err
	}
	g, err := t.work.engine(ctx)
	if err != nil {
		return nil, err
	}

	q := engine.Rows{Scope: t.Scope(), SQL: query, Rows: most, Bytes: maxAsked}
	for _, r := range append(all, more...) {
		if r.Files, err = g.In(r.Files...); err != nil {
			return nil, err
		}
		q.Relations = append(q.Relations, r)
	}

	t.work.opened = nil // these relations take the place of those that were open
	read, rows, err := g.Rows(ctx, q)
	if err == nil && read.Truncated {
		err = fault.New(fault.TooLarge, "there are more than %d rows, or more than %d MB of them", most, maxAsked>>20)
	}
	return rows, err
}

// relations returns the inputs as relations, in which the job's SQL finds what it asks for.
func (t *Task) relations() (all []relations.Relation, err error) {
	all = make([]relations.Relation, len(t.Inputs))
	for i := range t.Inputs {
		if all[i], err = t.relation(i); err != nil {
			return nil, err
		}
		t.key(&all[i], i)
	}
	return all, nil
}

// key has statements find the partition of each row of an input, if the job's SQL may ask for it.
func (t *Task) key(r *relations.Relation, input int) {
	if t.keyed && input < len(t.inputKeys) && len(t.inputKeys[input]) == len(r.Files) {
		r.Keyed, r.Keys = true, t.inputKeys[input]
	}
}

// namesPartition reports whether the SQL of an assignment's job, which is somewhere in its config, or of its checks may
// ask for the partitions of rows.
func (a Assignment) namesPartition() bool {
	return namesPartition(map[string]any(a.Config)) || anyNamesPartition(a.Checks)
}

func namesPartition(config any) bool {
	switch c := config.(type) {
	case string:
		return relations.NamesPartition(c)
	case []any:
		return slices.ContainsFunc(c, namesPartition)
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(c)), namesPartition)
	}
	return false
}

func anyNamesPartition(checks []dag.Check) bool {
	return slices.ContainsFunc(checks, func(c dag.Check) bool { return relations.NamesPartition(c.SQL) })
}
