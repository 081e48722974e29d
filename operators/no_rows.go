package operators

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/footer"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators/textfile"
	"github.com/dagctl/dagctl/storage"
)

// A run that ends with an output that has no rows replaces the partition by an empty one, so that no old row stays in
// it. Its columns are those of the line of names in a text file, or those that the output had last.

// NoRows answers questions about outputs to which a run wrote no rows, and about the columns of those to which it did.
type NoRows interface {
	// Standing returns the columns that other partitions of an output have; none if there is no row in any.
	Standing(ctx context.Context, output int, partition string) ([]storage.Column, error)
	// Columns returns the columns that an output had last; none if it never had any.
	Columns(ctx context.Context, output int) ([]storage.Column, error)
	// RowsHash returns the RowsHash of the newest revision of an output partition; empty: there is none, or it is gone.
	RowsHash(ctx context.Context, output int, partition string) (string, error)
	// Stays reports whether an output without files stays as it is, instead of having no rows from now on.
	Stays(ctx context.Context, output int) (bool, error)
}

// The ends of the names of Parquet files that were made from text without rows. The types of their columns are
// guesses, and the one column of a file from ndjson is, too.
const (
	noRowsCSV    = ".csv.empty.parquet"
	noRowsNDJSON = ".ndjson.empty.parquet"
)

// ImportedName returns the name of the Parquet file that holds the rows of a text file.
func ImportedName(name, format string, rows int64) string {
	switch {
	case rows > 0:
		return name + ".parquet"
	case format == "ndjson":
		return strings.TrimSuffix(name, ".ndjson") + noRowsNDJSON
	}
	return strings.TrimSuffix(name, ".csv") + noRowsCSV
}

// NumberedName returns the name of an output's nth file that keeps what its name says about its rows.
func NumberedName(n int, name string) string {
	end := ".parquet"
	for _, empty := range []string{noRowsCSV, noRowsNDJSON} {
		if strings.HasSuffix(name, empty) {
			end = empty
		}
	}
	return fmt.Sprintf("%05d%s", n, end)
}

// written is what a run wrote to the folder of an output.
type written struct {
	files []string         // sorted, without those that were made from text without rows
	any   bool             // there are files, maybe all without rows
	guess []storage.Column // the columns that a CSV file without rows names
}

// writtenTo looks at what a run wrote to the folder of an output.
func writtenTo(dir string) (found written, err error) {
	all, err := filepath.Glob(filepath.Join(dir, "*.parquet"))
	if err != nil {
		return found, err
	}
	slices.Sort(all)
	found.any = len(all) > 0

	for _, file := range all {
		fromCSV := strings.HasSuffix(file, noRowsCSV)
		if !fromCSV && !strings.HasSuffix(file, noRowsNDJSON) {
			found.files = append(found.files, file)
			continue
		}
		read, err := footer.Read(file)
		switch {
		case err != nil:
			return found, err
		case read.Rows > 0: // another program chose this name
			found.files = append(found.files, file)
		case fromCSV && len(found.guess) == 0 && !slices.Equal(read.Columns, unnamed):
			found.guess = read.Columns
		}
	}
	return found, nil
}

// unnamed are the columns of a CSV file without a line.
var unnamed = []storage.Column{{Name: "column0", Type: "VARCHAR"}}

// withoutRows returns a file without rows for an output that got none. It returns no file if the output stays as it is,
// or if nobody knows its columns or, where rows are in a table, their types.
func (w *work) withoutRows(
	ctx context.Context, a Assignment, output AssignedOutput, found written, scratch string,
) ([]string, error) {
	if a.NoRows == nil {
		return nil, nil
	}
	if !found.any {
		if stays, err := a.NoRows.Stays(ctx, output.Index); err != nil || stays {
			return nil, err
		}
	}
	known, err := a.NoRows.Columns(ctx, output.Index)
	if err != nil {
		return nil, err
	}
	columns := typed(found.guess, known)
	switch {
	case len(columns) == 0:
		return nil, nil
	case len(known) == 0 && output.Generation.Kind == storage.Postgres: // a table would keep what are guesses
		return nil, nil
	}

	file := filepath.Join(scratch, fmt.Sprintf("norows%d.parquet", output.Index))
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, err
	}
	return []string{file}, w.write(ctx, file, func(inside string) engine.Question {
		return engine.Empty{Columns: columns, Target: inside}
	}, nil)
}

// typed returns the columns that a text without rows names, with the types that are known of them. Text that names none
// has the known columns.
func typed(named, known []storage.Column) []storage.Column {
	if len(named) == 0 {
		return known
	}
	columns := slices.Clone(named)
	for i, c := range columns {
		at := slices.IndexFunc(known, func(k storage.Column) bool { return k.Name == c.Name })
		if at >= 0 {
			columns[i] = known[at]
		}
	}
	return columns
}

// importText converts text that a task wrote to a Parquet file and returns the number of rows. The first line of a CSV
// file names the columns. Text without a row and without a name becomes a file of unnamed columns. The values of
// columns that stand as VARCHAR stay as they are written, also where they look like numbers. Declared columns have
// their types.
func (w *work) importText(
	ctx context.Context, format string, local []string, target string, standing, declared []storage.Column,
) (int64, error) {
	d := textfile.Declaration{Format: format, Types: map[string]string{}}
	declare := func(c storage.Column) {
		d.Types[c.Name] = c.Type
		d.OptionalColumns = append(d.OptionalColumns, c.Name)
	}
	for _, c := range declared {
		if c.Type != openType {
			declare(c)
		}
	}
	for _, c := range standing {
		known := slices.ContainsFunc(declared, func(d storage.Column) bool {
			return sqltext.Same(d.Name, c.Name) && d.Type != openType
		})
		if c.Type == "VARCHAR" && !known {
			declare(c)
		}
	}
	if format == "csv" {
		header := true
		d.Delimiter, d.Header = ",", &header
	}

	read, err := w.readText(ctx, engine.Text{Declaration: d, Zone: "UTC", Files: textFiles(local)}, target, "")
	switch {
	case err != nil:
		return 0, err
	case read.Unknown:
		return 0, w.write(ctx, target, func(inside string) engine.Question {
			return engine.Empty{Columns: unnamed, Target: inside}
		}, nil)
	case read.Result.BadRows > 0:
		return 0, badRowsError(read.Result, "write what the other rows have in this column")
	}
	return read.Result.Rows, nil
}

func textFiles(local []string) []textfile.File {
	files := make([]textfile.File, len(local))
	for i, path := range local {
		files[i] = textfile.File{Name: filepath.Base(path), Path: path}
	}
	return files
}

// readText reads text files in an engine, and moves what it wrote to its places.
func (w *work) readText(
	ctx context.Context, q engine.Text, target, quarantine string,
) (read engine.TextRead, err error) {
	g, err := w.engine(ctx)
	if err != nil {
		return read, err
	}
	files := slices.Clone(q.Files)
	for i, file := range files {
		linked, err := g.In(file.Path)
		if err != nil {
			return read, err
		}
		files[i].Path = linked[0]
	}
	q.Files, q.Target = files, g.Out("rows.parquet")
	if quarantine != "" {
		q.Quarantine = g.Out("quarantine.parquet")
	}
	if err := g.Do(ctx, q, &read); err != nil || read.Unknown {
		return read, err
	}

	if quarantine != "" {
		if err := g.Fetch(q.Quarantine, quarantine); err != nil {
			return read, err
		}
	}
	return read, g.Fetch(q.Target, target)
}
