package operators

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
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
	files, err := r.carrier().Fetch(ctx, in, dir)
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
	if format == "parquet" && len(files) == 1 && len(rel.Where) == 0 && rel.Range == nil {
		return files[0], nil
	}

	target := filepath.Join(dir, "rows."+format)
	session, err := duck.OpenData(ctx, duck.Data{Scope: a.Scope(), Limits: r.limits(),
		Files: append(slices.Clone(files), target), Dirs: []string{dir}, Spill: dir})
	if err != nil {
		return "", err
	}
	defer session.Close()

	if err := session.Create(ctx, rel); err != nil {
		return "", err
	}
	if err := session.CopyTo(ctx, "FROM "+sqltext.Quote(rel.Name), target, format); err != nil {
		return "", fmt.Errorf("input %q as %s: %w", in.As, format, err)
	}
	return target, nil
}

// Import converts a text file of rows that a task sent to Parquet, and returns the number of rows. The same text gives
// the same bytes, so that sending it again changes nothing.
func Import(ctx context.Context, local, format, target string) (rows int64, err error) {
	rows, err = importText(ctx, format, []string{local}, target)
	if err != nil && ctx.Err() == nil && !fault.Is(err, fault.Invalid) {
		err = fault.New(fault.Invalid, "%w", err)
	}
	return rows, err
}
