package operators

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/footer"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/storage"
)

// The partitions of a dataset that programs and functions write have one schema, whatever each run writes: the one that
// stands since the first rows. Rows fit it by casts that lose nothing, and what a run leaves out is NULL.

// programs are the operators whose rows may have any columns.
var programs = []string{"command", "handler", "udf"}

// AnyColumns reports whether the rows of an operator may have any columns: no config and no query says them.
func AnyColumns(operator string) bool { return slices.Contains(programs, operator) }

// held returns files that have the columns that stand: those that were written, or one made from them. It also returns
// the columns that stand; none if no other partition has rows.
func (w *work) held(
	ctx context.Context, a Assignment, output AssignedOutput, files []string, scratch string,
) (fitting []string, standing []storage.Column, err error) {
	if a.NoRows == nil || !AnyColumns(a.Operator) {
		return files, nil, nil
	}
	standing, err = a.NoRows.Standing(ctx, output.Index, partitionOf(a))
	if err != nil || len(standing) == 0 {
		return files, nil, err
	}

	same := true
	for _, file := range files {
		f, err := footer.Read(file)
		if err != nil {
			return nil, nil, err
		}
		if len(output.Standing) == 0 && readsTexts(f.Columns, standing) {
			return nil, nil, ErrColumnsSettled
		}
		if err := refuseNew(f.Columns, standing, partitionOf(a)); err != nil {
			return nil, nil, err
		}
		same = same && slices.Equal(f.Columns, standing)
	}
	if same {
		return files, standing, nil
	}
	fitting, err = w.recast(ctx, a, output, files, standing, scratch)
	return fitting, standing, err
}

// ErrColumnsSettled is the error of a run that began before another partition settled the columns, and whose text may
// have been read by other types: a text such as 1.50 must not become 1.5. The run is done again, by the columns that
// stand.
var ErrColumnsSettled error = fault.New(fault.Unavailable,
	"the columns of the dataset were settled by another partition meanwhile")

// readsTexts reports whether a column that stands as text has another type in a file.
func readsTexts(columns, standing []storage.Column) bool {
	return slices.ContainsFunc(columns, func(c storage.Column) bool {
		return c.Type != "VARCHAR" && slices.ContainsFunc(standing, func(s storage.Column) bool {
			return s.Type == "VARCHAR" && sqltext.Same(s.Name, c.Name)
		})
	})
}

// refuseNew refuses columns that the dataset does not have.
func refuseNew(columns, standing []storage.Column, partition string) error {
	var names []string
	for _, c := range standing {
		names = append(names, c.Name)
	}
	for _, c := range columns {
		known := func(name string) bool { return sqltext.Same(name, c.Name) }
		if !slices.ContainsFunc(names, known) {
			return fault.New(fault.Invalid, "partition %s: column %q is new; the dataset has %s", partition, c.Name,
				strings.Join(names[:min(30, len(names))], ", ")).
				WithHint("all partitions have the columns of the first: leave it out, or raise `code_version`, which " +
					"computes the dataset anew")
		}
	}
	return nil
}

// recast writes the rows of files with the columns that stand. A value that does not fit is refused.
func (w *work) recast(
	ctx context.Context, a Assignment, output AssignedOutput, files []string, standing []storage.Column, scratch string,
) ([]string, error) {
	g, err := w.engine(ctx)
	if err != nil {
		return nil, err
	}
	inside, err := g.In(files...)
	if err != nil {
		return nil, err
	}
	var misfit *relations.Misfit
	if err := g.Do(ctx, engine.Fit{Parts: [][]string{inside}, Columns: standing}, &misfit); err != nil {
		return nil, err
	}
	if misfit != nil {
		return nil, fault.New(fault.Invalid, "partition %s, column %s: %q does not fit %s, which the column is in the "+
			"other partitions", partitionOf(a), misfit.Column.Name, misfit.Value, misfit.Column.Type).
			WithHint("write values of that type; or raise `code_version`, which computes the dataset anew")
	}

	rel := relations.Relation{Name: engine.Output, Files: files, Schema: standing, Fill: true, Only: true}
	if err := w.open(ctx, a.Scope(), []relations.Relation{rel}); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, err
	}
	target := filepath.Join(scratch, fmt.Sprintf("standing%d.parquet", output.Index))
	return []string{target}, w.write(ctx, target, func(inside string) engine.Question {
		return engine.Export{Relation: engine.Output, Target: inside, Format: "parquet"}
	}, nil)
}
