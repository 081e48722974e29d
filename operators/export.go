package operators

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/footer"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators/textfile"
	"github.com/dagctl/dagctl/storage"
)

// Formats are the names of the formats in which tasks elsewhere send rows to the server; it sends them in one more.
var Formats = []string{"ndjson", "csv", "parquet"}

// ExportFormats are the names of the formats in which the server sends rows. Arrow is a stream of its IPC format.
var ExportFormats = append(slices.Clone(Formats), "arrow")

// Export writes the rows of an input that the job reads, those that pass `where` and a slice's range, to one file in
// dir, partition by partition. partition is that of the task, from which a slice is made.
func (r *Runner) Export(
	ctx context.Context, a Assignment, in AssignedInput, format, dir string,
) (file string, err error) {
	w := r.workOf(a)
	defer w.release()
	files, _, err := r.carrier(w).Fetch(ctx, in, false, dir)
	if err != nil {
		return "", fmt.Errorf("input %q: %w", in.As, err)
	}

	t := Task{Assignment: a, InputFiles: make([][]string, in.Index+1)}
	t.InputFiles[in.Index] = files
	t.Inputs = slices.Clone(a.Inputs)
	t.Inputs[in.Index] = in
	rel, err := t.relation(in.Index)
	if err != nil {
		return "", err
	}
	if format == "parquet" && len(files) == 1 && len(rel.Where) == 0 && rel.Range == nil && !rel.Fill {
		return files[0], nil
	}

	target := filepath.Join(dir, "rows."+format)
	if err := w.open(ctx, a.Scope(), []relations.Relation{rel}); err != nil {
		return "", err
	}
	err = w.write(ctx, target, func(inside string) engine.Question {
		return engine.Export{Relation: rel.Name, Target: inside, Format: format}
	}, nil)
	if err != nil {
		return "", fmt.Errorf("input %q as %s: %w", in.As, format, err)
	}
	return target, nil
}

// TextRows are a text file of rows that a task sent for an output. Columns are those that the task declares; the type
// "?" is one that its values show.
type TextRows struct {
	Output        int
	Local, Format string
	Columns       []storage.Column
}

// Import converts rows that a task sent to Parquet, and returns their number and their columns. The same text gives the
// same bytes, so that sending it again changes nothing.
func (r *Runner) Import(
	ctx context.Context, a Assignment, sent TextRows, target string,
) (rows int64, columns []storage.Column, err error) {
	if err := checkColumns(sent.Columns); err != nil {
		return 0, nil, err
	}
	w := r.workOf(a)
	defer w.release()

	standing := a.Outputs[sent.Output].Standing
	rows, err = w.importText(ctx, sent.Format, []string{sent.Local}, target, standing, sent.Columns)
	if err == nil && rows == 0 && len(sent.Columns) > 0 {
		err = w.write(ctx, target, func(inside string) engine.Question {
			return engine.Empty{Columns: guessed(sent.Columns), Target: inside}
		}, nil)
	}
	if err != nil {
		if ctx.Err() == nil && !fault.Is(err, fault.Invalid) {
			err = fault.New(fault.Invalid, "%w", err)
		}
		return 0, nil, err
	}
	written, err := footer.Read(target)
	return rows, written.Columns, err
}

// guessed returns columns with text for what has no type.
func guessed(columns []storage.Column) []storage.Column {
	columns = slices.Clone(columns)
	for i, c := range columns {
		if c.Type == openType {
			columns[i].Type = "VARCHAR"
		}
	}
	return columns
}

const openType = "?"

// checkColumns checks the columns that a task declares.
func checkColumns(columns []storage.Column) error {
	seen := map[string]bool{}
	for _, c := range columns {
		_, err := textfile.ParseType(c.Type)
		name := sqltext.Lower(c.Name)
		switch {
		case c.Name == "":
			return fault.New(fault.Invalid, "columns: a column of type %s has no name", c.Type)
		case seen[name]:
			return fault.New(fault.Invalid, "columns: %q comes twice", c.Name)
		case err != nil:
			return fault.New(fault.Invalid, "columns: %q: %w", c.Name, err)
		}
		seen[name] = true
	}
	return nil
}

// Elsewhere marks the error of a file system that an export writes to, which is none of the storage's.
func Elsewhere(err error) error { return storage.Elsewhere(err) }
