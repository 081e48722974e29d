package duck_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
)

func arrowSession(t *testing.T) *duck.Session {
	t.Helper()
	session, err := duck.OpenData(t.Context(), duck.Data{Scope: relations.UTC,
		Limits: duck.Limits{Memory: 64 << 20, Threads: 1}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, session.Close()) })
	return session
}

// readArrow returns the schema and the rows of a stream as arrow-go writes them.
func readArrow(t *testing.T, stream io.Reader) (schema string, rows []string) {
	t.Helper()
	in, err := ipc.NewReader(stream)
	require.NoError(t, err)
	defer in.Release()
	for _, f := range in.Schema().Fields() {
		schema += fmt.Sprintf("%s %s\n", f.Name, f.Type)
	}
	for in.Next() {
		batch := in.RecordBatch()
		for i := range int(batch.NumRows()) {
			row := ""
			for n := range int(batch.NumCols()) {
				row += batch.Column(n).ValueStr(i) + "|"
			}
			rows = append(rows, row)
		}
	}
	require.NoError(t, in.Err())
	return schema, rows
}

func TestArrowHasEachType(t *testing.T) {
	t.Parallel()
	s := arrowSession(t)
	for query, want := range map[string][2]string{
		"SELECT 170141183460469231731687303715::HUGEINT AS h, sum(n) AS s FROM range(3) r (n)": {
			"h decimal(38, 0)\ns decimal(38, 0)\n", "170141183460469231731687303715|3|"},
		"SELECT (-0.5)::DECIMAL(3,1) AS a, 12345.678::DECIMAL(9,3) AS b, (-1234567890123.45)::DECIMAL(18,2) AS c": {
			"a decimal(3, 1)\nb decimal(9, 3)\nc decimal(18, 2)\n", "-0.5|12345.678|-1234567890123.45|"},
		"SELECT NULL AS n, true AS t, (-128)::TINYINT AS i, 255::UTINYINT AS u": {
			"n int32\nt bool\ni int8\nu uint8\n", "(null)|true|-128|255|"},
		"SELECT DATE '1969-12-31' AS d, TIME '01:02:03.000004' AS t, TIMESTAMP '2024-01-01 00:00:00.000001' AS s": {
			"d date32\nt time64[us]\ns timestamp[us]\n", "1969-12-31|01:02:03.000004|2024-01-01T00:00:00.000001|"},
		"SELECT TIMESTAMPTZ '2024-01-01 00:00:00+02' AS z, '2024-01-01'::TIMESTAMP_S AS s, " +
			"'2024-01-01 00:00:00.123456789'::TIMESTAMP_NS AS n": {
			"z timestamp[us, tz=UTC]\ns timestamp[s]\nn timestamp[ns]\n",
			"2023-12-31T22:00:00Z|2024-01-01T00:00:00|2024-01-01T00:00:00.123456789|"},
		"SELECT INTERVAL '-1 month -2 days -3 seconds' AS i": {
			"i month_day_nano_interval\n", `{"months":-1,"days":-2,"nanoseconds":-3000000000}|`},
		"SELECT '00112233-4455-6677-8899-aabbccddeeff'::UUID AS u, 'x'::BLOB AS b, '{\"a\": 1.10}'::JSON AS j": {
			"u extension<arrow.uuid>\nb binary\nj extension<arrow.json[storage_type=utf8]>\n",
			"00112233-4455-6677-8899-aabbccddeeff|eA==|{\"a\": 1.10}|"},
		"SELECT 'b'::ENUM('b', 'a') AS e, ['a', NULL]::ENUM('b', 'a')[] AS l": {
			"e utf8\nl list<item: utf8, nullable>\n", `b|["a",null]|`},
		"SELECT [[1, NULL], NULL, []] AS l, [1, 2]::INTEGER[2] AS a": {
			"l list<item: list<item: int32, nullable>, nullable>\na list<item: int32, nullable>\n",
			`[[1,null],null,[]]|[1,2]|`},
		"SELECT MAP {'b': {x: 1::HUGEINT}, 'a': NULL} AS m": {
			"m map<utf8, struct<x: decimal(38, 0) nullable>, items_nullable>\n", ""},
		"SELECT 1 AS a WHERE false":                       {"a int32\n", ""},
		"SELECT 'POINT(1 2)'::GEOMETRY('OGC:CRS84') AS g": {"g binary\n", "AQEAAAAAAAAAAADwPwAAAAAAAABA|"},
	} {
		var out bytes.Buffer
		done, err := s.WriteArrow(t.Context(), query, &out, duck.ArrowLimits{})
		require.NoError(t, err, query)
		schema, rows := readArrow(t, &out)
		require.Len(t, rows, int(done.Rows), query)
		t.Log(schema, rows)
		if want[1] != "" {
			require.Equal(t, want[1], rows[0], query)
			require.Equal(t, want[0], schema, query)
		}
	}
}

func TestArrowRefusesWhatItCannotHold(t *testing.T) {
	t.Parallel()
	s := arrowSession(t)
	for query, want := range map[string]string{
		"SELECT '12:00:00+02'::TIMETZ AS z":                                "Arrow has no type for values of type TIME",
		"SELECT ['101'::BIT] AS b":                                         "Arrow has no type for values of type BIT",
		"SELECT 170141183460469231731687303715884105727 AS h":              "does not fit DECIMAL(38,0)",
		"SELECT INTERVAL '3000000 hours' AS i":                             "292 years",
		"SELECT 1::HUGEINT AS a UNION ALL SELECT error('broken')":          "broken",
		"SELECT if(n < 150000, n, error('late')) FROM range(200000) r (n)": "late",
	} {
		_, err := s.WriteArrow(t.Context(), query, io.Discard, duck.ArrowLimits{})
		require.ErrorContains(t, err, want, query)
		if want != "broken" && want != "late" {
			require.Equal(t, fault.Invalid, fault.KindOf(err), query)
		}
	}
	_, err := s.WriteArrow(t.Context(), "SELECT 1 AS still", io.Discard, duck.ArrowLimits{})
	require.NoError(t, err)
}

func TestArrowHasTheOrderAndAllRows(t *testing.T) {
	t.Parallel()
	s := arrowSession(t)
	var out bytes.Buffer
	done, err := s.WriteArrow(t.Context(), "SELECT n, CASE WHEN n % 3 > 0 THEN [n, NULL] END AS l "+
		"FROM range(200000) r (n) ORDER BY n DESC", &out, duck.ArrowLimits{})
	require.NoError(t, err)
	require.EqualValues(t, 200_000, done.Rows)
	in, err := ipc.NewReader(&out)
	require.NoError(t, err)
	next := int64(200_000)
	for in.Next() {
		n := in.RecordBatch().Column(0).(*array.Int64)
		l := in.RecordBatch().Column(1).(*array.List)
		for i := range n.Len() {
			next--
			require.Equal(t, next, n.Value(i))
			require.Equal(t, next%3 == 0, l.IsNull(i))
			from, to := l.ValueOffsets(i)
			if next%3 > 0 {
				require.EqualValues(t, 2, to-from)
				require.Equal(t, next, l.ListValues().(*array.Int64).Value(int(from)))
			}
		}
	}
	require.Zero(t, next)
}

func TestArrowStopsAtItsLimits(t *testing.T) {
	t.Parallel()
	s := arrowSession(t)
	for name, test := range map[string]struct {
		query     string
		most      duck.ArrowLimits
		rows      int64
		truncated bool
	}{
		"all":     {"FROM range(10)", duck.ArrowLimits{Rows: 10}, 10, false},
		"fewer":   {"FROM range(5000)", duck.ArrowLimits{Rows: 4999}, 4999, true},
		"one":     {"FROM range(2)", duck.ArrowLimits{Rows: 1}, 1, true},
		"nothing": {"SELECT 1 WHERE false", duck.ArrowLimits{Rows: 1, Bytes: 1}, 0, false},
		"bytes": {"SELECT repeat('x', 1000) AS x FROM range(10000)", duck.ArrowLimits{Rows: 100_000, Bytes: 1 << 20},
			-1, true},
	} {
		var out bytes.Buffer
		done, err := s.WriteArrow(t.Context(), test.query, &out, test.most)
		require.NoError(t, err, name)
		require.Equal(t, test.truncated, done.Truncated, name)
		if size := out.Len(); test.rows < 0 {
			require.Less(t, size, 1<<20+4096)
			require.Greater(t, done.Rows, int64(900))
			test.rows = done.Rows
		}
		_, rows := readArrow(t, &out)
		require.Len(t, rows, int(test.rows), name)
	}
	_, err := s.WriteArrow(t.Context(), "SELECT repeat('x', 3000000)", io.Discard, duck.ArrowLimits{Bytes: 1 << 20})
	require.Equal(t, fault.TooLarge, fault.KindOf(err))
}

func TestArrowEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := arrowSession(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	first := firstWrite(func() { cancel(gone) })
	_, err := s.WriteArrow(ctx, "SELECT a.range FROM range(100000000) a, range(1000) b", first, duck.ArrowLimits{})
	require.ErrorIs(t, err, gone)
}

// TestArrowNeedsNoMemoryForAllRows writes 800 MB in a session that has 64.
func TestArrowNeedsNoMemoryForAllRows(t *testing.T) {
	t.Parallel()
	s := arrowSession(t)
	var written, most uint64
	var now runtime.MemStats
	_, err := s.WriteArrow(t.Context(), "SELECT n, repeat('x', 100) AS x FROM range(8000000) r (n)",
		writer(func(p []byte) {
			written += uint64(len(p))
			if len(p) > 1<<20 {
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapAlloc)
			}
		}), duck.ArrowLimits{})
	require.NoError(t, err)
	require.Greater(t, written, uint64(800<<20))
	require.Less(t, most, uint64(256<<20), "the heap of all tests at once")
}

type writer func(p []byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

// firstWrite calls then at the first write.
func firstWrite(then func()) io.Writer {
	return writer(func([]byte) {
		then()
		then = func() {}
	})
}

// BenchmarkArrow writes a million rows of four columns.
func BenchmarkArrow(b *testing.B) {
	session, err := duck.OpenData(b.Context(), duck.Data{Scope: relations.UTC, Limits: duck.Limits{Threads: 1}})
	require.NoError(b, err)
	for b.Loop() {
		_, err := session.WriteArrow(b.Context(), "SELECT n, n::DOUBLE AS d, 'text ' || n AS t, n::DECIMAL(18,2) AS c "+
			"FROM range(1000000) r (n)", io.Discard, duck.ArrowLimits{})
		require.NoError(b, err)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4e6, "ns/value")
}
