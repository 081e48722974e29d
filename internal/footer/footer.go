// Package footer reads the footers of Parquet files: the number of rows, and the columns with the types as which DuckDB
// reads them. It reads no row and needs no DuckDB.
//
// Files come from users, and a footer of a few bytes can claim a billion values, so everything is bounded: memory by a
// small multiple of the footer's size, nesting, lengths of lists, numbers of columns. A footer that no reader takes, or
// that readers understand differently, is refused with a text that says what is wrong with it. It owns no tables.
package footer

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
)

// Footer is what the footer of a file says.
type Footer struct {
	Rows    int64
	Bytes   int64 // of the file
	Columns []relations.Column
	Untyped []int // the columns without a type, which only have NULL: DuckDB reads them as INTEGER
	Zoned   []Zoned
	Groups  []Group
}

// Group is a row group.
type Group struct {
	Rows int64
	End  int64 // offset of the end of its last column, in bytes
}

const (
	magic     = "PAR1"
	encrypted = "PARE"
	tail      = 4 + len(magic) // the footer's length, and magic
)

// Read reads the footer of a local file. A file whose columns or rows cannot be read is a fault.Invalid that names it.
func Read(path string) (Footer, error) {
	file, err := os.Open(path)
	if err != nil {
		return Footer{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return Footer{}, err
	}

	f, err := readFrom(file, info.Size())
	if err != nil && fault.KindOf(err) != fault.Invalid {
		return f, fmt.Errorf("read the footer of %s: %w", filepath.Base(path), err)
	}
	if err != nil {
		return f, fault.New(fault.Invalid, "%s cannot be read as Parquet: %w", filepath.Base(path), err)
	}
	return f, nil
}

// readFrom reads the footer of a file of size bytes.
func readFrom(file io.ReaderAt, size int64) (Footer, error) {
	var head, end [tail]byte
	if size < int64(len(magic)+tail) {
		return Footer{}, fault.New(fault.Invalid, "it has %d bytes only", size)
	}
	if _, err := file.ReadAt(head[:len(magic)], 0); err != nil {
		return Footer{}, err
	}
	if _, err := file.ReadAt(end[:], size-int64(tail)); err != nil {
		return Footer{}, err
	}

	switch {
	case string(end[4:]) == encrypted:
		return Footer{}, fault.New(fault.Invalid, "it is encrypted").WithHint("write it without encryption")
	case string(end[4:]) != magic || string(head[:len(magic)]) != magic:
		return Footer{}, fault.New(fault.Invalid, "it does not begin and end with %s", magic)
	}
	length := int64(binary.LittleEndian.Uint32(end[:]))
	if length == 0 || length > size-int64(len(magic)+tail) {
		return Footer{}, fault.New(fault.Invalid, "its footer has %d bytes, but the file %d", length, size)
	}
	if length > mostBytes {
		return Footer{}, fault.New(fault.Invalid, "its footer has %d bytes; %d are read at most", length, mostBytes).
			WithHint("write larger row groups, or fewer columns")
	}

	data := make([]byte, length)
	if _, err := file.ReadAt(data, size-int64(tail)-length); err != nil {
		return Footer{}, err
	}
	return decode(data, size)
}

// decode reads a footer from its bytes, which end a file of size bytes.
func decode(data []byte, size int64) (Footer, error) {
	m := metadata{decoder: decoder{data: data}, most: size - int64(len(data)+tail)}
	m.read()
	if m.err != nil {
		return Footer{}, fault.New(fault.Invalid, "%w", m.err)
	}

	s := schema{elements: m.elements, geometries: m.geometries}
	columns, err := s.columns()
	if err != nil {
		return Footer{}, err
	}
	if len(m.groups) > 0 && m.chunks != s.leaves {
		return Footer{}, fault.New(fault.Invalid, "its row groups have %d columns, but the file %d", m.chunks,
			s.leaves)
	}
	for i := range s.zoned { // from places in the footer to those in the file
		s.zoned[i].at += size - int64(tail+len(data))
	}
	return Footer{Rows: m.rows, Bytes: size, Columns: columns, Untyped: s.untyped, Zoned: s.zoned,
		Groups: m.groups}, nil
}
