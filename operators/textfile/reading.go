package textfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

var errNotText = errors.New("is not UTF-8, or has bytes that its `encoding` does not have: name the file's encoding, " +
	"for example `encoding: windows-1252`")

func checkText(text []byte) error {
	if !utf8.Valid(text) {
		return errNotText
	}
	return nil
}

// reading returns how the files are read: as declared, as it stands, and, where neither says it, as they are.
func (j Job) reading(ctx context.Context, files []File) (Reading, error) {
	r := Reading{Format: j.Format, Encoding: j.Encoding, Delimiter: j.Delimiter}
	if r.Format == "csv" {
		r.Quote = `"`
		if j.Quote != nil {
			r.Quote = *j.Quote
		}
	}
	if j.Standing != nil && j.Standing.unseen() {
		j.Standing = nil
	}
	if j.Standing != nil {
		r = *j.Standing
		r.Columns = slices.Clone(r.Columns)
		if !r.Open() {
			return r, nil
		}
	}

	i := inference{Job: j, r: r, formats: j.formats(j.zone())}
	for _, file := range files {
		if err := i.file(ctx, file); err != nil {
			return r, err
		}
	}
	return i.result()
}

// unseen reports whether no file has shown yet how its lines are read: then only its columns are known.
func (r Reading) unseen() bool { return r.Format == "csv" && r.Delimiter == "" }

// Open reports whether the type of a column is open.
func (r Reading) Open() bool {
	return slices.ContainsFunc(r.Columns, func(c Column) bool {
		if r.typed() {
			return c.Type == "?"
		}
		t, err := ParseType(c.Type)
		return err != nil || t.open()
	})
}

// inference looks at all rows of the files for what is not known.
type inference struct {
	Job
	r       Reading
	formats formats
	names   []string
	shapes  []shape
	said    string // the first file that has content
	broken  string // the first row that is none
}

func (i *inference) note(file File, r row, reason string) error {
	if i.broken == "" {
		i.broken = Bad{File: file.Name, Line: r.line, Value: cut(r.text, maxShown), Reason: reason}.String()
	}
	return nil
}

func (i *inference) file(ctx context.Context, file File) error {
	if i.r.Format != "csv" {
		return i.json(ctx, file)
	}
	if i.Standing == nil && i.r.Delimiter == "" {
		delimiter, err := sniffDelimiter(func() (io.ReadCloser, error) { return file.open(i.r.Encoding) },
			i.r.dialect(i.Declaration))
		if err != nil {
			return err
		}
		if i.said == "" {
			i.r.Delimiter = delimiter
			defer func() {
				if i.said == "" {
					i.r.Delimiter = ""
				}
			}()
		}
	}

	in, err := file.open(i.r.Encoding)
	if err != nil {
		return err
	}
	err = i.csv(ctx, newCSVReader(in, i.r.dialect(i.Declaration)), file)
	return errors.Join(err, in.Close())
}

func (i *inference) csv(ctx context.Context, rows *csvReader, file File) error {
	first, err := firstRow(rows)
	var broken *badRow
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &broken):
		return fmt.Errorf("%s: the first row %w", file.Name, err)
	case err != nil:
		return fmt.Errorf("%s: %w", file.Name, err)
	}

	if i.said == "" {
		if err := i.begin(first); err != nil {
			return fmt.Errorf("%s: %w", file.Name, err)
		}
	}
	i.said = file.Name
	at := i.columnsOf(first)
	if !i.r.Header {
		i.add(first, at)
	}

	for n := 1; ; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r, err := rows.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &broken):
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", file.Name, err)
		case len(r.fields) == len(at):
			i.add(r, at)
		}
	}
}

// begin takes the names of the columns from the first row, unless they stand.
func (i *inference) begin(first row) error {
	if i.Standing != nil {
		i.names, i.shapes = i.Standing.names(), make([]shape, len(i.Standing.Columns))
		return nil
	}
	i.r.Header = i.Header != nil && *i.Header || i.Header == nil && looksLikeNames(first.fields, i.formats)
	i.names = numberedNames(len(first.fields))
	if i.r.Header {
		i.names = columnNames(first.fields, nil)
	}
	i.shapes = make([]shape, len(i.names))
	return checkNames(i.names)
}

// columnsOf returns the column of each field, -1 for those that the first file does not have: whether a file fits shows
// when it is read.
func (i *inference) columnsOf(first row) []int {
	at := make([]int, len(first.fields))
	for n := range at {
		at[n] = n
	}
	if i.r.Header {
		for n, name := range columnNames(first.fields, i.names) {
			at[n] = slices.IndexFunc(i.names, func(known string) bool { return sqltext.Same(known, name) })
		}
	}
	return at
}

func (i *inference) add(r row, at []int) {
	for n, f := range r.fields {
		if at[n] < 0 || at[n] >= len(i.shapes) {
			continue
		}
		s := &i.shapes[at[n]]
		switch {
		case len(f.text) == 0:
			s.empty = s.empty || f.quoted
		case s.seen && s.kinds == 0: // it is text already
		case !i.formats.isNull(f, Type{Kind: Text}):
			s.add(i.formats.kindsOf(f.text))
		}
	}
}

func (i *inference) json(ctx context.Context, file File) error {
	in, err := file.open(i.r.Encoding)
	if err != nil {
		return err
	}
	if i.Standing != nil && len(i.names) == 0 {
		i.names, i.shapes = i.Standing.names(), make([]shape, len(i.Standing.Columns))
	}

	columns := make(map[string]int, len(i.names))
	for at, name := range i.names {
		columns[name] = at
	}
	n := 0
	each := func(r record) error {
		if n++; n%4096 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if i.said == "" {
			i.said = file.Name
		}
		for p, name := range r.names {
			at, known := columns[name]
			if !known {
				if i.Standing != nil {
					continue
				}
				at = len(i.names)
				columns[name] = at
				i.names, i.shapes = append(i.names, name), append(i.shapes, shape{})
			}
			i.shapes[at].addJSON(r.parts[p], i.formats, 0)
		}
		if len(i.names) > mostColumns {
			return checkNames(i.names)
		}
		return nil
	}

	if i.r.Format == "ndjson" {
		err = eachLine(in, each, func(r row, reason string) error { return i.note(file, r, reason) })
	} else {
		err = eachRecord(in, i.Records, each)
	}
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%s %w", file.Name, err)
	}
	return errors.Join(err, in.Close())
}

// result puts together what was declared, what stood, and what was found.
func (i *inference) result() (Reading, error) {
	r := i.r
	if i.Standing != nil {
		return i.settled()
	}
	names := i.names
	if len(names) == 0 { // no content
		names = i.declaredNames()
	}
	keep := names
	if len(i.Columns) > 0 {
		keep = i.Columns
	}

	for _, name := range slices.Concat(keep, i.missing(names, keep)) {
		t, err := i.typeOf(name, names)
		if err != nil {
			return r, err
		}
		r.Columns = append(r.Columns, Column{name, t.String()})
	}
	if len(r.Columns) == 0 && i.broken != "" {
		return r, fmt.Errorf("no row can be read: %s", i.broken)
	}
	if err := checkNames(r.names()); err != nil {
		return r, err
	}
	for n, c := range r.Columns {
		if strings.ContainsRune(c.Type, 0) {
			return r, byteOfZero(n, c.Type)
		}
	}
	sniffed := len(i.Types) < len(r.Columns) || i.Format == "csv" && i.Delimiter == ""
	if r.InferredFrom == "" && i.said != "" && sniffed {
		r.InferredFrom = i.said
	}
	return r, nil
}

const (
	mostNames   = 1 << 20 // bytes of the names of all columns of a file
	mostColumns = 10_000  // a line of them takes a second to convert, and each next one as much
)

// checkNames refuses names that are no names of columns, but what a file without names begins with.
func checkNames(names []string) error {
	if len(names) > mostColumns {
		return fault.New(fault.TooLarge, "the rows have %d columns; a dataset has at most %d", len(names), mostColumns).
			WithHint("put what has a name of its own in each row into one object, or into rows of their own")
	}

	size := 0
	for n, name := range names {
		if size += len(name); size > mostNames {
			return fault.New(fault.Invalid, "the names of the %d columns have more than %d bytes", len(names),
				mostNames).
				WithHint("if the first line of a CSV file has no names, say `header: false`")
		}
		if strings.ContainsRune(name, 0) {
			return byteOfZero(n, name)
		}
		if err := checkText([]byte(name)); err != nil {
			return fault.New(fault.Invalid, "the name of column %d, %q, %w", n+1, cut([]byte(name), maxShown), err)
		}
	}
	return nil
}

func byteOfZero(column int, name string) error {
	return fault.New(fault.Invalid, "the name of column %d has a byte of zero: %q", column+1,
		cut([]byte(name), maxShown)).WithHint("name the file's `encoding` if it is not UTF-8; is it a text file?")
}

// settled returns the reading that stood, with what was open in it as it was found.
func (i *inference) settled() (Reading, error) {
	r := i.r
	for n, c := range r.Columns {
		t, err := ParseType(c.Type)
		if err != nil {
			return r, err
		}
		if n < len(i.shapes) {
			t = settle(t, i.shapes[n].typ())
		}
		r.Columns[n].Type = t.String()
	}
	return r, nil
}

// typeOf returns the declared type of a column, or the one that was found.
func (i *inference) typeOf(name string, names []string) (Type, error) {
	t, declared, err := i.declared(name)
	if declared || err != nil {
		return t, err
	}
	found := slices.IndexFunc(names, func(n string) bool { return sqltext.Same(n, name) })
	if found < 0 {
		return t, fmt.Errorf("column %q is not in the files, which have %s", name, quoteAll(names))
	}
	if found < len(i.shapes) {
		t = i.shapes[found].typ()
	}
	return t, nil
}

// missing returns the declared columns that are neither in the files nor to keep anyway. A CSV file that has no such
// column is refused later unless it is optional.
func (i *inference) missing(names, keep []string) (list []string) {
	if len(i.Columns) > 0 || len(names) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(i.Types)) {
		if !slices.ContainsFunc(keep, func(k string) bool { return sqltext.Same(k, name) }) &&
			!slices.Contains(names, name) {
			list = append(list, name)
		}
	}
	return list
}

// declaredNames returns the columns that are all there are, whatever the files have; none if only some are declared.
func (i *inference) declaredNames() []string {
	for _, name := range i.Columns {
		if _, declared, _ := i.declared(name); !declared {
			return nil
		}
	}
	return i.Columns
}

// declared returns the declared type of a column.
func (i *inference) declared(name string) (Type, bool, error) {
	for declared, text := range i.Types {
		if sqltext.Same(declared, name) {
			t, err := ParseType(text)
			return t, true, err
		}
	}
	return Type{}, false, nil
}

// settle returns a standing type with what was open in it as it was found.
func settle(standing, found Type) Type {
	switch {
	case standing.Kind == Open:
		return found
	case standing.Kind == List && found.Kind == List:
		elem := settle(*standing.Elem, *found.Elem)
		return Type{Kind: List, Elem: &elem}
	case standing.Kind == Struct && found.Kind == Struct:
		fields := slices.Clone(standing.Fields)
		for n, f := range fields {
			at := slices.IndexFunc(found.Fields, func(o Field) bool { return o.Name == f.Name })
			if at >= 0 {
				fields[n].Type = settle(f.Type, found.Fields[at].Type)
			}
		}
		standing.Fields = fields
	}
	return standing
}
