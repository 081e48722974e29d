package operators_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators"
)

// writeInstants writes nanoseconds since 1970 as instants, and as instants in lists in structs.
func writeInstants(t *testing.T, path string, values ...int64) {
	t.Helper()
	zoned := &arrow.TimestampType{Unit: arrow.Nanosecond, TimeZone: "UTC"}
	local := &arrow.TimestampType{Unit: arrow.Nanosecond}
	of := arrow.StructOf(arrow.Field{Name: "all", Type: arrow.ListOf(zoned)}, arrow.Field{Name: "here", Type: local})
	schema := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "at", Type: zoned},
		{Name: "inside", Type: of}, {Name: "here", Type: local}}, nil)

	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	inside := b.Field(2).(*array.StructBuilder)
	list := inside.FieldBuilder(0).(*array.ListBuilder)
	for i, v := range values {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(v / 1000 * 1000))
		inside.Append(true)
		list.Append(true)
		list.ValueBuilder().(*array.TimestampBuilder).Append(arrow.Timestamp(v))
		inside.FieldBuilder(1).(*array.TimestampBuilder).Append(arrow.Timestamp(7))
		b.Field(3).(*array.TimestampBuilder).Append(arrow.Timestamp(7))
	}
	record := b.NewRecordBatch()
	defer record.Release()

	file, err := os.Create(path)
	require.NoError(t, err)
	w, err := pqarrow.NewFileWriter(schema, file, parquet.NewWriterProperties(parquet.WithVersion(parquet.V2_LATEST)),
		pqarrow.DefaultWriterProps())
	require.NoError(t, err)
	require.NoError(t, w.Write(record))
	require.NoError(t, w.Close())
}

// An instant has microseconds: what a Parquet file has beyond them is refused, and not cut. Local times have
// nanoseconds.
func TestInstantsFinerThanMicroseconds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values []int64
		fails  string
	}{
		"whole":  {[]int64{1_000, -1_000, 0}, ""},
		"finer":  {[]int64{1_000, 1_001}, `has the instant {'all': ['1970-01-01 00:00:00.000001001']`},
		"before": {[]int64{-1}, `which is finer than microseconds`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(_ context.Context, task *operators.Task) (operators.Result, error) {
				writeInstants(t, filepath.Join(task.OutputDirs[0], "x.parquet"), c.values...)
				return operators.Result{}, nil
			}
			out := newWorld(t, broken{run}).run(t, assignment("broken", nil))
			if c.fails == "" {
				require.NoError(t, out.Err)
				require.Len(t, out.Written, 1)
				return
			}
			require.ErrorContains(t, out.Err, `output "out": x.parquet: column inside`)
			require.ErrorContains(t, out.Err, c.fails)
			require.False(t, out.Retryable)
		})
	}
}
