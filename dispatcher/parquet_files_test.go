package dispatcher_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

// parquetDays is a source of Parquet files, with what else its config says.
func parquetDays(config string) string { return sourceOf("parquet", "format: parquet"+config) }

// errorOf returns the error of the last task of a day.
func errorOf(w *dispatchertest.World, day string) (text string) {
	w.Row(`SELECT coalesce(error_message, '') FROM tasks WHERE id = $1`, w.TaskOf("raw", day))(&text)
	return text
}

// A declared type changes no value: what does not fit is an error that names file, row, column and value.
func TestDeclaredTypesOfParquetLoseNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ rows, declared, want string }{
		"a fraction":         {"SELECT 1 AS id, v FROM (VALUES (2), (1.5)) t(v)", "BIGINT", `row 2, column v: "1.5" does not fit BIGINT`},
		"a number too large": {"SELECT 1 AS id, 9007199254740993 AS v", "DOUBLE", `row 1, column v: "9007199254740993" does not fit DOUBLE`},
		"a time of the day":  {"SELECT 1 AS id, TIMESTAMP '2026-01-01 08:00' AS v", "DATE", `row 1, column v: "2026-01-01 08:00:00" does not fit DATE`},
		"leading zeros":      {"SELECT 1 AS id, '007' AS v", "BIGINT", `row 1, column v: "007" does not fit BIGINT`},
		"no cast":            {"SELECT 1 AS id, v FROM (VALUES (NULL), (7)) t(v)", "DATE", `row 2, column v: "7" does not fit DATE`},
		"no such type":       {"SELECT 1 AS id, 7 AS v", "NUMBER", "NUMBER"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Serve(parquetDays(", types: { v: " + c.declared + " }"))
			w.Drop("2026-01-01.parquet", parquetOf(t, c.rows))
			w.Poll()
			w.Settle()
			require.Contains(t, errorOf(w, "2026-01-01"), c.want)
			require.NotContains(t, errorOf(w, "2026-01-01"), w.Scratch)
			require.Empty(t, w.Read("fed_raw"))
		})
	}
}

// A declared type that holds every value is the type of the dataset.
func TestDeclaredTypesOfParquet(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2026-01-01.parquet", parquetOf(t, "SELECT 2 AS id, 7.0 AS v UNION ALL SELECT 1, NULL"))
	w.Serve(parquetDays(", types: { v: BIGINT }"))
	require.Equal(t, []string{"1,<nil>", "2,7"}, w.Read("fed_raw")["2026-01-01"])
}
