package textfile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators/textfile"
)

// converted is what DuckDB finds in the Parquet file that a text became.
type converted struct {
	textfile.Result
	columns []string // NAME TYPE
	rows    []string // values as DuckDB writes them, separated by |
	bad     []string
}

// convert converts texts as files called a, b, ….
func convert(t *testing.T, job textfile.Job, texts ...string) (converted, error) {
	t.Helper()
	dir := t.TempDir()
	files := make([]textfile.File, len(texts))
	for i, text := range texts {
		path := filepath.Join(dir, fmt.Sprint(i))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		files[i] = textfile.File{Name: string(rune('a' + i)), Path: path}
	}
	var out converted
	target := filepath.Join(dir, "out.parquet")
	var err error
	out.Result, err = job.Convert(t.Context(), files, target, func(b textfile.Bad) error {
		out.bad = append(out.bad, b.String())
		return nil
	})
	if err == nil {
		out.columns, out.rows = parquet(t, target)
	}
	return out, err
}

// parquet reads a file with DuckDB.
func parquet(t *testing.T, file string) (columns, rows []string) {
	t.Helper()
	s, err := duck.Open(t.Context(), duck.Config{AllowedPaths: []string{file}, Threads: 1})
	require.NoError(t, err)
	defer s.Close()
	described, err := s.Describe(t.Context(), "SELECT * FROM "+duck.ReadParquet([]string{file}))
	require.NoError(t, err)
	var casts []string
	for _, c := range described {
		columns = append(columns, c.Name+" "+c.Type)
		casts = append(casts, fmt.Sprintf("coalesce(CAST(%s AS VARCHAR), 'NULL')", sqltext.Quote(c.Name)))
	}
	found, err := s.Query(t.Context(), "SELECT concat_ws('|', "+strings.Join(casts, ", ")+") FROM "+
		duck.ReadParquet([]string{file}))
	require.NoError(t, err)
	defer found.Close()
	for found.Next() {
		var row string
		require.NoError(t, found.Scan(&row))
		rows = append(rows, row)
	}
	require.NoError(t, found.Err())
	return columns, rows
}

func declared(format string) textfile.Job {
	return textfile.Job{Declaration: textfile.Declaration{Format: format}}
}

func TestCSVIsReadAsItIs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text    string
		columns []string
		rows    []string
		bad     []string
	}{
		"one ragged line drops only itself": {"id,name\n1,ann\n2,bob\n3,eve\n4,Doe, K\n",
			[]string{"id BIGINT", "name VARCHAR"}, []string{"1|ann", "2|bob", "3|eve"},
			[]string{`a line 5: "4,Doe, K" has 3 values, not 2`}},
		"a # begins no comment": {"id,note\n#1,x\n2,ticket #5 is late\n", []string{"id VARCHAR", "note VARCHAR"},
			[]string{"#1|x", "2|ticket #5 is late"}, nil},
		"dates of unclear order are text": {"d\n01/02/2026\n", []string{"d VARCHAR"}, []string{"01/02/2026"}, nil},
		"zeros in front are text": {"zip,n\n01234,1\n",
			[]string{"zip VARCHAR", "n BIGINT"},
			[]string{"01234|1"}, nil},
		"whole numbers beyond 64 bits": {"n\n9223372036854775808\n1\n", []string{"n DECIMAL(38,0)"},
			[]string{"9223372036854775808", "1"}, nil},
		"what no number holds exactly is text": {"n\n9007199254740993\n1.5\n", []string{"n VARCHAR"},
			[]string{"9007199254740993", "1.5"}, nil},
		"fractions": {"n;m\n1.5;1\n-2;1e3\n",
			[]string{"n DOUBLE", "m DOUBLE"},
			[]string{"1.5|1.0", "-2.0|1000.0"}, nil},
		"times": {"d,t,ts,tz\n2026-01-31,10:20,2026-01-31 10:20:30.5,2026-01-31T10:20:30+02:00\n",
			[]string{"d DATE", "t TIME", "ts TIMESTAMP", "tz TIMESTAMP WITH TIME ZONE"},
			[]string{"2026-01-31|10:20:00|2026-01-31 10:20:30.5|2026-01-31 08:20:30+00"}, nil},
		"dates and times": {"t\n2026-01-31\n2026-01-31 01:00:00\n",
			[]string{"t TIMESTAMP"},
			[]string{"2026-01-31 00:00:00", "2026-01-31 01:00:00"}, nil},
		"quotes": {"a,b\n\"x\r\ny\",\"say \"\"hi\"\"\"\n\"\",\n",
			[]string{"a VARCHAR", "b VARCHAR"},
			[]string{"x\r\ny|say \"hi\"", "|NULL"}, nil},
		"quotes in the wrong place": {"a,b\nx\"y,1\n\"x\"y,2\nz,3\n",
			[]string{"a VARCHAR", "b BIGINT"},
			[]string{"z|3"},
			[]string{`a line 2: "x\"y,1" has a quote inside a value that does not begin with one`,
				`a line 3: "\"x\"y,2" has text behind a closing quote`}},
		"empty lines": {"a,b\n\n1,2\n\n", []string{"a BIGINT", "b BIGINT"}, []string{"1|2"}, nil},
		"an empty line of one": {"a\n1\n\n2\n\n\n",
			[]string{"a BIGINT"},
			[]string{"1", "2"},
			[]string{`a line 3, column a: the line is empty: an empty value of a single column is written ""`}},
		"numbers have no names": {"1,2\n3,4\n",
			[]string{"column0 BIGINT", "column1 BIGINT"},
			[]string{"1|2", "3|4"}, nil},
		"names that come twice": {",a,A\n1,2,3\n",
			[]string{"column0 BIGINT", "a BIGINT", "A_1 BIGINT"},
			[]string{"1|2|3"}, nil},
		"only nulls": {"a,b\n,1\n", []string{"a VARCHAR", "b BIGINT"}, []string{"NULL|1"}, nil},
		"only names": {"a,b\n", []string{"a VARCHAR", "b VARCHAR"}, nil, nil},
		"truth": {"a,b\ntrue,True\nfalse,\n",
			[]string{"a BOOLEAN", "b BOOLEAN"},
			[]string{"true|true", "false|NULL"}, nil},
		"not UTF-8": {"a,b\ncaf\xe9,1\nok,2\n",
			[]string{"a VARCHAR", "b BIGINT"},
			[]string{"ok|2"},
			[]string{`a line 2, column a: "caf\xe9" ` + noText}},
		"a byte order mark": {"\xEF\xBB\xBFa\n1\n", []string{"a BIGINT"}, []string{"1"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := convert(t, declared("csv"), c.text)
			require.NoError(t, err)
			require.Equal(t, c.columns, out.columns)
			require.Equal(t, c.rows, out.rows)
			require.Equal(t, c.bad, out.bad)
		})
	}
}

func TestNamesThatAreNoneAreRefused(t *testing.T) {
	t.Parallel()
	var wide strings.Builder
	for n := range 10_001 {
		fmt.Fprintf(&wide, `{"c%d":1}`+"\n", n)
	}
	for name, c := range map[string]struct{ format, text, want string }{
		"bytes of zero":     {"csv", strings.Repeat("\x00", 100), "the name of column 1 has a byte of zero"},
		"one in a name":     {"csv", "a,b\x00c\n1,2\n", "the name of column 2 has a byte of zero"},
		"one in JSON":       {"ndjson", `{"a\u0000b": 1}`, "the name of column 1 has a byte of zero"},
		"one inside":        {"ndjson", `{"a": {"b\u0000": 1}}`, "the name of column 1 has a byte of zero"},
		"no text":           {"csv", "a,b\xff\n1,2\n", `the name of column 2, "b\xff", is not UTF-8`},
		"an endless line":   {"csv", strings.Repeat("a", 2<<20), "have more than 1048576 bytes"},
		"a million columns": {"csv", strings.Repeat("a,", 1_000_000), "have 1000001 columns; a dataset has at most"},
		"a field per row":   {"ndjson", wide.String(), "have 10001 columns; a dataset has at most 10000"},
	} {
		_, err := convert(t, declared(c.format), c.text)
		require.ErrorContains(t, err, c.want, name)
		require.Less(t, len(err.Error()), 600, name)
	}
}

// Columns whose names differ in case only are told apart in every file, whatever their order.
func TestNamesThatDifferInCaseStand(t *testing.T) {
	t.Parallel()
	first, err := convert(t, declared("csv"), "a,A\n1,2\n")
	require.NoError(t, err)
	require.Equal(t, []string{"a BIGINT", "A_1 BIGINT"}, first.columns)
	job := declared("csv")
	job.Standing = &first.Reading
	for _, text := range []string{"a,A\n1,2\n", "A,a\n2,1\n", "A_1,a\n2,1\n"} {
		later, err := convert(t, job, text)
		require.NoError(t, err, text)
		require.Equal(t, []string{"1|2"}, later.rows, text)
	}
}

func BenchmarkFlights(b *testing.B) {
	job := textfile.Job{Declaration: textfile.Declaration{Format: "csv", Types: map[string]string{"date": "TIMESTAMP",
		"delay": "INTEGER", "distance": "INTEGER", "origin": "VARCHAR", "destination": "VARCHAR"}}}
	files := []textfile.File{{Name: "f", Path: "../../examples/us-flights/data/flights/2001-01-18.csv.gz"}}
	r, err := job.Convert(b.Context(), files, filepath.Join(b.TempDir(), "x.parquet"), nil)
	require.NoError(b, err)
	job.Standing = &r.Reading
	for b.Loop() {
		_, err := job.Convert(b.Context(), files, filepath.Join(b.TempDir(), "x.parquet"), nil)
		require.NoError(b, err)
	}
}

func TestJSONIsReadAsItIs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		format, records, text string
		columns, rows, bad    []string
		fault                 string
	}{
		"lines": {format: "ndjson", text: "{\"a\": 1, \"b\": \"x\"}\n\n{\"b\": \"y\", \"a\": null}\n",
			columns: []string{"a BIGINT", "b VARCHAR"},
			rows:    []string{"1|x", "NULL|y"}},
		"exact numbers": {format: "ndjson", text: `{"a": 9007199254740993, "b": 123456789012345678901234567890, "c": 1.0}`,
			columns: []string{"a BIGINT", "b DECIMAL(38,0)", "c DOUBLE"},
			rows:    []string{"9007199254740993|123456789012345678901234567890|1.0"}},
		"nesting": {format: "json", text: `[{"p": {"x": 1, "y": [1, 2]}, "e": [], "o": {}}, {"p": {"x": null}, "e": null}]`,
			columns: []string{"p STRUCT(x BIGINT, y BIGINT[])", "e VARCHAR[]", "o JSON"},
			rows:    []string{"{'x': 1, 'y': [1, 2]}|[]|{}", "{'x': NULL, 'y': NULL}|NULL|NULL"}},
		"deep lists": {format: "ndjson", text: `{"a": ` + strings.Repeat("[", 30) + "1" + strings.Repeat("]", 30) + "}",
			columns: []string{"a JSON" + strings.Repeat("[]", 10)},
			rows:    []string{strings.Repeat("[", 30) + "1" + strings.Repeat("]", 30)}},
		"not finite": {format: "ndjson", text: "{\"a\": NaN, \"b\": [1, -Infinity], \"c\": \"NaN\\\"\"}\n" +
			"{\"a\":1.5,\"b\":[Infinity],\"c\": \": NaN\"}\n{\"a\": 1NaN}\n" +
			"{\"a\": -NaN}\n{\"a\": nan}\n{\"a\": 1e-Infinity}\n" +
			"{\"a\": Infinity5}\n{NaN: 1}\n",
			columns: []string{"a DOUBLE", "b DOUBLE[]", "c VARCHAR"},
			rows:    []string{"nan|[1.0, -inf]|NaN\"", "1.5|[inf]|: NaN"}},
		"mixed": {format: "ndjson", text: "{\"a\": 1}\n{\"a\": \"1\"}\n{\"a\": [2]}",
			columns: []string{"a JSON"},
			rows:    []string{"1", "\"1\"", "[2]"}},
		"a path": {format: "json", records: "result.features", text: `{"n": [1], "result": {"x": {}, "features": [{"id": "2026-01-31"}]}, "z": {}}`,
			columns: []string{"id DATE"},
			rows:    []string{"2026-01-31"}},
		"no such path": {format: "json", records: "rows", text: `{"n": 1}`, fault: `a has no list at "rows"`},
		"broken lines": {format: "ndjson", text: "{\"a\": 1}\n{\"a\": 1, \"a\": 2}\n{\"a\": }\n[1]\n" +
			"{\"a\": \"\\ud800\"}\n{\"a\": 2} {\"a\": 3}\n",
			columns: []string{"a BIGINT"},
			rows:    []string{"1"}},
		"not whole": {format: "json", text: `[{"a": 1}, {"a"`, fault: "a is no JSON: it ends too early"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := declared(c.format)
			job.Records = c.records
			out, err := convert(t, job, c.text)
			if c.fault != "" {
				require.EqualError(t, err, c.fault)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.columns, out.columns)
			require.Equal(t, c.rows, out.rows)
			if name == "broken lines" {
				require.Len(t, out.bad, 5)
				t.Log(strings.Join(out.bad, "\n"))
			}
		})
	}
}
