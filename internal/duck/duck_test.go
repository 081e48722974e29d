package duck_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

func open(t testing.TB, cfg duck.Config) *duck.Session {
	t.Helper()
	cfg.Threads = 1
	s, err := duck.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestSandbox(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	allowed, other := filepath.Join(dir, "allowed"), filepath.Join(dir, "allowed-not")
	require.NoError(t, os.Mkdir(allowed, 0o700))
	require.NoError(t, os.Mkdir(other, 0o700))
	secret, single := filepath.Join(other, "secret.csv"), filepath.Join(other, "single.csv")
	require.NoError(t, os.WriteFile(secret, []byte("a\n1\n"), 0o600))
	require.NoError(t, os.WriteFile(single, []byte("a\n1\n"), 0o600))
	s := open(t, duck.Config{AllowedDirs: []string{allowed}, AllowedPaths: []string{single}})

	require.NoError(t, s.Exec(t.Context(), "SELECT * FROM read_csv("+sqltext.Literal(single)+")"))
	require.NoError(t, s.Exec(t.Context(), "COPY (SELECT 1) TO "+sqltext.Literal(filepath.Join(allowed, "x.parquet"))))
	for _, statement := range []string{
		"SELECT * FROM read_csv(" + sqltext.Literal(secret) + ")",
		"SELECT * FROM read_text('/etc/passwd')",
		"SELECT * FROM '" + secret + "'",
		"SELECT * FROM read_csv(" + sqltext.Literal(allowed+"/../allowed-not/secret.csv") + ")",
		"SELECT * FROM glob(" + sqltext.Literal(other+"/*") + ")",
		"COPY (SELECT 1) TO " + sqltext.Literal(filepath.Join(other, "y.csv")),
		"ATTACH " + sqltext.Literal(filepath.Join(other, "z.db")),
		"EXPORT DATABASE " + sqltext.Literal(other),
		"INSTALL httpfs", "LOAD httpfs", "LOAD '/tmp/x.duckdb_extension'",
		"SELECT * FROM read_csv('https://example.org/x.csv')",
		"SET enable_external_access = true", "SET allowed_directories = ['/']", "SET allowed_paths = ['/etc/passwd']",
		"SET lock_configuration = false",
		"RESET lock_configuration", "RESET enable_external_access",
		"SET memory_limit = '1TB'", "SET threads = 64", "SET temp_directory = '/'",
		"SET autoload_known_extensions = true", "PRAGMA enable_external_access",
		"SET custom_extension_repository = 'http://example.org'",
		"CREATE PERSISTENT SECRET s (TYPE http)",
		"SET home_directory = '/'", "SET secret_directory = '/'", "SET GLOBAL log_query_path = '/tmp/x'",
	} {
		require.Error(t, s.Exec(t.Context(), statement), statement)
	}
	entries, err := os.ReadDir(other)
	require.NoError(t, err)
	require.Len(t, entries, 2)
}

func TestLimits(t *testing.T) {
	t.Parallel()
	s := open(t, duck.Config{MemoryLimit: 64 << 20})
	err := s.Exec(t.Context(), "SELECT list(range) FROM range(100000000)")
	require.ErrorContains(t, err, "Out of Memory")
	require.False(t, duck.Deterministic(err), "it may fit when less runs beside it")

	ctx, cancel := context.WithCancelCause(t.Context())
	reason := fault.New(fault.Unavailable, "that is enough")
	timer := time.AfterFunc(50*time.Millisecond, func() { cancel(reason) })
	defer timer.Stop()
	begun := time.Now()
	err = s.Exec(ctx, "SELECT sum(range % 7) FROM range(1000000000000)") // long, in little memory
	require.ErrorIs(t, err, reason)
	require.Less(t, time.Since(begun), 10*time.Second)
	require.NoError(t, s.Exec(t.Context(), "SELECT 1"), "the session goes on")
}

func TestVariables(t *testing.T) {
	t.Parallel()
	at := time.Date(2024, 3, 31, 1, 30, 0, 123456000, time.FixedZone("", 7200))
	s := open(t, duck.Config{TimeZone: "Europe/Berlin", Variables: map[string]any{
		"text": `it's "x" \ '); DROP TABLE t; --`, "whole": int64(1) << 60, "yes": true, "at": at,
		"none": nil, `od"d`: "name",
	}})

	for expression, want := range map[string]string{
		"getvariable('text')":                            `it's "x" \ '); DROP TABLE t; --`,
		"getvariable('whole')::VARCHAR":                  "1152921504606846976",
		"typeof(getvariable('yes'))":                     "BOOLEAN",
		"getvariable('at')::VARCHAR":                     "2024-03-31 00:30:00.123456+01",
		"typeof(getvariable('at'))":                      "TIMESTAMP WITH TIME ZONE",
		"coalesce(getvariable('none')::VARCHAR, 'NULL')": "NULL",
		`getvariable('od"d')`:                            "name",
	} {
		var got string
		require.NoError(t, s.Value(t.Context(), &got, "SELECT "+expression), expression)
		require.Equal(t, want, got, expression)
	}
}

// A name that is a keyword is told from a slip by where it stands.
func TestParseOfKeywordsAsNames(t *testing.T) {
	t.Parallel()
	s := open(t, duck.Config{})
	for query, word := range map[string]string{
		"SELECT *\nFROM order": "order", "FROM t JOIN Select USING (id)": "Select", "FROM table": "table",
		"SELECT order.id FROM \"order\"": "order", "SELECT t.a FROM t, (FROM /* all */ group)": "group",
		"FROM t JOIN -- each\nuser": "", "SELECT 1 FROM FROM": "FROM", "SELECT * FRM t": "", "FROM t WHERE": "",
		"SELECT a WHERE FROM t ORDER LIMIT": "", "SELECT 1 +": "", "FROM t, order": "order", "SELECT a,, b": "",
	} {
		_, err := s.Parse(t.Context(), query)
		if word == "" {
			require.NotContains(t, fmt.Sprint(fault.Hinted(err)), "keyword", query)
			continue
		}
		require.ErrorContains(t, err, "syntax error at or near", query)
		require.ErrorContains(t, fault.Hinted(err), word+` is a keyword of SQL: where it is a name, write "`+word+`"`)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	s := open(t, duck.Config{})
	for _, test := range []struct {
		query     string
		relations []string
		err       string
	}{
		{query: "SELECT 1"},
		{query: "FROM a JOIN B USING (id), (SELECT * FROM c) WHERE x IN (FROM d) ORDER BY (SELECT max(y) FROM e)",
			relations: []string{"B", "a", "c", "d", "e"}},
		{query: "SELECT * FROM t, T, \"t\"", relations: []string{"t"}},
		{query: "WITH c AS (FROM a) SELECT * FROM c UNION ALL FROM C", relations: []string{"a"}},
		{query: "WITH c AS (FROM c) SELECT * FROM c", relations: []string{"c"}},
		{query: "WITH a AS (FROM b), b AS (SELECT 1) FROM a", relations: []string{"b"}},
		{query: "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) FROM r"},
		{query: "SELECT * FROM x, (WITH x AS (SELECT 1) FROM x)", relations: []string{"x"}},
		{query: "FROM range(3), generate_series(1, 2), unnest([1]), json_each('{}')"},
		{query: "SELECT * FROM (PIVOT t ON y IN (1, 2) USING sum(p))", relations: []string{"t"}},
		{query: "FROM (UNPIVOT t ON a, b)", relations: []string{"t"}},
		{query: "VALUES (1), (2)"},
		{query: "SELECT list_transform([1], lambda x: x + (SELECT max(n) FROM t))", relations: []string{"t"}},
		{query: "SELECT 'DROP TABLE read_csv(x)' AS s -- COPY"},
		{query: "SELECT $1", err: "parameters"},
		{query: "SELECT ?", err: "parameters"},
		{query: "SELECT * FROM t WHERE x = $x", err: "parameters"},
		{query: "SELECT * FROM main.t", err: "plain names"},
		{query: "SELECT * FROM memory.main.t", err: "plain names"},
		{query: "FROM (DESCRIBE t)", err: "not allowed"},
		{query: "SELECT *\nFROM t AT (VERSION => 1)", err: "t AT (…) is not allowed (line 2, column 6): a statement"},
		{query: "FROM t AT (TIMESTAMP => now())", err: "t AT (…) is not allowed"},
		{query: "SHOW TABLES", err: "not allowed"},
		{query: "FROM READ_CSV('x')", err: "table function read_csv"},
		{query: `FROM "read_csv"('x')`, err: "table function read_csv"},
		{query: "FROM main.read_parquet('x')", err: "table function read_parquet"},
		{query: "SELECT (FROM read_text('x') LIMIT 1)", err: "table function read_text"},
		{query: "WITH c AS (FROM read_text('x')) SELECT 1", err: "table function read_text"},
		{query: "FROM json_execute_serialized_sql('x')", err: "table function json_execute_serialized_sql"},
		{query: "SELECT 1;; SELECT 2", err: "2 statements"},
		{query: "INSERT INTO t VALUES (1)", err: "only a SELECT"},
		{query: "CREATE TABLE t AS SELECT 1", err: "only a SELECT"},
		{query: "SELECT\n  1 FROM FROM t", err: "(line 2, column"},
		{query: "", err: "0 statements"},
		{query: "SELECT 1e400", err: "larger than a DOUBLE holds"},
		{query: "SELECT -1e400 AS x, 'Infinity' AS y", err: "larger than a DOUBLE holds"},
		{query: "SELECT 'Infinity'::DOUBLE, '\"value\":Infinity}'"},
	} {
		q, err := s.Parse(t.Context(), test.query)
		if test.err != "" {
			require.ErrorContains(t, err, test.err, test.query)
			require.True(t, fault.Is(err, fault.Invalid), "%s: %v", test.query, err)

			continue
		}
		require.NoError(t, err, test.query)
		require.Equal(t, test.relations, q.Relations, test.query)
		require.NotContains(t, string(q.Canonical), "query_location")
	}
}

func TestViewIsolatesTheStatement(t *testing.T) {
	t.Parallel()
	s := open(t, duck.Config{})
	require.NoError(t, s.Exec(t.Context(), "CREATE VIEW t AS SELECT 3 AS n UNION ALL SELECT 1 UNION ALL SELECT 2"))
	for _, query := range []string{"SELECT n FROM t ORDER BY n DESC; -- end", "SELECT n FROM t ORDER BY n DESC -- end",
		"/* a */ FROM t ORDER BY n DESC;"} {
		q, err := s.Parse(t.Context(), query)
		require.NoError(t, err)
		view, err := s.View(t.Context(), q)
		require.NoError(t, err)
		var got string
		require.NoError(t, s.Value(t.Context(), &got, "SELECT string_agg(n::VARCHAR, ' ') FROM ("+view+")"))
		require.Equal(t, "3 2 1", got)
	}

	q, err := s.Parse(t.Context(), "SELECT 1,\n  nope FROM t")
	require.NoError(t, err)
	_, err = s.View(t.Context(), q)
	require.ErrorContains(t, err, "LINE 2:   nope FROM t")
	require.True(t, duck.Deterministic(err))

	q, err = s.Parse(t.Context(), "SELECT 1 LIMIT 99999999999999999999")
	require.NoError(t, err)
	_, err = s.View(t.Context(), q)
	require.ErrorContains(t, err, "LINE 1 of the statement")
}

// What is too deep says what to do about it, and nothing of settings, which nobody may set.
func TestStatementsThatAreTooDeep(t *testing.T) {
	t.Parallel()
	s := open(t, duck.Config{})
	for _, query := range []string{"SELECT 1" + strings.Repeat("+1", 30_000),
		"SELECT " + strings.Repeat("[", 2000) + strings.Repeat("]", 2000)} {
		_, err := s.Parse(t.Context(), query)
		require.EqualError(t, err, "Max expression depth limit of 1000 exceeded.")
		require.Contains(t, fault.Text(err), "split it into subqueries")
	}
}

func TestRelation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "a=1 'x'.parquet")
	w := open(t, duck.Config{AllowedDirs: []string{dir}})
	n, err := w.CopyToParquet(t.Context(), "SELECT range AS n, 'v' || range AS \"te\"\"xt\", CASE WHEN range > 1 "+
		"THEN DATE '2024-01-01' + range::INTEGER END AS day FROM range(4)", file)
	require.NoError(t, err)
	require.Equal(t, int64(4), n)
	columns, err := w.Describe(t.Context(), "SELECT * FROM "+duck.ReadParquet([]string{file}))
	require.NoError(t, err)
	require.Equal(t, []duck.Column{{Name: "n", Type: "BIGINT"}, {Name: `te"xt`, Type: "VARCHAR"},
		{Name: "day", Type: "DATE"}}, columns, "hive partitioning is off")

	for _, test := range []struct {
		where []duck.Condition
		want  int64
		err   string
	}{
		{want: 4},
		{where: []duck.Condition{{Column: "n", Values: []any{1.0, 3.0}}}, want: 2},
		{where: []duck.Condition{{Column: "n", Values: []any{"2"}}}, want: 1},
		{where: []duck.Condition{{Column: `te"xt`, Values: []any{"v1", "' OR 1=1 --"}}}, want: 1},
		{where: []duck.Condition{{Column: "day", Values: []any{"2024-01-03", nil}}}, want: 3},
		{where: []duck.Condition{{Column: "n", Values: []any{}}}, want: 0},
		{where: []duck.Condition{{Column: "n", Values: []any{1.0}}, {Column: "day", Values: []any{nil}}}, want: 1},
		{where: []duck.Condition{{Column: "nope", Values: []any{1.0}}}, err: `has no column "nope"`},
	} {
		s := open(t, duck.Config{AllowedPaths: []string{file}})
		err := s.Create(t.Context(), duck.Relation{Name: `my "rel`, Files: []string{file}, Where: test.where})
		if test.err != "" {
			require.ErrorContains(t, err, test.err)
			continue
		}
		require.NoError(t, err)
		var got int64
		require.NoError(t, s.Value(t.Context(), &got, `SELECT count(*) FROM "my ""rel"`))
		require.Equal(t, test.want, got, "%+v", test.where)
	}
	s := open(t, duck.Config{})
	require.NoError(t, s.Create(t.Context(), duck.Relation{Name: "empty", Schema: columns}))
	got, err := s.Describe(t.Context(), "FROM empty")
	require.NoError(t, err)
	require.Equal(t, columns, got)
	require.True(t, fault.Is(s.Create(t.Context(), duck.Relation{Name: "unknown"}), fault.Conflict))
}

func FuzzParse(f *testing.F) {
	s := open(f, duck.Config{})
	for _, seed := range []string{"SELECT 1", "FROM t", "WITH a AS (SELECT 1) FROM a", "SELECT '", "\x00",
		"SELECT $1; --", "((((", "SELECT * FROM 'x.csv'"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		q, err := s.Parse(t.Context(), query)
		if err != nil {
			return
		}
		again, err := s.Parse(t.Context(), query+"\n-- the end")
		require.NoError(t, err)
		require.Equal(t, q.Canonical, again.Canonical)
	})
}

func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		s, err := duck.Open(b.Context(), duck.Config{})
		require.NoError(b, err)
		require.NoError(b, s.Close())
	}
}
