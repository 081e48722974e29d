package textfile

import (
	"errors"
	"fmt"
	"os"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// writer writes rows to a Parquet file.
type writer struct {
	types   []Type
	rows    int64
	file    *os.File
	out     *pqarrow.FileWriter
	builder *array.RecordBuilder
	pending int
}

const batchRows = 8192

// newWriter begins a file with the columns. What is open is written as VARCHAR, of which there are NULLs only.
func newWriter(target string, columns []Column) (*writer, error) {
	w := &writer{types: make([]Type, len(columns))}
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		t, err := ParseType(c.Type)
		if err != nil {
			return nil, fmt.Errorf("column %s: %w", c.Name, err)
		}
		w.types[i] = t
		fields[i] = arrow.Field{Name: c.Name, Type: t.arrow(), Nullable: true}
	}

	var err error
	if w.file, err = os.Create(target); err != nil {
		return nil, err
	}
	schema := arrow.NewSchema(fields, nil)
	properties := parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Zstd),
		parquet.WithCreatedBy("dagctl"), parquet.WithMaxRowGroupLength(122_880))
	w.out, err = pqarrow.NewFileWriter(schema, w.file, properties, pqarrow.DefaultWriterProps())
	if err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	w.builder = array.NewRecordBuilder(memory.DefaultAllocator, schema)
	return w, nil
}

// WriteEmpty writes a Parquet file without rows.
func WriteEmpty(target string, columns []Column) error {
	w, err := newWriter(target, columns)
	if err != nil {
		return err
	}
	return w.close()
}

func (w *writer) append(row []value) error {
	for i, v := range row {
		if err := appendValue(w.builder.Field(i), v, w.types[i]); err != nil {
			return err
		}
	}
	w.rows++
	if w.pending++; w.pending == batchRows {
		return w.flush()
	}
	return nil
}

func (w *writer) flush() error {
	record := w.builder.NewRecordBatch()
	defer record.Release()
	w.pending = 0
	return w.out.WriteBuffered(record)
}

func (w *writer) close() error {
	err := w.flush()
	w.builder.Release()
	return errors.Join(err, w.out.Close()) // which closes the file
}

// appendValue appends a value of a type to the builder of its column.
func appendValue(b array.Builder, v value, t Type) error {
	if v.null {
		b.AppendNull()
		return nil
	}
	switch b := b.(type) {
	case *array.ListBuilder:
		b.Append(true)
		for _, part := range v.parts {
			if err := appendValue(b.ValueBuilder(), part, *t.Elem); err != nil {
				return err
			}
		}
		return nil
	case *array.StructBuilder:
		b.Append(true)
		for i, part := range v.parts {
			if err := appendValue(b.FieldBuilder(i), part, t.Fields[i].Type); err != nil {
				return err
			}
		}
		return nil
	case interface{ StorageBuilder() array.Builder }: // of an extension type
		return appendValue(b.StorageBuilder(), v, t)
	}

	if appendInteger(b, v) || appendOther(b, v) {
		return nil
	}
	return fmt.Errorf("%s cannot be written", t)
}

func appendInteger(b array.Builder, v value) bool {
	switch b := b.(type) {
	case *array.Int8Builder:
		b.Append(int8(v.i))
	case *array.Int16Builder:
		b.Append(int16(v.i))
	case *array.Int32Builder:
		b.Append(int32(v.i))
	case *array.Int64Builder:
		b.Append(v.i)
	case *array.Uint8Builder:
		b.Append(uint8(v.u))
	case *array.Uint16Builder:
		b.Append(uint16(v.u))
	case *array.Uint32Builder:
		b.Append(uint32(v.u))
	case *array.Uint64Builder:
		b.Append(v.u)
	default:
		return false
	}
	return true
}

func appendOther(b array.Builder, v value) bool {
	switch b := b.(type) {
	case *array.StringBuilder:
		b.BinaryBuilder.Append(v.text)
	case *array.FixedSizeBinaryBuilder:
		b.Append(v.text)
	case *array.BooleanBuilder:
		b.Append(v.i != 0)
	case *array.Float32Builder:
		b.Append(float32(v.f))
	case *array.Float64Builder:
		b.Append(v.f)
	case *array.Decimal128Builder:
		b.Append(v.decimal)
	case *array.Date32Builder:
		b.Append(arrow.Date32(v.i))
	case *array.Time64Builder:
		b.Append(arrow.Time64(v.i))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(v.i))
	default:
		return false
	}
	return true
}
