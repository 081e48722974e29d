package query

import (
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
)

func TestEnginesStreamArrow(t *testing.T) {
	t.Parallel()
	files := map[string]string{"sales": table(t, "SELECT range AS n, repeat('x', 100) AS text FROM range(200000)")}
	for name, test := range map[string]struct {
		sql       string
		rows      int
		limit     int
		bytes     int64
		truncated bool
	}{
		"all":       {"FROM sales", 200_000, 1_000_000, 1 << 30, false},
		"no rows":   {"FROM sales WHERE n < 0", 0, 10, 1 << 20, false},
		"few":       {"FROM sales ORDER BY n", 10, 10, 1 << 20, true},
		"few bytes": {"FROM sales", -1, 1_000_000, 1 << 20, true},
	} {
		var stream bytes.Buffer
		limits := DefaultLimits
		limits.Rows, limits.Bytes = test.limit, test.bytes
		out, err := inEngineTo(t.Context(), t, test.sql, limits, files, &stream)
		require.NoError(t, err, name)
		require.Equal(t, test.truncated, out.Truncated, name)
		require.Equal(t, []string{"n", "text"}, out.Read["sales"], name)
		require.Empty(t, out.List)

		in, err := ipc.NewReader(&stream)
		require.NoError(t, err, name)
		require.Equal(t, 2, in.Schema().NumFields(), name)
		rows := 0
		for in.Next() {
			numbers := in.RecordBatch().Column(0).(*array.Int64)
			for i := range numbers.Len() {
				require.EqualValues(t, rows, numbers.Value(i))
				rows++
			}
		}
		require.NoError(t, in.Err(), name)
		require.Equal(t, rows, out.Count, name)
		if test.rows >= 0 {
			require.Equal(t, test.rows, rows, name)
		}
	}
}

func TestArrowOfEnginesFails(t *testing.T) {
	t.Parallel()
	files := map[string]string{"sales": table(t, "SELECT range AS n FROM range(200000)")}
	for sql, want := range map[string]string{
		"SELECT if(n < 190000, n, error('late')) AS n FROM sales": "late",
		"SELECT '12:00:00+02'::TIMETZ AS z":                       "Arrow has no type",
		"SELECT repeat('x', 20000000)":                            "more than the 16 MB",
		"SELECT nope FROM sales":                                  "nope",
		"SELECT 1 FROM FROM":                                      "syntax error",
	} {
		var stream bytes.Buffer
		limits := DefaultLimits
		limits.Rows = 1_000_000
		_, err := inEngineTo(t.Context(), t, sql, limits, files, &stream)
		require.ErrorContains(t, err, want, sql)
		require.Contains(t, []fault.Kind{fault.Invalid, fault.TooLarge}, fault.KindOf(err), sql)
	}
}
