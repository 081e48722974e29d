package python_test

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testserver"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/storage"
)

const parquetDAG = `name: parquet
jobs:
  - name: uploaded
    runtime: python
    operator: handler
    source: { kind: manual }
    max_attempts: 1
    config: { handler: uploaded }
publish:
  uploaded: { from: { job: uploaded } }
`

// A frame of polars is written by its write_parquet. The package nodejs-polars has the same writer: here it writes each
// type that it has, and a handler uploads the files.
func TestParquetOfPolars(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	program, err := filepath.Abs("../../tools/polars/write.js")
	require.NoError(t, err)
	polars, err := testserver.Program("polars", "node", program, folder)
	require.NoError(t, err)
	said, err := polars.CombinedOutput()
	require.NoError(t, err, "%s", said)

	w := newWorld(t)
	w.serve(t, parquetDAG)
	w.worker(t, "frames.py", "FRAMES=json")
	upload := func(file, status string) string {
		payload := jsonOf(t, filepath.Join(folder, file+".parquet"))
		return w.ended(t, w.run(t, "parquet/uploaded", payload), status).Error
	}

	upload("all", "Completed")
	all := w.preview(t, "uploaded")
	wanted := polarsTypes(t)
	require.Equal(t, wanted.Columns, all.Columns)
	require.JSONEq(t, jsonOf(t, wanted.Rows), jsonOf(t, all.Rows))
	upload("none", "Completed")
	none := w.preview(t, "uploaded")
	require.Equal(t, wanted.Columns, none.Columns, "also without rows")
	require.Empty(t, none.Rows)

	// The SDK casts times with a zone to microseconds, and refuses the other types but bytes and NULLs without a type.
	for file, wanted := range map[string]string{
		"binary":   `[["1"], ["2"], [null]]`,
		"untyped":  `[[null], [null], [null]]`,
		"ns_zoned": `[["2026-01-05 09:00:00.000025+00"], ["1969-12-31 23:59:59.999999+00"], [null]]`,
		"duration": `[[1], [2], [null]]`,
		"hugeint":  bytes128,
		"uhugeint": bytes128,
	} {
		upload(file, "Completed")
		require.JSONEq(t, wanted, jsonOf(t, w.preview(t, "uploaded").Rows), file)
	}
	require.Contains(t, upload("ns_zoned_fine", "Failed"), "which is finer than microseconds")
	require.Contains(t, upload("time", "Failed"), `column "a": values of type TIME_NS cannot be stored`)
}

func jsonOf(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	require.NoError(t, err)
	return string(text)
}

// bytes128 is how 1, 2 and NULL come as numbers of 128 bits.
const (
	bytes128 = `[["\\x01` + zeros + `"], ["\\x02` + zeros + `"], [null]]`
	zeros    = `\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00`
)

// polarsTypes returns what all.parquet of tools/polars has.
func polarsTypes(t *testing.T) (rows query.Rows) {
	t.Helper()
	columns := [][4]string{ // name, type, and the values of two rows; that of the third is NULL
		{"i8", "TINYINT", `-128`, `127`},
		{"i16", "SMALLINT", `-32768`, `32767`},
		{"i32", "INTEGER", `-2147483648`, `2147483647`},
		{"i64", "BIGINT", `"-9223372036854775808"`, `"9223372036854775807"`},
		{"u8", "UTINYINT", `0`, `255`},
		{"u16", "USMALLINT", `0`, `65535`},
		{"u32", "UINTEGER", `0`, `4294967295`},
		{"u64", "UBIGINT", `0`, `"18446744073709551615"`},
		{"f32", "FLOAT", `0.5`, `"-Infinity"`},
		{"f64", "DOUBLE", `"NaN"`, `"Infinity"`},
		{"flag", "BOOLEAN", `true`, `false`},
		{"text", "VARCHAR", `"a"`, `""`},
		{"kind", "VARCHAR", `"new"`, `"used"`},
		{"day", "DATE", `"2026-01-05"`, `"1969-12-31"`},
		{"ms", "TIMESTAMP", `"2026-01-05 09:00:00.025"`, `"1969-12-31 23:59:59.999"`},
		{"us", "TIMESTAMP", `"2026-01-05 09:00:00.000025"`, `"1969-12-31 23:59:59.999999"`},
		{"ns", "TIMESTAMP_NS", `"2026-01-05 09:00:00.000000025"`, `"1969-12-31 23:59:59.999999999"`},
		{"ms_zoned", "TIMESTAMP WITH TIME ZONE", `"2026-01-05 09:00:00.025+00"`, `"1969-12-31 23:59:59.999+00"`},
		{"us_zoned", "TIMESTAMP WITH TIME ZONE", `"2026-01-05 09:00:00.000025+00"`,
			`"1969-12-31 23:59:59.999999+00"`},
		{"price", "DECIMAL(38,2)", `"1.50"`, `"-12345678901234567.25"`},
		{"small", "DECIMAL(9,2)", `"1.50"`, `"-0.25"`},
		{"tags", "VARCHAR[]", `["x", null]`, `[]`},
		{"pair", "BIGINT[]", `[1, 2]`, `[3, 4]`},
		{"who", `STRUCT("name" VARCHAR, ids DOUBLE[])`, `{"name": "ada", "ids": [1]}`, `{"name": null, "ids": []}`},
	}
	rows.Rows = make([][]any, 3)
	for _, c := range columns {
		rows.Columns = append(rows.Columns, storage.Column{Name: c[0], Type: c[1]})
		for i, text := range []string{c[2], c[3], "null"} {
			if c[0] == "who" && i == 2 {
				text = `{"name": "bob", "ids": [2, 3]}`
			}
			var value any
			require.NoError(t, json.Unmarshal([]byte(text), &value), text)
			rows.Rows[i] = append(rows.Rows[i], value)
		}
	}
	return rows
}
