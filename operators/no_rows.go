package operators

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/footer"
	"github.com/dagctl/dagctl/operators/textfile"
	"github.com/dagctl/dagctl/storage"
)

// A run that ends with an output that has no rows replaces the partition by an empty one, so that no old row stays in
// it. Its columns are those of the line of names in a text file, or those that the output had last.

// NoRows answers questions about outputs to which a run wrote no rows.
type NoRows interface {
	// Columns returns the columns that an output had last; none if it never had any.
	Columns(ctx context.Context, output int) ([]storage.Column, error)
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
func writtenTo(dir string) (w written, err error) {
	all, err := filepath.Glob(filepath.Join(dir, "*.parquet"))
	if err != nil {
		return w, err
	}
	slices.Sort(all)
	w.any = len(all) > 0

	for _, file := range all {
		fromCSV := strings.HasSuffix(file, noRowsCSV)
		if !fromCSV && !strings.HasSuffix(file, noRowsNDJSON) {
			w.files = append(w.files, file)
			continue
		}
		read, err := footer.Read(file)
		switch {
		case err != nil:
			return w, err
		case read.Rows > 0: // another program chose this name
			w.files = append(w.files, file)
		case fromCSV && len(w.guess) == 0 && !slices.Equal(read.Columns, unnamed):
			w.guess = read.Columns
		}
	}
	return w, nil
}

// unnamed are the columns of a CSV file without a line.
var unnamed = []storage.Column{{Name: "column0", Type: "VARCHAR"}}

// withoutRows returns a file without rows for an output that got none. It returns no file if the output stays as it is,
// or if nobody knows its columns.
func withoutRows(
	ctx context.Context, a Assignment, output AssignedOutput, w written, scratch string,
) ([]string, error) {
	if a.NoRows == nil {
		return nil, nil
	}
	if !w.any {
		if stays, err := a.NoRows.Stays(ctx, output.Index); err != nil || stays {
			return nil, err
		}
	}
	known, err := a.NoRows.Columns(ctx, output.Index)
	if err != nil {
		return nil, err
	}
	columns := typed(w.guess, known)
	if len(columns) == 0 {
		return nil, nil
	}

	file := filepath.Join(scratch, fmt.Sprintf("norows%d.parquet", output.Index))
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, err
	}
	session, err := duck.OpenData(ctx, duck.Data{Scope: a.Scope(),
		Limits: duck.Limits{Threads: 1}, Files: []string{file}, Dirs: []string{scratch}})
	if err != nil {
		return nil, err
	}
	defer session.Close()
	_, err = session.CopyToParquet(ctx, duck.Empty(columns), file)
	return []string{file}, err
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
// file names the columns. Text without a row and without a name becomes a file of unnamed columns.
func importText(ctx context.Context, format string, local []string, target string) (int64, error) {
	d := textfile.Declaration{Format: format}
	if format == "csv" {
		header := true
		d.Delimiter, d.Header = ",", &header
	}
	files := make([]textfile.File, len(local))
	for i, path := range local {
		files[i] = textfile.File{Name: filepath.Base(path), Path: path}
	}

	result, err := textfile.Job{Declaration: d}.Convert(ctx, files, target, nil)
	switch {
	case errors.Is(err, textfile.ErrUnknown):
		return 0, textfile.WriteEmpty(target, []textfile.Column{textfile.Column(unnamed[0])})
	case err != nil:
		return 0, err
	case result.BadRows > 0:
		return 0, badRowsError(result, "write what the other rows have in this column")
	}
	return result.Rows, nil
}
