package dispatcher_test

import (
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
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
		"a truth value":      {"SELECT 1 AS id, true AS v", "BIGINT", `row 1, column v: "true" does not fit BIGINT`},
		"a moment": {"SELECT 1 AS id, TIMESTAMPTZ '2024-07-01 00:00:00+02' AS v", "TIMESTAMP",
			`row 1, column v: "2024-06-30 22:00:00+00" does not fit TIMESTAMP`},
		"moments in lists": {"SELECT 1 AS id, [{t: TIMESTAMPTZ '2024-07-01 00:00:00+02'}] AS v", `"STRUCT(t TIMESTAMP)[]"`,
			`row 1, column v: "[{'t': '2024-06-30 22:00:00+00'}]" does not fit STRUCT(t TIMESTAMP)[]`},
		"text for JSON": {"SELECT 1 AS id, '5' AS v", "JSON", `row 1, column v: "5" does not fit JSON`},
		"no such type":  {"SELECT 1 AS id, 7 AS v", "NUMBER", "NUMBER"},
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

// The first file's columns and types stand. Later files fit by casts that lose nothing, or an error says which value
// does not; readers see one type.
func TestTheFirstParquetFileStands(t *testing.T) {
	t.Parallel()
	for _, storage := range []string{"parquet", "postgres"} {
		t.Run(storage, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Drop("2026-01-01.parquet", parquetOf(t, "SELECT 1 AS id, 9::BIGINT AS v"))
			yaml := dispatchertest.Edit(parquetDays(""), "max_attempts: 1", "max_attempts: 1\n    storage: "+storage)
			w.Serve(yaml)
			for day, rows := range map[string]string{
				"2026-01-02": "SELECT 2 AS id, 10::DOUBLE AS v",
				"2026-01-03": "SELECT 3 AS id, v::DOUBLE AS v FROM (VALUES (8), (1.5)) t(v)",
				"2026-01-04": "SELECT 3 AS id, 'x' AS v",
				"2026-01-05": "SELECT 3 AS id",
				"2026-01-06": "SELECT 3 AS id, 4::BIGINT AS v, 5 AS w",
				"2026-01-07": "SELECT 7.5 AS id, 'no row' AS v WHERE false",
				"2026-01-08": "SELECT '11' AS v, 8 AS id",
			} {
				w.Drop(day+".parquet", parquetOf(t, rows))
			}
			w.Poll()
			w.Settle()

			for day, want := range map[string]string{
				"2026-01-03": `2026-01-03.parquet row 2, column v: "1.5" does not fit BIGINT`,
				"2026-01-04": `2026-01-04.parquet row 1, column v: "x" does not fit BIGINT`,
				"2026-01-05": `2026-01-05.parquet: column "v" is missing; the file has id`,
				"2026-01-06": `2026-01-06.parquet: column "w" is new; the dataset has id, v`,
			} {
				require.Contains(t, errorOf(w, day), want)
			}
			require.Equal(t, map[string][]string{"2026-01-01": {"1,9"}, "2026-01-02": {"2,10"}, "2026-01-07": {},
				"2026-01-08": {"8,11"}}, w.Read("fed_raw"))
			require.Equal(t, []string{"11"}, w.Read("fed_sums")["all"])
			var reading string
			w.Row(`SELECT reading ->> 'inferred_from' FROM dataset_readings`)(&reading)
			require.Equal(t, "2026-01-01.parquet", reading)
		})
	}
}

// As the errors say: a file may lack optional columns, and only `columns` are kept.
func TestOptionalColumnsOfParquet(t *testing.T) {
	t.Parallel()
	for config, want := range map[string][2]string{
		", types: { w: BIGINT }, optional_columns: [v, w]": {"1,9,<nil>", "2,<nil>,3"},
		", columns: [v, id], optional_columns: [v]":        {"9,1", "<nil>,2"},
		", columns: [v, w], optional_columns: [v, w]":      {"9,<nil>", "<nil>,3"},
	} {
		t.Run(config, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Drop("2026-01-01.parquet", parquetOf(t, "SELECT 1 AS id, 9 AS v"))
			w.Serve(parquetDays(config))
			w.Drop("2026-01-02.parquet", parquetOf(t, "SELECT 2 AS id, 3 AS w"))
			w.Poll()
			w.Settle()
			require.Equal(t, map[string][]string{"2026-01-01": {want[0]}, "2026-01-02": {want[1]}}, w.Read("fed_raw"))
		})
	}
}

// All files of a partition have the columns of the first, in the order of their names.
func TestParquetFilesOfOnePartition(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	yaml := dispatchertest.Edit(parquetDays(""), "{date}.parquet", "{date}-*.parquet")
	w.Drop("2026-01-01-a.parquet", parquetOf(t, "SELECT 1 AS id, 9::BIGINT AS v"))
	w.Drop("2026-01-01-b.parquet", parquetOf(t, "SELECT 10.0 AS v, 2 AS id"))
	w.Serve(yaml)
	require.Equal(t, []string{"1,9", "2,10"}, w.Read("fed_raw")["2026-01-01"])

	w.Drop("2026-01-01-b.parquet", parquetOf(t, "SELECT 10.5 AS v, 2 AS id"))
	w.Poll()
	w.Settle()
	require.Contains(t, errorOf(w, "2026-01-01"), `2026-01-01-b.parquet row 1, column v: "10.5" does not fit BIGINT`)
	require.Equal(t, []string{"1,9", "2,10"}, w.Read("fed_raw")["2026-01-01"])
}

// A column without a type, as some programs write one of NULLs only, gets its type from the file that shows one.
func TestAParquetColumnOfNullsGetsItsTypeLater(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2026-01-01.parquet", nullsOf(t))
	w.Serve(parquetDays(""))
	w.Drop("2026-01-02.parquet", parquetOf(t, "SELECT 1 AS id, v::BIGINT AS v FROM (VALUES (9), (10)) t(v)"))
	w.Poll()
	w.Settle()
	w.Drop("2026-01-03.parquet", nullsOf(t))
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"10"}, w.Read("fed_sums")["all"])
	require.Equal(t, []string{"1,<nil>"}, w.Read("fed_raw")["2026-01-01"])
	require.Equal(t, []string{"1,<nil>"}, w.Read("fed_raw")["2026-01-03"])
}

// nullsOf returns a file whose column v has no type.
func nullsOf(t *testing.T) string {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "v", Type: arrow.Null, Nullable: true}}, nil)
	rows := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer rows.Release()
	rows.Field(0).(*array.Int64Builder).Append(1)
	rows.Field(1).AppendNull()
	record := rows.NewRecordBatch()
	defer record.Release()

	var out bytes.Buffer
	w, err := pqarrow.NewFileWriter(schema, &out, nil, pqarrow.DefaultWriterProps())
	require.NoError(t, err)
	require.NoError(t, w.Write(record))
	require.NoError(t, w.Close())
	return out.String()
}
