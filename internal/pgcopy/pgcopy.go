// Package pgcopy takes rows between DuckDB and Postgres in Postgres's binary COPY format, so that no text of a value
// depends on a setting or on where a line ends. DuckDB gives each value in a form that Go passes on as it is (days,
// microseconds, text of numbers and of JSON), and takes it back in such a form.
//
// Vocabulary: a wire is how values of one type travel. A Writer makes the format of DuckDB's rows, a Reader rows for
// DuckDB of the format. Every value comes back unchanged, or is refused: Postgres has no NUL in text, dates and times
// from 4714-11-24 BC on, and microseconds. Lists and structs are jsonb. Maps, whose entries have an order, and JSON,
// which has a layout, are json, which keeps its text: see docs/decisions/0025-exact-values.md. It owns no tables.
package pgcopy

import (
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// copyHeader begins Postgres's binary COPY format: signature, flags, and the length of an extension. Each row has the
// number of its values, and each value its length, -1 for NULL. After the last row comes the number -1.
var copyHeader = []byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00")

const (
	copyEnd   = 0xffff     // in place of the number of values
	nullValue = 0xffffffff // in place of a value's length
)

// TypeOf returns the type of a column of Postgres that holds the values of a column of DuckDB. It is a fault.Invalid if
// there is none.
func TypeOf(c relations.Column) (string, error) {
	w, err := wireOf(c)
	return w.column, err
}

// Table is columns whose rows travel.
type Table struct {
	columns []relations.Column
	wires   []wire
}

// NewTable returns a table. A column of which Postgres cannot hold the type is a fault.Invalid.
func NewTable(columns []relations.Column) (t Table, err error) {
	t = Table{columns, make([]wire, len(columns))}
	for i, c := range columns {
		if t.wires[i], err = wireOf(c); err != nil {
			return t, err
		}
	}
	return t, nil
}

// Give returns the SELECT list of the values that a Writer takes.
func (t Table) Give() string {
	list := make([]string, len(t.columns))
	for i, c := range t.columns {
		list[i] = fmt.Sprintf(t.wires[i].give, sqltext.Quote(c.Name))
	}
	return strings.Join(list, ", ")
}

// Staged returns the columns of a table of DuckDB that holds what a Reader returns.
func (t Table) Staged() string {
	list := make([]string, len(t.columns))
	for i, w := range t.wires {
		list[i] = fmt.Sprintf("c%d %s", i, w.staged)
	}
	return strings.Join(list, ", ")
}

// Take returns the SELECT list that restores the values from such a table.
func (t Table) Take() string {
	list := make([]string, len(t.columns))
	for i, c := range t.columns {
		list[i] = fmt.Sprintf(t.wires[i].take+" AS %[2]s", fmt.Sprintf("c%d", i), sqltext.Quote(c.Name))
	}
	return strings.Join(list, ", ")
}

// Writer writes rows in the format, with their numbers, from 1, as one more value of each.
type Writer struct {
	table  Table
	to     io.Writer
	number uint64
	line   []byte
}

// NewWriter begins the format.
func (t Table) NewWriter(to io.Writer) (*Writer, error) {
	_, err := to.Write(copyHeader)
	return &Writer{table: t, to: to}, err
}

// Row writes a row of what Give selects. A value that Postgres cannot hold is a fault.Invalid.
func (w *Writer) Row(row []driver.Value) (err error) {
	w.number++
	w.line = binary.BigEndian.AppendUint16(w.line[:0], uint16(len(row)+1))
	for i, v := range row {
		if w.line, err = putValue(w.line, w.table.wires[i], v); err != nil {
			return w.table.unfit(i, w.number, err)
		}
	}
	w.line = binary.BigEndian.AppendUint32(w.line, 8)
	w.line = binary.BigEndian.AppendUint64(w.line, w.number)
	_, err = w.to.Write(w.line)
	return err
}

// Append appends a value of a column as a RawWriter takes it. The value is in the form of what Give selects, and not
// NULL. One that Postgres cannot hold is an error.
func (t Table) Append(to []byte, column int, v any) ([]byte, error) {
	return t.wires[column].put(to, v)
}

// End ends the format.
func (w *Writer) End() error {
	_, err := w.to.Write(binary.BigEndian.AppendUint16(nil, copyEnd))
	return err
}

// unfit returns the error of a value that Postgres cannot hold.
func (t Table) unfit(column int, row uint64, err error) error {
	name := t.columns[column].Name
	hint := "CAST(%[1]s AS VARCHAR) AS %[1]s"
	if errors.Is(err, errNUL) {
		hint = "replace(%[1]s, chr(0), '') AS %[1]s"
	}
	return fault.New(fault.Invalid, "row %d, column %q has %w", row, name, err).
		WithHint("write "+hint+" in a query, or keep the output in parquet", sqltext.Quote(name))
}

func putValue(to []byte, w wire, v any) ([]byte, error) {
	if v == nil {
		return binary.BigEndian.AppendUint32(to, nullValue), nil
	}
	at := len(to)
	to, err := w.put(append(to, 0, 0, 0, 0), v)
	if err == nil {
		binary.BigEndian.PutUint32(to[at:], uint32(len(to)-at-4))
	}
	return to, err
}

// Reader takes rows in the format, without numbers, in pieces of any length.
type Reader struct {
	wires []wire
	add   func(row ...driver.Value) error
	row   []driver.Value
	rest  []byte // of a row that is not complete
	begun bool
	ended bool
	err   error
}

// NewReader returns a Reader that calls add with each row, for a table of the columns Staged. add must not keep the
// row.
func (t Table) NewReader(add func(row ...driver.Value) error) *Reader {
	return &Reader{wires: t.wires, row: make([]driver.Value, len(t.wires)), add: add}
}

// Write takes a piece of the format.
func (in *Reader) Write(piece []byte) (int, error) {
	data := piece
	if len(in.rest) > 0 {
		in.rest = append(in.rest, piece...)
		data = in.rest
	}
	for in.err == nil && !in.ended {
		n := in.take(data)
		if n == 0 {
			break
		}
		data = data[n:]
	}
	in.rest = append(in.rest[:0], data...)
	return len(piece), in.err
}

// End returns an error unless the format has come to its end.
func (in *Reader) End() error {
	if in.err == nil && !in.ended {
		return io.ErrUnexpectedEOF
	}
	return in.err
}

// take takes the header or one row from the front of data, and returns its length, 0 if it is not complete.
func (in *Reader) take(data []byte) int {
	if !in.begun {
		if len(data) < len(copyHeader) {
			return 0
		}
		in.begun = true
		return len(copyHeader)
	}
	if len(data) < 2 {
		return 0
	}
	if count := binary.BigEndian.Uint16(data); count == copyEnd {
		in.ended = true
		return 2
	} else if int(count) != len(in.wires) {
		in.err = fmt.Errorf("postgres sent %d values for %d columns", count, len(in.wires))
		return 0
	}

	at := 2
	for i, w := range in.wires {
		if len(data) < at+4 {
			return 0
		}
		length := binary.BigEndian.Uint32(data[at:])
		at += 4
		if length == nullValue {
			in.row[i] = nil
			continue
		}
		if len(data) < at+int(length) {
			return 0
		}
		if in.row[i], in.err = w.get(data[at : at+int(length)]); in.err != nil {
			return 0
		}
		at += int(length)
	}
	in.err = in.add(in.row...)
	return at
}
