package duck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	bindings "github.com/duckdb/duckdb-go-bindings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// ArrowLimits bound what WriteArrow writes. What is zero is not limited.
type ArrowLimits struct {
	Rows  int64
	Bytes int64 // of the values, roughly
}

// Streamed is what WriteArrow wrote.
type Streamed struct {
	Columns   []Column
	Rows      int64
	Truncated bool // there are more rows than a limit allows
}

// WriteArrow writes the query's rows, in the query's order, as a stream of Arrow's IPC format. Its memory does not grow
// with the rows. A value is written exactly or is a fault.Invalid that names its column.
func (s *Session) WriteArrow(ctx context.Context, query string, to io.Writer, most ArrowLimits) (Streamed, error) {
	return s.writeBatches(ctx, query, most, func(schema *arrow.Schema) (batches, error) {
		return ipc.NewWriter(to, ipc.WithSchema(schema)), nil
	})
}

// writeBatches writes the query's rows to what begin returns for their schema.
func (s *Session) writeBatches(ctx context.Context, query string, most ArrowLimits,
	begin func(schema *arrow.Schema) (batches, error)) (Streamed, error) {
	var done Streamed
	columns, err := s.Describe(ctx, query)
	if err != nil {
		return done, err
	}
	done.Columns = columns
	w, err := newArrowWriter(columns, most, begin)
	if err != nil {
		return done, err
	}
	defer w.builder.Release()

	query = w.query(query)
	if most.Rows > 0 {
		query = fmt.Sprintf("SELECT * FROM (%s\n) LIMIT %d", query, most.Rows+1)
	}
	err = s.chunks(ctx, query, w.add)
	if place := unfit.FindStringSubmatch(fmt.Sprint(err)); err != nil && place != nil && isDuckDB(err) {
		i, _ := strconv.Atoi(place[1])
		err = fault.New(fault.Invalid, "column %q has a value of type %s that does not fit %s, as which it is written",
			columns[i].Name, columns[i].Type, w.types[i]).
			WithHint("write CAST(%[1]s AS VARCHAR) AS %[1]s", sqltext.Quote(columns[i].Name))
	}
	if err != nil {
		return done, err
	}
	done.Rows, done.Truncated = w.rows, w.truncated
	return done, w.close()
}

// copyToArrow is WriteArrow to a file.
func (s *Session) copyToArrow(ctx context.Context, query, file string) error {
	to, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = s.WriteArrow(ctx, query, to, ArrowLimits{})
	return errors.Join(err, to.Close())
}

// Sizes of batches: what a reader has to have in memory at once.
const (
	batchRows  = 64 << 10
	batchBytes = 4 << 20
	stepRows   = 64 // rows between two looks at the bytes
)

// batches takes batches of rows.
type batches interface {
	Write(batch arrow.RecordBatch) error
	Close() error
}

// arrowWriter gathers rows into batches.
type arrowWriter struct {
	types     []sqltext.Type // as which the columns are written
	columns   []Column
	most      ArrowLimits
	out       batches
	builder   *array.RecordBuilder
	pending   int64 // rows in the builder
	rows      int64
	bytes     int64 // of all batches
	truncated bool
}

func newArrowWriter(columns []Column, most ArrowLimits,
	begin func(schema *arrow.Schema) (batches, error)) (*arrowWriter, error) {
	w := &arrowWriter{columns: columns, types: make([]sqltext.Type, len(columns)), most: most}

	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		t, err := sqltext.InArrow(c)
		if err != nil {
			return nil, err
		}
		w.types[i] = t
		fields[i] = arrow.Field{Name: c.Name, Type: arrowType(t), Nullable: true}
		if sqltext.IsGeometry(sqltext.TypeOf(c.Type)) {
			fields[i].Metadata = arrow.NewMetadata([]string{"ARROW:extension:name", "ARROW:extension:metadata"},
				[]string{"geoarrow.wkb", `{"crs":"OGC:CRS84"}`})
		}
	}

	schema := arrow.NewSchema(fields, nil)
	out, err := begin(schema)
	if err != nil {
		return nil, err
	}
	w.out = out
	w.builder = array.NewRecordBuilder(memory.DefaultAllocator, schema)
	return w, nil
}

// add appends the rows of a chunk.
func (w *arrowWriter) add(chunk bindings.DataChunk) error {
	rows := int64(bindings.DataChunkGetSize(chunk))
	vectors := make([]vector, len(w.types))
	for i, t := range w.types {
		vectors[i] = vectorOf(bindings.DataChunkGetVector(chunk, bindings.IdxT(i)), t)
	}

	for from := int64(0); from < rows; {
		n := min(stepRows, rows-from)
		if w.most.Rows > 0 {
			n = min(n, w.most.Rows-w.rows)
		}
		if n == 0 {
			w.truncated = true
			return errEnough
		}
		for i := range vectors {
			if err := vectors[i].appendTo(w.builder.Field(i), int(from), int(n)); err != nil {
				return fmt.Errorf("column %q: %w", w.columns[i].Name, err)
			}
		}
		from, w.pending, w.rows = from+n, w.pending+n, w.rows+n

		if err := w.full(); err != nil {
			return err
		}
	}
	return nil
}

// full writes the batch if it is large enough, and ends the reading if there are more bytes than allowed.
func (w *arrowWriter) full() error {
	size := int64(0)
	for _, b := range w.builder.Fields() {
		size += sizeOf(b)
	}

	if w.most.Bytes > 0 && w.bytes+size > w.most.Bytes {
		if w.bytes == 0 {
			return fault.New(fault.TooLarge, "the first %d rows alone have more than the %d MB that an answer may have",
				w.pending, w.most.Bytes>>20)
		}
		w.truncated = true
		w.rows -= w.pending
		w.builder.NewRecordBatch().Release()
		w.pending = 0
		return errEnough
	}
	if size < batchBytes && w.pending < batchRows && (w.most.Bytes == 0 || size < w.most.Bytes/16) {
		return nil
	}
	w.bytes += size
	return w.flush()
}

func (w *arrowWriter) flush() error {
	batch := w.builder.NewRecordBatch()
	defer batch.Release()
	w.pending = 0
	return w.out.Write(batch)
}

func (w *arrowWriter) close() error {
	if w.pending > 0 {
		if err := w.flush(); err != nil {
			return err
		}
	}
	return w.out.Close() // which writes the schema of a stream without rows
}

// query returns the query with its columns in the types that are written.
func (w *arrowWriter) query(query string) string {
	values, names, plain := make([]string, len(w.columns)), make([]string, len(w.columns)), true
	for i, c := range w.columns {
		names[i] = fmt.Sprintf("c%d", i)
		values[i] = names[i]
		switch t := sqltext.TypeOf(c.Type); {
		case sqltext.IsGeometry(t):
			values[i], plain = "ST_AsWKB("+names[i]+")", false
		case t.String() != w.types[i].String():
			values[i], plain = casting(names[i], w.types[i].String(), i), false
		}
	}
	if plain {
		return query
	}
	return fmt.Sprintf("SELECT %s FROM (%s\n) AS q (%s)", strings.Join(values, ", "), query, strings.Join(names, ", "))
}

// arrowScalars are the types of Arrow whose values are those of a type of DuckDB.
var arrowScalars = map[string]arrow.DataType{
	"BOOLEAN": arrow.FixedWidthTypes.Boolean, "TINYINT": arrow.PrimitiveTypes.Int8,
	"SMALLINT": arrow.PrimitiveTypes.Int16, "INTEGER": arrow.PrimitiveTypes.Int32,
	"BIGINT": arrow.PrimitiveTypes.Int64, "UTINYINT": arrow.PrimitiveTypes.Uint8,
	"USMALLINT": arrow.PrimitiveTypes.Uint16, "UINTEGER": arrow.PrimitiveTypes.Uint32,
	"UBIGINT": arrow.PrimitiveTypes.Uint64, "FLOAT": arrow.PrimitiveTypes.Float32,
	"DOUBLE": arrow.PrimitiveTypes.Float64, "VARCHAR": arrow.BinaryTypes.String, "BLOB": arrow.BinaryTypes.Binary,
	"DATE": arrow.FixedWidthTypes.Date32, "TIME": arrow.FixedWidthTypes.Time64us,
	"TIME_NS": arrow.FixedWidthTypes.Time64ns, "INTERVAL": arrow.FixedWidthTypes.MonthDayNanoInterval,
	"TIMESTAMP":    &arrow.TimestampType{Unit: arrow.Microsecond},
	"TIMESTAMP_S":  &arrow.TimestampType{Unit: arrow.Second},
	"TIMESTAMP_MS": &arrow.TimestampType{Unit: arrow.Millisecond},
	"TIMESTAMP_NS": &arrow.TimestampType{Unit: arrow.Nanosecond},

	"TIMESTAMP WITH TIME ZONE": &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"},
	"UUID":                     extensions.NewUUIDType(),
	"JSON":                     jsonInArrow,
}

var jsonInArrow, _ = extensions.NewJSONType(arrow.BinaryTypes.String)

// arrowScalar returns the Arrow type of a scalar; nil if there is none.
func arrowScalar(s sqltext.Type) arrow.DataType {
	if width, scale, ok := decimalOf(s); ok {
		return &arrow.Decimal128Type{Precision: width, Scale: scale}
	}
	return arrowScalars[s.Name]
}

func decimalOf(s sqltext.Type) (width, scale int32, ok bool) {
	if !strings.HasPrefix(s.Name, "DECIMAL(") {
		return 0, 0, false
	}
	_, err := fmt.Sscanf(s.Name, "DECIMAL(%d,%d)", &width, &scale)
	return width, scale, err == nil
}

// arrowType returns the Arrow type of a type that sqltext.InArrow returned.
func arrowType(t sqltext.Type) arrow.DataType {
	switch t.Kind {
	case sqltext.ListType:
		return arrow.ListOf(arrowType(t.Fields[0].Type))
	case sqltext.MapType:
		return arrow.MapOf(arrowType(t.Fields[0].Type), arrowType(t.Fields[1].Type))
	case sqltext.StructType:
		fields := make([]arrow.Field, len(t.Fields))
		for i, f := range t.Fields {
			fields[i] = arrow.Field{Name: f.Name, Type: arrowType(f.Type), Nullable: true}
		}
		return arrow.StructOf(fields...)
	}
	return arrowScalar(t)
}
