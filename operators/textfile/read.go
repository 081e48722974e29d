package textfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Job is one conversion of files to Parquet.
type Job struct {
	Declaration
	Standing *Reading       // nil: nothing stands yet
	Zone     *time.Location // of times without an offset in columns declared as instants; nil: UTC
	Required string         // the column in which every row has a value; empty: none
	Progress func(rows int64)
}

// Result is what a conversion found.
type Result struct {
	Reading Reading // as used; it may settle what was open in the standing one
	Rows    int64
	// Rows that do not fit: how many, and the first of them. They are no rows of the output.
	BadRows  int64
	Examples []Bad
}

// ErrUnknown is the error of files that say nothing of their columns where nothing else does either.
var ErrUnknown = errors.New("the files say nothing of their columns, and nothing is known of them yet")

// maxExamples is how many bad rows an error shows.
const maxExamples = 3

// Convert reads the files and writes their rows to a Parquet file. bad is called for each row that does not fit; nil
// leaves them to the Result. Files that say nothing, where no column is known, are ErrUnknown.
func (j Job) Convert(ctx context.Context, files []File, target string, bad func(Bad) error) (r Result, err error) {
	r.Reading, err = j.reading(ctx, files)
	if err != nil {
		return r, err
	}
	if len(r.Reading.Columns) == 0 {
		return r, ErrUnknown
	}

	w, err := newWriter(target, r.Reading.Columns)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, w.close()) }()

	note := func(b Bad) error {
		r.BadRows++
		if len(r.Examples) < maxExamples {
			r.Examples = append(r.Examples, b)
		}
		if bad == nil {
			return nil
		}
		return bad(b)
	}
	for _, file := range files {
		c := conversion{Job: j, reading: r.Reading, file: file, types: w.types, take: w.append, bad: note,
			formats: j.formats(j.zone())}
		if err := c.run(ctx); err != nil {
			return r, err
		}
	}
	r.Rows = w.rows
	return r, nil
}

func (j Job) zone() *time.Location {
	if j.Zone == nil {
		return time.UTC
	}
	return j.Zone
}

// conversion reads one file by a reading.
type conversion struct {
	Job
	reading Reading
	formats formats
	file    File
	types   []Type
	take    func(row []value) error
	bad     func(Bad) error
	row     []value
	needs   int // the index of the required column; -1: none
}

func (c *conversion) run(ctx context.Context) error {
	in, err := c.file.open(c.reading.Encoding)
	if err != nil {
		return err
	}
	c.row = make([]value, len(c.types))
	c.needs = slices.IndexFunc(c.reading.Columns, func(column Column) bool {
		return c.Required != "" && sqltext.Same(column.Name, c.Required)
	})
	if c.reading.Format == "csv" {
		err = c.csv(ctx, in)
	} else {
		err = c.json(ctx, in)
	}
	return errors.Join(err, in.Close())
}

// isMissing is what is wrong with a row that has no value in the required column.
const isMissing = "the row has no value there, by which rows are split into partitions"

// taken takes a row whose values fit.
func (c *conversion) taken(r row) error {
	if c.needs >= 0 && c.row[c.needs].null {
		return c.refuse(r, c.reading.Columns[c.needs].Name, "", isMissing)
	}
	return c.take(c.row)
}

// refuse notes a row that does not fit.
func (c *conversion) refuse(r row, column, value, reason string) error {
	return c.bad(Bad{File: c.file.Name, Line: r.line, Column: column, Value: cut(value, maxShown), Reason: reason,
		Row: cut(r.text, maxKept)})
}

// dialect is how the reading separates values.
func (r Reading) dialect(d Declaration) dialect {
	out := dialect{delimiter: []byte(r.Delimiter), comment: []byte(d.Comment), skip: d.SkipLines}
	if r.Quote != "" {
		out.quote = r.Quote[0]
	}
	return out
}

func (c *conversion) csv(ctx context.Context, in io.Reader) error {
	rows := newCSVReader(in, c.reading.dialect(c.Declaration))
	from, width := []int(nil), len(c.reading.Columns) // the field of each column
	if c.reading.Header {
		first, err := firstRow(rows)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.file.Name, err)
		}
		if from, err = c.match(first); err != nil {
			return err
		}
		width = len(first.fields)
	}

	blank := int64(0) // an empty line of which it is not known yet whether it is the last
	for n := 0; ; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r, err := rows.next()
		var broken *badRow
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &broken):
			err = c.refuse(broken.row, "", cut(broken.text, maxShown), broken.reason)
		case err != nil:
			return fmt.Errorf("%s: %w", c.file.Name, err)
		case len(r.fields) == 0:
			blank = max(blank, r.line)
			continue
		default:
			err = c.csvRows(r, from, width, blank)
			blank = 0
		}
		if err != nil {
			return err
		}
	}
}

// csvRows takes a row, and the empty line before it, if there is one: in a file of one column that might be a value.
func (c *conversion) csvRows(r row, from []int, width int, blank int64) error {
	if blank > 0 && width == 1 {
		err := c.refuse(row{line: blank}, c.reading.Columns[0].Name, "",
			`the line is empty: an empty value of a single column is written ""`)
		if err != nil {
			return err
		}
	}
	if len(r.fields) != width {
		return c.refuse(r, "", cut(r.text, maxShown), fmt.Sprintf("has %d values, not %d", len(r.fields), width))
	}
	return c.csvRow(r, from)
}

// firstRow returns the first row that is more than white space.
func firstRow(rows *csvReader) (row, error) {
	for {
		r, err := rows.next()
		blank := len(r.fields) == 0 || len(r.fields) == 1 && len(bytes.TrimSpace(r.text)) == 0
		if err != nil || !blank {
			return r, err
		}
	}
}

// match returns the field of each column of the reading, -1 for an optional column that the file does not have.
func (c *conversion) match(first row) ([]int, error) {
	names := columnNames(first.fields, c.reading.names())
	from := make([]int, len(c.reading.Columns))
	used := make([]bool, len(names))
	for i, column := range c.reading.Columns {
		from[i] = slices.Index(names, column.Name)
		if from[i] < 0 {
			from[i] = slices.IndexFunc(names, func(n string) bool { return sqltext.Same(n, column.Name) })
		}
		if from[i] >= 0 {
			used[from[i]] = true
			continue
		}
		if !slices.Contains(c.OptionalColumns, column.Name) {
			return nil, fault.New(fault.Invalid, "%s line %d: column %q is missing; the line has %s", c.file.Name,
				first.line, column.Name, quoteAll(names)).
				WithHint("the columns stand since the first file: list those that a file may lack as " +
					"optional_columns")
		}
	}

	if len(c.Columns) == 0 {
		for i, is := range used {
			if !is {
				return nil, fault.New(fault.Invalid, "%s line %d: column %q is new; the dataset has %s", c.file.Name,
					first.line, names[i], quoteAll(c.reading.names())).
					WithHint("name its type in `types` to have it, and list it as optional_columns if older files " +
						"lack it; or list the columns to keep as `columns`")
			}
		}
	}
	return from, nil
}

func (r Reading) names() []string {
	names := make([]string, len(r.Columns))
	for i, c := range r.Columns {
		names[i] = c.Name
	}
	return names
}

func quoteAll(names []string) string {
	list := names[:min(len(names), 30)]
	text := strings.Join(list, ", ")
	if len(list) < len(names) {
		text += fmt.Sprintf(" and %d more", len(names)-len(list))
	}
	return text
}

func (c *conversion) csvRow(r row, from []int) error {
	for i, t := range c.types {
		at := i
		if from != nil {
			if at = from[i]; at < 0 {
				c.row[i] = null
				continue
			}
		}
		f := r.fields[at]
		if c.formats.isNull(f, t) {
			c.row[i] = null
			continue
		}

		v, err := c.formats.parse(f.text, t)
		if err == nil && t.Kind == Text {
			err = checkText(v.text)
		}
		if err != nil {
			return c.refuse(r, c.reading.Columns[i].Name, cut(f.text, maxShown), err.Error())
		}
		c.row[i] = v
	}
	return c.taken(r)
}

func (c *conversion) json(ctx context.Context, in io.Reader) error {
	at := make(map[string]int, len(c.types))
	for i, column := range c.reading.Columns {
		at[column.Name] = i
	}
	n := 0
	each := func(r record) error {
		if n++; n%4096 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return c.jsonRow(r, at)
	}

	var err error
	if c.reading.Format == "ndjson" {
		err = eachLine(in, each, func(r row, reason string) error {
			return c.refuse(r, "", cut(r.text, maxShown), reason)
		})
	} else {
		err = eachRecord(in, c.Records, each)
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s %w", c.file.Name, err)
	}
	return err
}

func (c *conversion) jsonRow(r record, at map[string]int) error {
	for i := range c.row {
		c.row[i] = null
	}

	whole := row{line: r.line, text: r.raw}
	for i, name := range r.names {
		column, known := at[name]
		if !known {
			if len(c.Columns) > 0 {
				continue
			}
			return c.refuse(whole, name, cut(r.parts[i].raw, maxShown),
				"the field is new: name its type in `types` to have it, or list the fields to keep as `columns`")
		}
		v, err := c.formats.fromJSON(r.parts[i], c.types[column])
		if err != nil {
			return c.refuse(whole, name, cut(r.parts[i].raw, maxShown), err.Error())
		}
		c.row[column] = v
	}
	return c.taken(whole)
}
