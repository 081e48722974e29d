package textfile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/spelling"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// tableName is what a table is called where a file has to have a name. Errors are without it.
const tableName = "the table"

// ErrAbsent is why a declaration of a column's type is refused.
var ErrAbsent = errors.New("the table has no column")

// Table looks at the text of a small CSV file, whose first line names the columns, and writes nothing. It returns the
// reading, in which every column has a type, and the number of rows. What does not fit is a fault.Invalid that says in
// which line.
func Table(ctx context.Context, d Declaration, text []byte) (r Reading, rows int64, err error) {
	header := true
	d.Format, d.Header = "csv", &header
	j, file := Job{Declaration: d}, File{Name: tableName, Text: bytes.TrimPrefix(text, []byte("\xEF\xBB\xBF"))}
	if err := j.checkHeader(file); err != nil {
		return r, 0, err
	}
	if r, err = j.reading(ctx, []File{file}); err != nil {
		return r, 0, asInvalid(err)
	}

	c := conversion{Job: j, reading: r, file: file, formats: j.formats(j.zone()), bad: func(b Bad) error {
		b.File = ""
		return fault.New(fault.Invalid, "%s", strings.TrimSpace(b.String())).
			WithHint("mend the row, or name the column's type in `types`")
	}}
	c.take = func([]value) error { rows++; return nil }
	for _, column := range r.Columns {
		t, err := ParseType(column.Type)
		if err != nil {
			return r, 0, fault.New(fault.Invalid, "column %s: %s", column.Name, err)
		}
		c.types = append(c.types, t)
	}
	if err := c.run(ctx); err != nil {
		return r, rows, asInvalid(err)
	}

	for i, t := range c.types {
		if t.open() {
			return r, rows, fault.New(fault.Invalid, "column %s has no value that shows its type", r.Columns[i].Name).
				WithHint("name it: `types: { %s: VARCHAR }`", r.Columns[i].Name)
		}
	}
	return r, rows, nil
}

// checkHeader returns an error unless the first row names the columns, each by a name of its own.
func (j Job) checkHeader(file File) error {
	delimiter := j.Delimiter
	if delimiter == "" {
		var err error
		delimiter, err = sniffDelimiter(func() (io.ReadCloser, error) { return file.open("") },
			dialect{quote: '"', delimiter: []byte(",")})
		if err != nil {
			return err
		}
	}
	first, err := firstRow(newCSVReader(bytes.NewReader(file.Text), dialect{[]byte(delimiter), '"', nil, 0}))
	if errors.Is(err, io.EOF) {
		return fault.New(fault.Invalid, "it is empty").WithHint("its first line names the columns")
	}
	if err != nil {
		return asInvalid(err)
	}

	names, formats := map[string]bool{}, j.formats(j.zone())
	values := 0
	for i, f := range first.fields {
		name := string(bytes.TrimSpace(f.text))
		switch {
		case name == "":
			return fault.New(fault.Invalid, "line %d: column %d has no name", first.line, i+1)
		case names[sqltext.Lower(name)]:
			return fault.New(fault.Invalid, "line %d: column %q comes twice", first.line, name)
		case formats.kindsOf([]byte(name)) != 0:
			values++
		}
		names[sqltext.Lower(name)] = true
	}
	for _, declared := range slices.Sorted(maps.Keys(j.Types)) {
		if !names[sqltext.Lower(declared)] {
			columns := columnNames(first.fields, nil)
			refusal := fault.New(fault.Invalid, "%w %q: line %d names %s", ErrAbsent, declared, first.line,
				quoteAll(columns))
			if near := spelling.Nearest(declared, columns); near != "" {
				return refusal.WithHint("did you mean %q?", near)
			}
			return refusal.WithHint("take it out of `types`, or add the column to the table")
		}
	}
	if values == len(first.fields) {
		return fault.New(fault.Invalid, "line %d has values where the names of the columns should be: %s", first.line,
			cut(first.text, maxShown)).WithHint("begin the file with a line of names")
	}
	return nil
}

// asInvalid returns an error as a fault.Invalid; nil stays nil.
func asInvalid(err error) error {
	if _, known := errors.AsType[*fault.Error](err); known || err == nil {
		return err
	}
	return fault.New(fault.Invalid, "%s", strings.TrimPrefix(err.Error(), tableName+": "))
}
