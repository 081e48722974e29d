package proof_test

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// arrowRows reads a stream of Arrow, with values as the other ways out have them: numbers as their digits, instants and
// bytes as DuckDB's text.
func arrowRows(t *testing.T, stream io.Reader) (rows []any) {
	t.Helper()
	in, err := ipc.NewReader(stream)
	require.NoError(t, err)
	defer in.Release()
	for in.Next() {
		batch := in.RecordBatch()
		for i := range int(batch.NumRows()) {
			var row []any
			for _, column := range batch.Columns() {
				row = append(row, arrowValue(t, column, i))
			}
			rows = append(rows, row)
		}
	}
	require.NoError(t, in.Err())
	return rows
}

func arrowValue(t *testing.T, from arrow.Array, i int) any {
	t.Helper()
	if from.IsNull(i) {
		return nil
	}
	switch a := from.(type) {
	case *array.Boolean:
		return a.Value(i)
	case *array.String:
		return a.Value(i)
	case *array.Binary:
		return bytesText(a.Value(i))
	case *extensions.JSONArray:
		return tokens(t, []byte(a.Storage().(*array.String).Value(i)))
	case *extensions.UUIDArray:
		id, err := uuid.FromBytes(a.Storage().(*array.FixedSizeBinary).Value(i))
		require.NoError(t, err)
		return id.String()
	case *array.Decimal128:
		return number(a.Value(i).ToString(a.DataType().(*arrow.Decimal128Type).Scale))
	case *array.Float32:
		return number(strconv.FormatFloat(float64(a.Value(i)), 'g', -1, 32))
	case *array.Float64:
		return number(strconv.FormatFloat(a.Value(i), 'g', -1, 64))
	case *array.Map:
		object := pairs{}
		from, to := a.ValueOffsets(i)
		for n := int(from); n < int(to); n++ {
			key := arrowValue(t, a.Keys(), n)
			object = append(object, pair{fmt.Sprint(key), arrowValue(t, a.Items(), n)})
		}
		return object
	case *array.List:
		list := []any{}
		from, to := a.ValueOffsets(i)
		for n := int(from); n < int(to); n++ {
			list = append(list, arrowValue(t, a.ListValues(), n))
		}
		return list
	case *array.Struct:
		object := pairs{}
		for n := range a.NumField() {
			object = append(object, pair{a.DataType().(*arrow.StructType).Field(n).Name, arrowValue(t, a.Field(n), i)})
		}
		return object
	}
	return arrowMoment(t, from, i)
}

// arrowMoment returns what is counted: times, and whole numbers.
func arrowMoment(t *testing.T, from arrow.Array, i int) any {
	t.Helper()
	switch a := from.(type) {
	case *array.Date32:
		day := int64(a.Value(i))
		if day == math.MaxInt32 || day == -math.MaxInt32 {
			return infinite(day)
		}
		return dateText(time.Unix(day*86400, 0).UTC())
	case *array.Time64:
		return clockText(int64(a.Value(i)) * 1000)
	case *array.Timestamp:
		of := a.DataType().(*arrow.TimestampType)
		n := int64(a.Value(i))
		if n == math.MaxInt64 || n == -math.MaxInt64 {
			return infinite(n)
		}
		at, nanos := time.UnixMicro(n).UTC(), int64(0)
		if of.Unit == arrow.Nanosecond {
			at = time.Unix(0, n).UTC()
		}
		nanos = int64(at.Hour()*3600+at.Minute()*60+at.Second())*1e9 + int64(at.Nanosecond())
		text := dateText(at) + " " + clockText(nanos)
		if of.TimeZone != "" {
			require.Equal(t, "UTC", of.TimeZone)
			text += "+00"
		}
		return text
	case *array.MonthDayNanoInterval:
		return intervalText(a.Value(i))
	}
	text := from.ValueStr(i)
	_, err := strconv.ParseFloat(text, 64)
	require.NoError(t, err, "%s", from.DataType())
	return number(text)
}

func infinite(n int64) string {
	if n < 0 {
		return "-infinity"
	}
	return "infinity"
}

func dateText(at time.Time) string {
	if at.Year() <= 0 {
		return fmt.Sprintf("%04d-%02d-%02d (BC)", 1-at.Year(), at.Month(), at.Day())
	}
	return fmt.Sprintf("%04d-%02d-%02d", at.Year(), at.Month(), at.Day())
}

func clockText(nanos int64) string {
	seconds := nanos / 1e9
	text := fmt.Sprintf("%02d:%02d:%02d", seconds/3600, seconds/60%60, seconds%60)
	if nanos %= 1e9; nanos > 0 {
		text += "." + strings.TrimRight(fmt.Sprintf("%09d", nanos), "0")
	}
	return text
}

func intervalText(v arrow.MonthDayNanoInterval) string {
	var parts []string
	for _, part := range []struct {
		n    int32
		name string
	}{{v.Months / 12, "year"}, {v.Months % 12, "month"}, {v.Days, "day"}} {
		switch {
		case part.n == 1:
			parts = append(parts, "1 "+part.name)
		case part.n != 0:
			parts = append(parts, fmt.Sprintf("%d %ss", part.n, part.name))
		}
	}
	if v.Nanoseconds != 0 || len(parts) == 0 {
		parts = append(parts, clockText(v.Nanoseconds))
	}
	return strings.Join(parts, " ")
}

func bytesText(b []byte) string {
	text := ""
	for _, c := range b {
		if c >= ' ' && c <= '~' && !strings.ContainsRune(`\'"`, rune(c)) {
			text += string(rune(c))
		} else {
			text += fmt.Sprintf(`\x%02X`, c)
		}
	}
	return text
}
