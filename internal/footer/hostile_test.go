package footer

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/fault"
)

// thrift writes values in the compact protocol.
type thrift []byte

func (b thrift) varint(n uint64) thrift { return binary.AppendUvarint(b, n) }

func zigzag(n int64) uint64 { return uint64(n<<1) ^ uint64(n>>63) }

// field begins a field by its number.
func (b thrift) field(id int64, kind byte) thrift {
	return append(b, kind).varint(zigzag(id))
}

func (b thrift) int(id, n int64, kind byte) thrift { return b.field(id, kind).varint(zigzag(n)) }

func (b thrift) text(id int64, text string) thrift {
	return append(b.field(id, typeBinary).varint(uint64(len(text))), text...)
}

func (b thrift) of(id int64, kind byte, n int) thrift {
	return append(b.field(id, typeList), 0xf0|kind).varint(uint64(n))
}

func (b thrift) in(id int64, inner thrift) thrift {
	return append(append(b.field(id, typeStruct), inner...), 0)
}

// column is an element of a schema: a column, or a group of as many as children says.
func column(name string, physical, children int64) thrift {
	e := thrift(nil).text(elementName, name)
	if physical >= 0 {
		e = e.int(elementType, physical, typeInt32)
	}
	if children > 0 {
		e = e.int(elementChildren, children, typeInt32)
	}
	return e
}

// file is a footer of a schema without rows.
func file(elements ...thrift) thrift {
	b := thrift(nil).int(1, 1, typeInt32).of(fileSchema, typeStruct, len(elements))
	for _, e := range elements {
		b = append(append(b, e...), 0)
	}
	return append(b.int(fileRows, 0, typeInt64).of(fileGroups, typeStruct, 0), 0)
}

// whole returns a file that ends in a footer.
func whole(footer []byte) []byte {
	text := append([]byte(magic), footer...)
	return append(binary.LittleEndian.AppendUint32(text, uint32(len(footer))), magic...)
}

const large = 16 << 20 // bytes of hostile footers

// hostile are footers that claim more than they hold, or hold more than anybody needs.
func hostile() map[string]thrift {
	schema := append(thrift(nil).int(1, 1, typeInt32).of(fileSchema, typeStruct, 2), column("root", -1, 1)...)
	schema = append(append(append(schema, 0), column("a", physicalInt32, 0)...), 0).int(fileRows, 0, typeInt64)
	groups := func(n int) thrift { return append(thrift(nil), schema...).of(fileGroups, typeStruct, n) }
	filled := func(b thrift, with string) thrift {
		return append(b, strings.Repeat(with, (large-len(b))/len(with))...)
	}
	unknown := func(kind byte) thrift { return append(thrift(nil), schema...).field(100, kind) }

	wide := make([]thrift, 1_000_001)
	wide[0] = column("root", -1, 1_000_000)
	for i := range wide[1:] {
		wide[i+1] = column("c", physicalInt32, 0)
	}
	deep := []thrift{}
	for range 50_000 {
		deep = append(deep, column("d", -1, 1))
	}
	long := make([]thrift, 61)
	long[0] = column("root", -1, 60)
	for i := range long[1:] {
		long[i+1] = column(strings.Repeat(`"`, 250_000), physicalInt32, 0)
	}

	crs := thrift(nil).in(logicalGeometry, thrift(nil).text(1, strings.Repeat("[", 15<<20)))
	group := thrift(nil).int(3, 0, typeInt64)
	chunk := thrift(nil).in(3, thrift(nil).int(9, 4, typeInt64))
	return map[string]thrift{
		"a list of 2^31 row groups": groups(1 << 31),
		"a list of 2^62 row groups": groups(1 << 62),
		"a schema of 2^31 columns":  thrift(nil).of(fileSchema, typeStruct, 1<<31),
		"42 million empty values": filled(append(unknown(typeList), 0xf0|typeStruct).varint(42_000_000),
			"\x00"),
		"16 million empty row groups":  filled(groups(large-len(schema)-10), "\x00"),
		"a million row groups":         filled(groups(1<<20), string(append(group, 0))),
		"a row group of columns":       filled(groups(1).of(1, typeStruct, 1<<20), string(append(chunk, 0))),
		"a million columns":            file(wide...),
		"50,000 groups in one another": file(append(deep, column("x", physicalInt32, 0))...),
		"names of 15 MB":               file(long...),
		"lists in lists":               filled(unknown(typeList), "\x19"),
		"lists of lists of lists":      filled(unknown(typeList), "\xe9\xe9\xe9\xe9\xe9\x00"),
		"structures in structures":     filled(unknown(typeStruct), "\x1c"),
		"a list of 2^20 empty lists":   filled(append(unknown(typeList), 0xf9).varint(1<<20), "\x03"),
		"a map of 2^40 values":         filled(append(unknown(typeMap).varint(1<<40), 0x55), "\x00"),
		"fields without end": filled(append(thrift(nil), schema...),
			string(thrift(nil).field(500, typeTrue))),
		"a number without end":      filled(append(thrift(nil), schema...).field(fileGroups, typeInt64), "\xff"),
		"a text of 2^60 bytes":      thrift(nil).field(6, typeBinary).varint(1 << 60),
		"a negative number of rows": thrift(nil).int(fileRows, -1, typeInt64),
		"a negative number of children": file(column("root", -1, 0).int(elementChildren, -5, typeInt32),
			column("a", 1, 0)),
		"more children than columns":   file(column("root", -1, 1<<30), column("a", physicalInt32, 0)),
		"a field twice":                append(append(thrift(nil), schema...).int(fileRows, 0, typeInt64), 0),
		"columns of a billion bytes":   withChunk(1<<40, 4),
		"columns that end beyond 2^63": withChunk(1<<62, 1<<62),
		"rows that overflow":           withRows(2, 1<<62, 1<<62, 1<<62),
		"other rows than its groups":   withRows(7, 3),
		"GeoParquet of 15 MB": withKey("geo",
			`{"columns":{`+strings.Repeat(`"a":[],`, 2_000_000)+`"b":1}}`),
		"a coordinate system of 15 MB": file(column("root", -1, 1),
			column("g", physicalBytes, 0).in(elementLogical, crs)),
		"a physical type of another world": file(column("root", -1, 1), column("a", 77, 0)),
		"no row groups":                    append(append(thrift(nil), schema...), 0),
	}
}

func withSchema() thrift {
	b := thrift(nil).of(fileSchema, typeStruct, 2)
	b = append(append(b, column("root", -1, 1)...), 0)
	return append(append(b, column("a", physicalInt32, 0)...), 0)
}

func withChunk(bytes, from int64) thrift {
	chunk := thrift(nil).in(3, thrift(nil).int(7, bytes, typeInt64).int(9, from, typeInt64))
	b := withSchema().int(fileRows, 0, typeInt64).of(fileGroups, typeStruct, 1).of(1, typeStruct, 1)
	return append(append(append(b, chunk...), 0).int(3, 0, typeInt64), 0, 0)
}

func withRows(all int64, groups ...int64) thrift {
	b := withSchema().int(fileRows, all, typeInt64).of(fileGroups, typeStruct, len(groups))
	for _, rows := range groups {
		b = append(append(append(b.of(1, typeStruct, 1), thrift(nil).in(3, nil)...), 0).int(3, rows, typeInt64), 0)
	}
	return append(b, 0)
}

func withKey(key, value string) thrift {
	b := file(column("root", -1, 1), column("a", physicalInt32, 0))
	b = b[:len(b)-1].of(fileKeyValues, typeStruct, 1).text(1, key).text(2, value)
	return append(b, 0, 0)
}

// TestHostileFooters is not parallel, because it counts what is allocated.
func TestHostileFooters(t *testing.T) {
	const most, longest = 6 * large, 2 * time.Second
	// As GEOMETRY, which cannot be stored
	accepted := map[string]bool{"a coordinate system of 15 MB": true}
	for name, footer := range hostile() {
		path := filepath.Join(t.TempDir(), "upload.parquet")
		require.NoError(t, os.WriteFile(path, whole(footer), 0o600))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := cpuTime(t)
		_, err := Read(path)
		took := cpuTime(t) - began
		runtime.ReadMemStats(&after)

		require.Less(t, took, longest, name)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(most), name)
		require.Equal(t, accepted[name], err == nil, "%s: %v", name, err)
		if err == nil {
			continue
		}
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%s: %v", name, err)
		require.ErrorContains(t, err, "upload.parquet cannot be read as Parquet: ", name)
		require.Less(t, len(err.Error()), 400, name)
		t.Logf("%-34s %6d kB %8s  %v", name, (after.TotalAlloc-before.TotalAlloc)>>10, took, err)
	}
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// FuzzDecode checks that no footer makes the decoder panic, and that what it accepts is consistent.
func FuzzDecode(f *testing.F) {
	for _, footer := range hostile() {
		if len(footer) < 300 {
			f.Add([]byte(footer))
		}
	}
	f.Add([]byte(withRows(3, 1, 2)))
	f.Add([]byte(file(column("root", -1, 1), column("l", -1, 1), column("x", physicalBytes, 0))))
	f.Fuzz(func(t *testing.T, data []byte) {
		read, err := decode(data, int64(len(data)+4+tail))
		if err != nil {
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			return
		}
		require.NotEmpty(t, read.Columns)
		sum := int64(0)
		for _, g := range read.Groups {
			sum += g.Rows
		}
		require.Equal(t, read.Rows, sum)
	})
}
