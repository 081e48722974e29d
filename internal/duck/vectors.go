package duck

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	bindings "github.com/duckdb/duckdb-go-bindings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// vector is a column of a chunk, or a part of one, as DuckDB has it in memory. It is valid as long as the chunk is.
type vector struct {
	of       sqltext.Type
	width    int32 // of a DECIMAL: its digits
	data     unsafe.Pointer
	valid    unsafe.Pointer // a bit for each row; nil: no row is NULL
	children []vector       // of a list its elements, of a map keys and values
}

func vectorOf(v bindings.Vector, t sqltext.Type) vector {
	out := vector{of: t, data: bindings.VectorGetData(v), valid: bindings.VectorGetValidity(v)}
	out.width, _, _ = decimalOf(t)

	child := func(of bindings.Vector, i int) vector {
		return vectorOf(bindings.StructVectorGetChild(of, bindings.IdxT(i)), t.Fields[i].Type)
	}
	switch t.Kind {
	case sqltext.ListType:
		out.children = []vector{vectorOf(bindings.ListVectorGetChild(v), t.Fields[0].Type)}
	case sqltext.MapType: // a list of structs
		entries := bindings.ListVectorGetChild(v)
		for i := range t.Fields {
			out.children = append(out.children, child(entries, i))
		}
	case sqltext.StructType:
		for i := range t.Fields {
			out.children = append(out.children, child(v, i))
		}
	}
	return out
}

func (v *vector) isNull(row int) bool {
	return v.valid != nil && *(*uint64)(unsafe.Add(v.valid, row/64*8))&(1<<(row%64)) == 0
}

// at returns the value of a row.
func at[T any](v *vector, row int) T {
	var size T
	return *(*T)(unsafe.Add(v.data, uintptr(row)*unsafe.Sizeof(size)))
}

// As DuckDB has them in memory.
type (
	hugeint   struct{ lower, upper uint64 }
	listEntry struct{ offset, length uint64 }
	interval  struct {
		months, days int32
		micros       int64
	}
)

// bytes returns the text or the bytes of a row, which are DuckDB's own: up to 12 are where the value is.
func (v *vector) bytes(row int) []byte {
	value := unsafe.Add(v.data, row*16)
	length := int(*(*uint32)(value))
	if length <= 12 {
		return unsafe.Slice((*byte)(unsafe.Add(value, 4)), length)
	}
	return unsafe.Slice(*(**byte)(unsafe.Add(value, 8)), length)
}

// appendTo appends n rows to a builder.
func (v *vector) appendTo(b array.Builder, from, n int) error {
	if of, extended := b.(interface{ StorageBuilder() array.Builder }); extended {
		b = of.StorageBuilder()
	}
	b.Reserve(n)

	switch b := b.(type) {
	case *array.ListBuilder:
		return v.appendLists(b, from, n)
	case *array.MapBuilder:
		return v.appendMaps(b, from, n)
	case *array.StructBuilder:
		return v.appendStructs(b, from, n)
	case *array.StringBuilder:
		return v.appendBytes(b.BinaryBuilder, from, n)
	case *array.BinaryBuilder:
		return v.appendBytes(b, from, n)
	case *array.MonthDayNanoIntervalBuilder:
		return v.appendIntervals(b, from, n)
	}
	if v.appendNumbers(b, from, n) || v.appendOthers(b, from, n) {
		return nil
	}
	return fmt.Errorf("values of type %s are not written as Arrow", v.of)
}

func (v *vector) appendNumbers(b array.Builder, from, n int) bool {
	switch b := b.(type) {
	case *array.Int8Builder:
		appendEach(v, b, from, n, at[int8])
	case *array.Int16Builder:
		appendEach(v, b, from, n, at[int16])
	case *array.Int32Builder:
		appendEach(v, b, from, n, at[int32])
	case *array.Int64Builder:
		appendEach(v, b, from, n, at[int64])
	case *array.Uint8Builder:
		appendEach(v, b, from, n, at[uint8])
	case *array.Uint16Builder:
		appendEach(v, b, from, n, at[uint16])
	case *array.Uint32Builder:
		appendEach(v, b, from, n, at[uint32])
	case *array.Uint64Builder:
		appendEach(v, b, from, n, at[uint64])
	case *array.Float32Builder:
		appendEach(v, b, from, n, at[float32])
	case *array.Float64Builder:
		appendEach(v, b, from, n, at[float64])
	case *array.Decimal128Builder:
		appendEach(v, b, from, n, decimalAt)
	default:
		return false
	}
	return true
}

func (v *vector) appendOthers(b array.Builder, from, n int) bool {
	switch b := b.(type) {
	case *array.BooleanBuilder:
		appendEach(v, b, from, n, at[bool])
	case *array.Date32Builder:
		appendEach(v, b, from, n, at[arrow.Date32])
	case *array.Time64Builder:
		appendEach(v, b, from, n, at[arrow.Time64])
	case *array.TimestampBuilder:
		appendEach(v, b, from, n, at[arrow.Timestamp])
	case *array.FixedSizeBinaryBuilder:
		appendEach(v, b, from, n, uuidAt)
	default:
		return false
	}
	return true
}

// appendEach appends values of a fixed size.
func appendEach[T any](v *vector, b interface {
	Append(T)
	AppendNull()
}, from, n int, value func(v *vector, row int) T) {
	for row := from; row < from+n; row++ {
		if v.isNull(row) {
			b.AppendNull()
		} else {
			b.Append(value(v, row))
		}
	}
}

// decimalAt returns a decimal, whose size in memory is that of the smallest integer with its digits.
func decimalAt(v *vector, row int) decimal128.Num {
	switch {
	case v.width <= 4:
		return decimal128.FromI64(int64(at[int16](v, row)))
	case v.width <= 9:
		return decimal128.FromI64(int64(at[int32](v, row)))
	case v.width <= 18:
		return decimal128.FromI64(at[int64](v, row))
	}
	huge := at[hugeint](v, row)
	return decimal128.New(int64(huge.upper), huge.lower)
}

// uuidAt returns a UUID, which DuckDB has as a number with a sign, so that it sorts like its text.
func uuidAt(v *vector, row int) []byte {
	huge := at[hugeint](v, row)
	id := binary.BigEndian.AppendUint64(make([]byte, 0, 16), huge.upper^1<<63)
	return binary.BigEndian.AppendUint64(id, huge.lower)
}

func (v *vector) appendIntervals(b *array.MonthDayNanoIntervalBuilder, from, n int) error {
	for row := from; row < from+n; row++ {
		if v.isNull(row) {
			b.AppendNull()
			continue
		}
		i := at[interval](v, row)
		if i.micros > math.MaxInt64/1000 || i.micros < math.MinInt64/1000 {
			return fault.New(fault.Invalid, "an INTERVAL has more than the 292 years of hours that Arrow holds").
				WithHint("write CAST(… AS VARCHAR)")
		}
		b.Append(arrow.MonthDayNanoInterval{Months: i.months, Days: i.days, Nanoseconds: i.micros * 1000})
	}
	return nil
}

func (v *vector) appendBytes(b *array.BinaryBuilder, from, n int) error {
	for row := from; row < from+n; row++ {
		if v.isNull(row) {
			b.AppendNull()
			continue
		}
		value := v.bytes(row)
		if b.DataLen()+len(value) > math.MaxInt32 {
			return fault.New(fault.TooLarge, "%d rows together have more than 2 GB", n)
		}
		b.Append(value)
	}
	return nil
}

func (v *vector) appendLists(b *array.ListBuilder, from, n int) error {
	for row := from; row < from+n; row++ {
		if v.isNull(row) {
			b.AppendNull()
			continue
		}
		b.Append(true)
		e := at[listEntry](v, row)
		if err := v.children[0].appendTo(b.ValueBuilder(), int(e.offset), int(e.length)); err != nil {
			return err
		}
	}
	return nil
}

func (v *vector) appendMaps(b *array.MapBuilder, from, n int) error {
	for row := from; row < from+n; row++ {
		if v.isNull(row) {
			b.AppendNull()
			continue
		}
		b.Append(true)
		e := at[listEntry](v, row)
		if err := v.children[0].appendTo(b.KeyBuilder(), int(e.offset), int(e.length)); err != nil {
			return err
		}
		if err := v.children[1].appendTo(b.ItemBuilder(), int(e.offset), int(e.length)); err != nil {
			return err
		}
	}
	return nil
}

// appendStructs appends the members of structs that are NULL, too, since each member has as many rows as there are
// structs.
func (v *vector) appendStructs(b *array.StructBuilder, from, n int) error {
	valid := make([]bool, n)
	for i := range valid {
		valid[i] = !v.isNull(from + i)
	}
	b.AppendValues(valid)
	for i := range v.children {
		if err := v.children[i].appendTo(b.FieldBuilder(i), from, n); err != nil {
			return err
		}
	}
	return nil
}

// sizeOf returns about how many bytes the rows in a builder have.
func sizeOf(b array.Builder) int64 {
	size := int64(b.Len())/8 + 1
	switch b := b.(type) {
	case interface{ StorageBuilder() array.Builder }:
		return sizeOf(b.StorageBuilder())
	case *array.StringBuilder:
		return size + int64(b.DataLen()) + 4*int64(b.Len())
	case *array.BinaryBuilder:
		return size + int64(b.DataLen()) + 4*int64(b.Len())
	case *array.ListBuilder:
		return size + 4*int64(b.Len()) + sizeOf(b.ValueBuilder())
	case *array.MapBuilder:
		return size + 4*int64(b.Len()) + sizeOf(b.KeyBuilder()) + sizeOf(b.ItemBuilder())
	case *array.StructBuilder:
		for i := range b.NumField() {
			size += sizeOf(b.FieldBuilder(i))
		}
		return size
	}

	if fixed, ok := b.Type().(arrow.FixedWidthDataType); ok {
		return size + int64(b.Len())*int64(fixed.BitWidth())/8
	}
	return size
}
