package operators_test

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/operatortest"
)

func builtin(t *testing.T, name string) operators.Operator {
	t.Helper()
	registry, err := operators.Builtin(operators.Options{Engines: enginetest.Engines(), Threads: 1, Command: anyProgram,
		AllowedAddresses: []string{"127.0.0.0/8"}})
	require.NoError(t, err)
	op, ok := registry.Get(name)
	require.True(t, ok)
	return op
}

func sqlCase(name, query string, inputs ...operatortest.Input) operatortest.Case {
	return operatortest.Case{Name: name, Config: map[string]any{"query": query}, Inputs: inputs}
}

func (c caseOf) fails(message string) operatortest.Case {
	c.Fails, c.Permanent = message, true
	return operatortest.Case(c)
}

func (c caseOf) refused(message string) operatortest.Case {
	c.Refused = message
	return operatortest.Case(c)
}

func (c caseOf) wants(rows ...string) operatortest.Case {
	c.Want = map[string][]string{"out": append([]string{}, rows...)}
	return operatortest.Case(c)
}

// caseOf has methods that set the expectations of a case in one line.
type caseOf operatortest.Case

func (c caseOf) plain() operatortest.Case { return operatortest.Case(c) }

func TestSQLConforms(t *testing.T) {
	t.Parallel()
	numbers := operatortest.Input{As: "numbers", Query: "SELECT range AS n, range % 2 = 0 AS even, DATE " +
		"'2024-01-01' + range::INTEGER AS day FROM range(6)"}
	filtered, noDay, none := numbers, numbers, numbers
	filtered.Where = []dag.Condition{{Column: "day", Values: []any{"2024-01-02", "2024-01-03", nil}},
		{Column: "even", Values: []any{false}}}
	noDay.Where = []dag.Condition{{Column: `day" OR 1=1 --`, Values: []any{"x"}}}
	none.Empty = true
	start, end := time.Date(2024, 3, 30, 23, 0, 0, 0, time.UTC), time.Date(2024, 3, 31, 22, 0, 0, 0, time.UTC)
	hostile := "'); DROP VIEW numbers; --"
	at := func(c operatortest.Case, key, zone string, start, end *time.Time) operatortest.Case {
		c.PartitionBy = dag.Partitioning{Timezone: zone}
		c.Partition = &operators.PartitionRange{Key: key, Start: start, End: end}
		return c
	}

	operatortest.Run(t, builtin(t, "sql"),
		caseOf(sqlCase("rows in the query's order", "SELECT n FROM numbers WHERE even ORDER BY n DESC; -- done",
			numbers)).wants("'n': 4", "'n': 2", "'n': 0"),
		caseOf(sqlCase("names without case", "SELECT max(N) AS m FROM NUMBERS", numbers)).wants("'m': 5"),
		caseOf(sqlCase("where is applied", "SELECT n FROM numbers", filtered)).wants("'n': 1"),
		caseOf(sqlCase("where of no column", "SELECT n FROM numbers", noDay)).fails("has no column"),
		caseOf(sqlCase("an empty input is a relation", "SELECT count(*) AS c, max(day) AS d FROM numbers", none)).
			wants("'c': 0, 'd': NULL"),
		caseOf(sqlCase("with", "WITH a AS (FROM numbers), b AS (SELECT n FROM a) SELECT sum(n)::BIGINT AS s FROM b",
			numbers)).wants("'s': 15"),
		caseOf(sqlCase("a sum is exact", "SELECT sum(9007199254740993 + n) AS s, [sum(n)] AS l FROM numbers", numbers)).
			wants("'s': 54043195528445973, 'l': [15]"),
		caseOf(sqlCase("maps and times are exact", "SELECT MAP {'z': 1, 'a': 0.1} AS m, DATE '0044-03-15 (BC)' AS d, "+
			"INTERVAL '3 days 1.5 seconds' AS i FROM numbers LIMIT 1", numbers)).
			wants("'m': {z=1.0, a=0.1}, 'd': '0044-03-15 (BC)', 'i': '3 days 00:00:01.5'"),
		caseOf(sqlCase("a type that cannot be stored", "SELECT '12:00:00+02'::TIMETZ AS t FROM numbers", numbers)).
			fails(`column "t": values of type TIME WITH TIME ZONE cannot be stored`),
		caseOf(sqlCase("a sum that does not fit", "SELECT n, 170141183460469231731687303715884105727 AS big "+
			"FROM numbers", numbers)).fails(`column "big" has a value of type HUGEINT that does not fit DECIMAL(38,0)`),
		caseOf(sqlCase("an interval that is too fine", "SELECT [to_microseconds(n)] AS i FROM numbers", numbers)).
			fails(`column "i" has an INTERVAL that cannot be stored`),
		caseOf(sqlCase("no rows", "SELECT n FROM numbers WHERE n > 100", numbers)).wants(),
		caseOf(at(sqlCase("a hostile partition key", "SELECT getvariable('partition') AS p, getvariable('start') IS "+
			"NULL AS s FROM numbers LIMIT 1", numbers), hostile, "", nil, nil)).
			wants("'p': '\\'); DROP VIEW numbers; --', 's': true"),
		caseOf(at(sqlCase("a day in its zone", "SELECT getvariable('start')::DATE::VARCHAR AS d, "+
			"(epoch(getvariable('end')) - epoch(getvariable('start')))::INTEGER AS long"), "2024-03-31",
			"Europe/Berlin", &start, &end)).
			wants("'d': 2024-03-31, 'long': 82800"),
		operatortest.Case{Name: "two outputs",
			Config: map[string]any{"queries": map[string]any{"odd": "SELECT n FROM numbers WHERE NOT even",
				"none": "SELECT 1 AS x WHERE false"}},
			Outputs: []string{"none", "odd"}, Inputs: []operatortest.Input{numbers},
			Want: map[string][]string{"none": {}, "odd": {"'n': 1", "'n': 3", "'n': 5"}}},
		operatortest.Case{Name: "endless", Endless: true,
			Config: map[string]any{"query": "SELECT count(*) AS c FROM range(10000000) a, range(10000000) b WHERE " +
				"a.range * b.range % 7 = 3"}},

		caseOf(operatortest.Case{Name: "nothing", Config: map[string]any{}}).refused("sql needs either `query`"),
		caseOf(sqlCase("syntax", "SELECT n\nFROM numbers WHERE")).refused("syntax error at end of input"),
		caseOf(sqlCase("two statements", "SELECT 1; SELECT 2")).
			refused("there are 2 statements; there must be exactly one SELECT"),
		caseOf(sqlCase("no statement", "-- nothing")).refused("there are 0 statements"),
		caseOf(sqlCase("DDL", "DROP TABLE numbers")).refused("only a SELECT is allowed here"),
		caseOf(sqlCase("COPY", "COPY (SELECT 1) TO '/tmp/x'")).refused("only a SELECT is allowed here"),
		caseOf(sqlCase("ATTACH", "ATTACH '/tmp/x.db'")).refused("only a SELECT is allowed here"),
		caseOf(sqlCase("SET", "SET memory_limit = '1TB'")).refused("only a SELECT is allowed here"),
		caseOf(sqlCase("a file by function", "SELECT * FROM read_csv('/etc/passwd')")).
			refused("table function read_csv is not allowed"),
		caseOf(sqlCase("glob", "SELECT (SELECT count(*) FROM glob('/*'))")).
			refused("table function glob is not allowed"),
		caseOf(sqlCase("SQL in text", "SELECT * FROM query('SELECT 1')")).
			refused("table function query is not allowed"),
		caseOf(sqlCase("settings", "SELECT * FROM duckdb_settings()")).
			refused("table function duckdb_settings is not allowed"),
		caseOf(sqlCase("another schema", "SELECT * FROM information_schema.tables")).
			refused("relations are plain names"),
		caseOf(sqlCase("parameters", "SELECT $partition")).refused("use getvariable"),
		caseOf(sqlCase("summarize", "SUMMARIZE numbers")).refused("not allowed"),
		caseOf(sqlCase("a file by name", "SELECT * FROM '/etc/passwd'", numbers)).
			fails(`there is no relation "/etc/passwd"`),
		caseOf(sqlCase("a file behind a WITH of another scope",
			`SELECT * FROM "/etc/passwd", (WITH "/etc/passwd" AS (SELECT 1) SELECT 1)`, numbers)).
			fails(`there is no relation "/etc/passwd"`),
		caseOf(sqlCase("a catalogue view", "SELECT * FROM duckdb_tables", numbers)).
			fails(`there is no relation "duckdb_tables"`),
		caseOf(sqlCase("a missing column", "SELECT nope FROM numbers", numbers)).
			fails(`Referenced column "nope" not found`),
		caseOf(sqlCase("a bad value", "SELECT CAST(day::VARCHAR AS INTEGER) AS x FROM numbers", numbers)).
			fails("Could not convert string"),
	)
}

func TestSQLCanonical(t *testing.T) {
	t.Parallel()
	spec := builtin(t, "sql").Spec()
	form := func(query string) string {
		canonical, fault := spec.Canonical(map[string]any{"query": query})
		require.Nil(t, fault)
		text, err := json.Marshal(canonical)
		require.NoError(t, err)
		return string(text)
	}

	base := form("SELECT a, sum(b) AS s FROM t WHERE c = 'x' GROUP BY a")
	for _, same := range []string{
		"select a,sum(b) s from t where c='x' group by a;",
		"-- why\nSELECT a, /* what */ sum(b) AS s\n\tFROM t\nWHERE (c = 'x')\nGROUP BY a\n",
	} {
		require.Equal(t, base, form(same))
	}

	for _, other := range []string{
		"SELECT a, sum(b) AS s FROM t WHERE c = 'X' GROUP BY a",
		"SELECT a, sum(b) AS S FROM t WHERE c = 'x' GROUP BY a",
		"SELECT a, sum(DISTINCT b) AS s FROM t WHERE c = 'x' GROUP BY a",
		"SELECT a, sum(b) AS s FROM t WHERE c = 'x' GROUP BY a ORDER BY a",
	} {
		require.NotEqual(t, base, form(other))
	}
	require.NotEqual(t, form("SELECT 9007199254740993"), form("SELECT 9007199254740992"),
		"large numbers keep their digits")
}

func writeFile(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func TestFileSourceConforms(t *testing.T) {
	t.Parallel()
	root, other := t.TempDir(), t.TempDir()
	writeFile(t, root, "days/2024-01-01.csv", "a,b\n1,x\n2,\n")
	writeFile(t, root, "days/2024-01-02.csv", "a,b\n3,y\n")
	writeFile(t, root, "days/notes.txt", "not data")
	writeFile(t, root, "hours/2024-01-01/00.csv", "a\n1\n")
	writeFile(t, root, "hours/2024-01-01/23.csv", "a\n2\n")
	writeFile(t, root, "parts/berlin-1.ndjson", `{"n": 1}`+"\n")
	writeFile(t, root, "parts/berlin-2.ndjson", `{"n": 2, "m": "x"}`+"\n")
	writeFile(t, root, "geo.json",
		`{"type": "FeatureCollection", "features": [{"id": "a", "properties": {"mag": 2}}, `+
			`{"id": "b", "properties": {"mag": 2.5}}]}`)
	writeFile(t, root, "semi.csv", "a;b\n1;NA\n")
	writeFile(t, root, "broken.json", `[{"a": 1}, {"a":`)
	writeFile(t, other, "secret.csv", "s\n1\n")
	require.NoError(t, os.Symlink(filepath.Join(other, "secret.csv"), filepath.Join(root, "link.csv")))
	require.NoError(t, os.Symlink(other, filepath.Join(root, "linked")))

	f, err := os.Create(filepath.Join(root, "z.csv.gz"))
	require.NoError(t, err)
	z := gzip.NewWriter(f)
	_, err = z.Write([]byte("a\n7\n"))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	require.NoError(t, f.Close())

	at := func(name, key string, by dag.Partitioning, config map[string]any) caseOf {
		return caseOf{Name: name, Config: config, Roots: []string{other, root}, PartitionBy: by,
			Partition: &operators.PartitionRange{Key: key}}
	}
	day, hour := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day}, dag.Partitioning{Kind: dag.ByTime, Unit: dag.Hour}
	month, byKey, whole := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Month}, dag.Partitioning{Kind: dag.ByKey},
		dag.Partitioning{}
	quarter, half := month, hour
	quarter.Unit, half.Unit = dag.Quarter, "12h"
	operatortest.Run(t, builtin(t, "file_source"),
		at("a file a day", "2024-01-01", day, map[string]any{"path": "days", "pattern": "{date}.csv", "format": "csv"}).
			wants("'a': 1, 'b': x", "'a': 2, 'b': NULL"),
		at("a file an hour", "2024-01-01T23", hour, map[string]any{"path": "hours", "pattern": "{date}/{hour}.csv",
			"format": "csv"}).wants("'a': 2"),
		at("days in a month", "2024-01", month, map[string]any{"path": "days", "pattern": "{date}.csv",
			"format": "csv"}).wants("'a': 1, 'b': x", "'a': 2, 'b': NULL", "'a': 3, 'b': y"),
		at("days in a quarter", "2024-Q1", quarter, map[string]any{"path": "days", "pattern": "{date}.csv",
			"format": "csv"}).wants("'a': 1, 'b': x", "'a': 2, 'b': NULL", "'a': 3, 'b': y"),
		at("hours in half a day", "2024-01-01T12", half, map[string]any{"path": "hours", "pattern": "{date}/{hour}.csv",
			"format": "csv"}).wants("'a': 2"),
		at("several files a key", "berlin", byKey, map[string]any{"path": "parts", "pattern": "{key}-?.ndjson",
			"format": "ndjson"}).wants("'n': 1, 'm': NULL", "'n': 2, 'm': x"),
		at("all of a folder", "all", whole, map[string]any{"path": "days", "pattern": "*.csv", "format": "csv",
			"columns": []string{"b"}}).wants("'b': x", "'b': NULL", "'b': y"),
		at("one file by its absolute path", "all", whole, map[string]any{"path": filepath.Join(root, "semi.csv"),
			"format": "csv", "delimiter": ";", "null_string": "NA", "types": map[string]string{"a": "VARCHAR"}}).
			wants("'a': 1, 'b': NULL"),
		at("compressed", "all", whole, map[string]any{"path": "z.csv.gz", "format": "csv"}).wants("'a': 7"),
		at("records of a document", "all", whole, map[string]any{"path": "geo.json", "format": "json",
			"records": "features", "columns": []string{"id", "properties"}}).
			wants("'id': a, 'properties': {'mag': 2.0}", "'id': b, 'properties': {'mag': 2.5}"),
		operatortest.Case(at("types of JSON", "all", whole, map[string]any{"path": "parts", "pattern": "*.ndjson",
			"format": "ndjson", "types": map[string]string{"n": "DECIMAL(9,2)"}, "columns": []string{"n"}}).
			wants("'n': 1.00", "'n': 2.00")),

		caseOf{Name: "still being written", Config: map[string]any{"path": "broken.json", "format": "json"},
			Roots: []string{root}, Fails: "broken.json: the input cannot be read as json"}.plain(),
		caseOf{Name: "not there", Config: map[string]any{"path": "nope.csv", "format": "csv"}, Roots: []string{root},
			Fails: "not in any of the folders"}.plain(),
		caseOf{Name: "no root", Config: map[string]any{"path": "z.csv.gz", "format": "csv"},
			Fails: "may not read any folder"}.plain(),
		at("up and out", "all", whole, map[string]any{"path": "../" + filepath.Base(other) + "/secret.csv",
			"format": "csv"}).refused("leads out of the folders"),
		at("absolute and outside", "all", whole, map[string]any{"path": "/etc/hostname", "format": "csv"}).
			fails("lies outside the folders"),
		caseOf{Name: "a link to a file outside", Config: map[string]any{"path": "link.csv", "format": "csv"},
			Roots: []string{root}, Fails: "escapes"}.plain(),
		caseOf{Name: "a link to a folder outside", Config: map[string]any{"path": "linked", "pattern": "*.csv",
			"format": "csv"}, Roots: []string{root}, Fails: "escapes"}.plain(),
		caseOf{Name: "a payload that leads out", Config: map[string]any{"path": "days", "pattern": "*.csv",
			"format": "csv"}, Roots: []string{root},
			Payload: json.RawMessage(`{"files": ["../../` + filepath.Base(other) + `/secret.csv"]}`),
			Fails:   "escapes"}.plain(),
		at("days without a date", "2024-01-01", day, map[string]any{"path": "days", "pattern": "*.csv",
			"format": "csv"}).fails("needs other placeholders"),

		at("an unknown placeholder", "", whole, map[string]any{"path": "days", "pattern": "{week}.csv",
			"format": "csv"}).refused("unknown placeholder {week}"),
		at("a bucket", "", whole, map[string]any{"path": "s3://acme/days", "pattern": "*.csv", "format": "csv"}).
			refused("which operator s3_source reads"),
		at("a pattern that leads out", "", whole, map[string]any{"path": "days", "pattern": "../*.csv",
			"format": "csv"}).refused("not a plain relative path"),
		at("a hostile type", "", whole, map[string]any{"path": "x", "format": "csv",
			"types": map[string]string{"a": "INTEGER); DROP TABLE x; --"}}).refused("not the name of a DuckDB type"),
		at("a query in a type", "", whole, map[string]any{"path": "x", "format": "json",
			"types": map[string]string{"a": "INTEGER), (SELECT count(x) FROM duckdb_settings() AS y(x)"}}).
			refused("not the name of a DuckDB type"),
		at("an option of another format", "", whole, map[string]any{"path": "x", "format": "parquet",
			"delimiter": ";"}).refused("delimiter is for format csv"),
		at("no format", "", whole, map[string]any{"path": "x"}).refused("missing property 'format'"),
	)
}

func TestHTTPSourceConforms(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("/data.csv", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		if r.Header.Get("If-None-Match") == `"v1"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		if r.Header.Get("X-Key") != "k" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprint(w, "a,b\n1,x\n")
	})

	mux.HandleFunc("/day/{day}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "day\n%q\n", r.PathValue("day"))
	})
	mux.HandleFunc("/busy", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})

	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	config := func(path string) map[string]any {
		return map[string]any{"url": server.URL + path, "format": "csv", "headers": map[string]any{"X-Key": "k"}}
	}

	op := builtin(t, "http_source")
	operatortest.Run(t, op,
		caseOf{Name: "rows", Config: config("/data.csv")}.wants("'a': 1, 'b': x"),
		caseOf{Name: "a partition in the URL", Config: config("/day/{partition}"),
			Partition: &operators.PartitionRange{Key: "a/../b?c=d"}}.wants("'day': 'a/../b?c=d'"),
		caseOf{Name: "forbidden", Config: map[string]any{"url": server.URL + "/data.csv",
			"format": "csv"}}.fails("403 Forbidden"),
		caseOf{Name: "too large", Config: map[string]any{"url": server.URL + "/data.csv", "format": "csv",
			"headers": map[string]any{"X-Key": "k"}, "max_bytes": 3}}.fails("more than 3 bytes"),
		caseOf{Name: "busy", Config: config("/busy"), Fails: "503"}.plain(),
		caseOf{Name: "not found", Config: config("/nope"), Fails: "404"}.plain(),
		caseOf{Name: "endless", Config: config("/endless"), Endless: true}.plain(),
		caseOf{Name: "not http", Config: map[string]any{"url": "file:///etc/passwd",
			"format": "csv"}}.refused("does not match pattern"),
		caseOf{Name: "a password in the URL", Config: map[string]any{"url": "http://a:b@example.org/",
			"format": "csv"}}.refused("without a password"),
		caseOf{Name: "an unknown placeholder", Config: config("/day/{date}")}.refused("there is no {date}"),
		caseOf{Name: "a header of two lines", Config: map[string]any{"url": server.URL, "format": "csv",
			"headers": map[string]any{"X-Key": "a\r\nb"}}}.refused("the value of X-Key"),
	)
}
