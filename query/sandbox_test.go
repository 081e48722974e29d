package query

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/engine/inside"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/storage"
)

func TestMain(m *testing.M) {
	inside.Main()
	os.Exit(m.Run())
}

// table writes a Parquet file and returns its path.
func table(t *testing.T, query string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "storage-of-acme.parquet")
	session, err := duck.Open(t.Context(), duck.Config{AllowedPaths: []string{file}, Threads: 1})
	require.NoError(t, err)
	_, err = session.CopyToParquet(t.Context(), query, file)
	require.NoError(t, err)
	require.NoError(t, session.Close())
	return file
}

// asking returns a Query that has engines and nothing else.
func asking(t testing.TB, limits Limits) *Query {
	engines, err := engine.New(engine.Config{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, engines.Close()) })
	return &Query{Config: Config{Engines: engines, Limits: limits}}
}

// inEngine runs a statement over the given datasets only, as Run does once it has resolved them.
func inEngine(ctx context.Context, t *testing.T, sql string, limits Limits, files map[string]string) (outcome, error) {
	t.Helper()
	return inEngineTo(ctx, t, sql, limits, files, nil)
}

// inEngineTo is inEngine with the rows as a stream of Arrow, unless rows is nil.
func inEngineTo(ctx context.Context, t *testing.T, sql string, limits Limits, files map[string]string,
	rows io.Writer) (outcome, error) {
	t.Helper()
	s := Statement{SQL: sql, Limit: limits.Rows}
	if rows != nil {
		s.as, s.to = engine.AsArrow, rows
	}
	a, names, err := asking(t, limits).begin(ctx, uuid.New(), "tester", relations.UTC, s)
	if err != nil {
		return outcome{}, err
	}
	defer a.Discard()

	var given []relations.Relation
	for _, n := range names {
		file, ok := files[n.Name]
		if !ok {
			return outcome{}, fault.New(fault.NotFound, "there is no dataset %q%s", n.Name, n.Place)
		}
		inside, err := a.In(file)
		require.NoError(t, err)
		given = append(given, relations.Relation{Name: n.Name, Files: inside})
	}
	return a.rows(ctx, given)
}

func rowsOf(t *testing.T, out outcome) string {
	t.Helper()
	text, err := json.Marshal(out.List)
	require.NoError(t, err)
	return string(text)
}

func TestEnginesAnswer(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"sales": table(t, "SELECT range AS n, 'x' || range AS name, DATE '2026-01-01' + range::INTEGER AS "+
			"day FROM range(5)"),
		"shop/orders/0": table(t, "SELECT 1 AS n, [1, NULL] AS list, 9007199254740993 AS big"),
	}

	limits := DefaultLimits
	for _, test := range []struct {
		sql, rows string
		columns   string
		read      map[string][]string
	}{
		{sql: "SELECT max(n) AS most FROM sales", rows: `[[4]]`, columns: "most BIGINT",
			read: map[string][]string{"sales": {"n"}}},
		{sql: `SELECT o.* EXCLUDE (n), s.name FROM Sales s JOIN "shop/orders/0" o USING (n)`,
			rows:    `[[[1,null],"9007199254740993","x1"]]`,
			columns: "list INTEGER[], big BIGINT, name VARCHAR",
			read:    map[string][]string{"sales": {"n", "name", "day"}, "shop/orders/0": {"n", "list", "big"}}},
		{sql: "SELECT s.n, t.n FROM sales s JOIN sales t ON t.n = s.n + 3 ORDER BY 1 DESC -- the end",
			rows: `[[1,4],[0,3]]`, columns: "n BIGINT, n_1 BIGINT",
			read: map[string][]string{"sales": {"n"}}},
		{sql: "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT day FROM sales " +
			"JOIN r USING (n);", rows: `[["2026-01-02"],["2026-01-03"],["2026-01-04"]]`,
			columns: "day DATE", read: map[string][]string{"sales": {"n", "day"}}},
		{sql: "SELECT 1 WHERE false", rows: `null`, columns: "1 INTEGER", read: map[string][]string{}},
	} {
		out, err := inEngine(t.Context(), t, test.sql, limits, files)
		require.NoError(t, err, test.sql)
		require.Equal(t, test.rows, rowsOf(t, out), test.sql)
		require.Equal(t, test.columns, columnsOf(out.Columns), test.sql)
		require.Equal(t, test.read, out.Read, test.sql)
		require.False(t, out.Truncated)
	}
}

// JSON has no NaN and no infinities: they are texts, alike in columns and inside of values. Text that is no JSON by
// RFC 8259, though DuckDB takes it for JSON, is text, too. All of it is valid JSON, which a client can read.
func TestAnswersOfWhatJSONLacks(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"SELECT 'nan'::DOUBLE, 'inf'::FLOAT, '-inf'::DOUBLE": `[["NaN","Infinity","-Infinity"]]`,
		"SELECT ['nan'::DOUBLE, 1.5, NULL], {'x': '-inf'::FLOAT}, MAP {'k': 'inf'::DOUBLE}": `[[["NaN",1.5,null],` +
			`{"x":"-Infinity"},{"k":"Infinity"}]]`,
		"SELECT [{'x': ['inf'::DOUBLE]}], -0.0::DOUBLE":            `[[[{"x":["Infinity"]}],-0]]`,
		"SELECT '[NaN]'::JSON, ['[NaN]'::JSON]":                    `[["[NaN]","[[NaN]]"]]`,
		"SELECT 'NaN', ['NaN'], chr(1), chr(8232)":                 `[["NaN",["NaN"],"\u0001","\u2028"]]`,
		`SELECT json_array('nan'::DOUBLE), '"\ud83d\ude00"'::JSON`: `[["[NaN]","\ud83d\ude00"]]`,
	} {
		out, err := inEngine(t.Context(), t, sql, DefaultLimits, nil)
		require.NoError(t, err, sql)
		require.Equal(t, want, rowsOf(t, out), sql)
		a, err := answerOf(out.Columns, out.List)
		require.NoError(t, err, sql)
		_, err = json.Marshal(a)
		require.NoError(t, err, sql)
	}

	// A lone surrogate is no character: text cannot hold it, and JSON that has one is refused where it is made.
	_, err := inEngine(t.Context(), t, `SELECT '"\ud800"'::JSON`, DefaultLimits, nil)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.Contains(t, err.Error(), "Malformed JSON")
}

func columnsOf(columns []storage.Column) string {
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = c.Name + " " + c.Type
	}
	return strings.Join(list, ", ")
}

// TestSandbox tries to reach what a statement must not reach: files, settings, other statements.
func TestSandbox(t *testing.T) {
	t.Parallel()
	file := table(t, "SELECT 'one' AS name, 1 AS n")
	files := map[string]string{"sales": file}
	secret := filepath.Join(t.TempDir(), "secret.csv")
	require.NoError(t, os.WriteFile(secret, []byte("a\ntopsecret\n"), 0o600))

	for _, sql := range []string{
		"SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM '/etc/passwd'", `FROM "` + secret + `"`,
		"FROM '0.parquet'",
		"FROM read_text('/proc/self/environ')", "FROM read_blob('/proc/self/maps')", "FROM read_parquet('0.parquet')",
		"FROM parquet_metadata('0.parquet')",
		"FROM sniff_csv('" + secret + "')", "FROM glob('/*')", "FROM read_duckdb('x')",
		"FROM parquet_scan('" + file + "')",
		"SELECT (SELECT content FROM read_text('/etc/passwd'))", "WITH c AS (FROM read_text('/etc/passwd')) FROM c",
		"FROM read_csv('https://example.org/x.csv')", "FROM 's3://bucket/x.parquet'",
		"COPY sales TO 'x.csv'", "COPY (SELECT 1) TO '/tmp/x'", "EXPORT DATABASE 'x'", "IMPORT DATABASE 'x'",
		"ATTACH 'x.db'", "DETACH memory", "USE memory",
		"INSTALL httpfs", "LOAD httpfs", "LOAD '/tmp/x.duckdb_extension'", "UPDATE EXTENSIONS",
		"CREATE SECRET s (TYPE http)",
		"SET memory_limit = '1TB'", "SET enable_external_access = true", "RESET lock_configuration",
		"SET VARIABLE x = 1",
		"PRAGMA database_list", "PRAGMA enable_profiling", "PRAGMA json_execute_serialized_sql('{}')",
		"CALL pragma_version()", "CHECKPOINT", "VACUUM",
		"EXPLAIN SELECT 1", "EXPLAIN ANALYZE FROM sales", "DESCRIBE duckdb_settings()", "SUMMARIZE glob('*')",
		"SHOW TABLES",
		"FROM (SHOW ALL TABLES)", "FROM (DESCRIBE sales)",
		"PREPARE p AS SELECT 1", "EXECUTE p", "BEGIN", "SELECT 1; SELECT 2", "SELECT 1; DROP VIEW sales",
		"CREATE TABLE t AS FROM sales", "INSERT INTO sales VALUES ('x', 1)",
		"CREATE MACRO m() AS TABLE FROM read_text('/etc/passwd')", "CREATE FUNCTION f(a) AS a", "DROP VIEW sales",
		"ALTER VIEW sales RENAME TO s",
		"WITH x AS (INSERT INTO sales VALUES ('x', 1) RETURNING *) FROM x",
		"WITH x AS (DELETE FROM sales RETURNING *) FROM x",
		"FROM duckdb_settings()", "FROM duckdb_settings", "FROM duckdb_views()", "FROM duckdb_views",
		"FROM duckdb_secrets()", "FROM duckdb_variables()", "FROM pg_settings", "FROM pg_catalog.pg_settings",
		"FROM information_schema.tables", "FROM information_schema.columns", "FROM sqlite_master", "FROM pg_tables",
		"FROM main.sales", "FROM memory.main.sales", "FROM system.main.duckdb_views",
		"FROM duckdb_functions()", "FROM duckdb_databases()", "FROM duckdb_external_file_cache()",
		"FROM duckdb_temporary_files()", "FROM duckdb_logs", "FROM pragma_database_size()",
		"FROM query('SELECT 42')", "FROM query_table('sales')", "FROM query_table(['sales'])",
		"FROM json_execute_serialized_sql(json_serialize_sql('FROM sales'))",
		"FROM histogram('sales', 'n')", "FROM histogram_values(sales, n)", "FROM seq_scan('sales')",
		"FROM arrow_scan(1, 2, 3)", "FROM test_all_types()", "FROM summary(sales)", "FROM sql_auto_complete('SEL')",
		"FROM enable_logging()", "FROM checkpoint()", "FROM which_secret('x', 's3')", "FROM repeat(1, 2)",
		"SELECT current_setting('allowed_paths')", "SELECT CURRENT_SETTING('temp_directory')",
		"SELECT main.current_setting('home_directory')", "SELECT getenv('PATH')",
		"SELECT json_serialize_plan('SELECT current_setting(''allowed_paths'')', optimize := true)",
		"SELECT write_log('x')", "SELECT list_transform(['allowed_paths'], lambda s: current_setting(s))",
		"SELECT filename FROM sales", "SELECT file_row_number FROM sales", "SELECT rowid FROM sales",
		"FROM sales AT (VERSION => 1)", "SELECT $1", "SELECT ?",
		"FROM hidden", "FROM sales, hidden", "SELECT (SELECT count(*) FROM hidden)",
		"SELECT 1 WHERE EXISTS (FROM hidden)", "SELECT nope FROM sales", "SELECT FROM", "SELECT no_such_function(1)",
		"SELECT error('boom')", "SELECT name::INTEGER FROM sales",
	} {
		out, err := inEngine(t.Context(), t, sql, DefaultLimits, files)
		require.Error(t, err, "%s\n%s", sql, rowsOf(t, out))
		require.Contains(t, []fault.Kind{fault.Invalid, fault.NotFound}, fault.KindOf(err), "%s: %v", sql, err)
		require.Empty(t, out.List, sql)

		for _, leak := range []string{filepath.Dir(file), "storage-of-acme", "topsecret", os.TempDir() + "/", "root:",
			"dagctl view"} {
			if !strings.Contains(sql, leak) {
				require.NotContains(t, err.Error(), leak, sql)
			}
		}
	}
}

// TestHarmlessFunctions calls functions that look dangerous but reveal nothing.
func TestHarmlessFunctions(t *testing.T) {
	t.Parallel()
	file := table(t, "SELECT 1 AS n")
	for _, sql := range []string{
		"SELECT current_database(), current_schema(), current_schemas(true), current_user, version(), " +
			"pg_size_pretty(1)", "SELECT current_query()",
		"SELECT getvariable('x')", "SELECT json_serialize_sql('SELECT 1')", "SELECT parse_path('/etc/passwd')",
		"SELECT stats(n) FROM sales", "SELECT in_search_path('main', 'main')",
		"SELECT pg_get_viewdef(1), pg_conf_load_time(), inet_server_addr()",
		"SELECT has_table_privilege('sales', 'SELECT')",
		"SELECT json_deserialize_sql(json_serialize_sql('FROM read_text(''/etc/passwd'')'))",
		"FROM sales TABLESAMPLE 10%", "FROM (VALUES (1), (2)) AS v (x)",
		"SELECT alias(n), typeof(n), vector_type(n) FROM sales",
	} {
		out, err := inEngine(t.Context(), t, sql, DefaultLimits, map[string]string{"sales": file})
		require.NoError(t, err, sql)

		for _, leak := range []string{filepath.Dir(file), "root:", ".parquet"} {
			require.NotContains(t, rowsOf(t, out), leak, sql)
		}
	}
}

func TestSandboxLimits(t *testing.T) {
	t.Parallel()
	small := Limits{Memory: 128 << 20, Threads: 1, Timeout: time.Minute, Rows: 1000, Bytes: 1 << 20}
	quick := small
	quick.Timeout = 2 * time.Second
	for name, test := range map[string]struct {
		sql    string
		limits Limits
		kinds  []fault.Kind
	}{
		"memory": {"SELECT list(range) FROM range(100000000)", small, []fault.Kind{fault.TooLarge}},
		"sort": {"SELECT sum(n) FROM (SELECT row_number() OVER (ORDER BY hash(range)) AS n, range FROM " +
			"range(200000000)) WHERE range % 2 = 0", small, []fault.Kind{fault.TooLarge}},
		"one huge value": {"SELECT repeat('x', 3000000000)", small, []fault.Kind{fault.TooLarge, fault.Invalid}},
		"row too large":  {"SELECT repeat('x', 3000000)", small, []fault.Kind{fault.TooLarge}},
		"recursion": {"WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r, range(10)) SELECT " +
			"count(*) FROM r", quick, []fault.Kind{fault.TooLarge}},
		"cross join": {"SELECT count(*) FROM range(10000000000) a, range(10000000000) b WHERE a.range % 7 = " +
			"b.range % 3", quick, []fault.Kind{fault.TooLarge}},
		"doubling string": {"WITH RECURSIVE r AS (SELECT 'x' AS s, 1 AS n UNION ALL SELECT s || s, n + 1 FROM r " +
			"WHERE n < 40) SELECT max(length(s)) FROM r", small, []fault.Kind{fault.TooLarge, fault.Invalid}},
		"deep": {"SELECT " + strings.Repeat("(", 49_000) + "1" + strings.Repeat(")", 49_000), small,
			[]fault.Kind{fault.TooLarge, fault.Invalid}},
		"deep queries": {"SELECT * FROM " + strings.Repeat("(SELECT * FROM ", 5000) + "range(1)" +
			strings.Repeat(")", 5000), small, []fault.Kind{fault.TooLarge, fault.Invalid}},
		"deep operators": {"SELECT 1" + strings.Repeat("+1", 49_000), small,
			[]fault.Kind{fault.TooLarge, fault.Invalid}},
		"regex": {"SELECT regexp_matches(repeat('a', 1000000), '(a*)*b')", quick, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slow := fault.New(fault.TooLarge, "too slow")
			ctx, cancel := context.WithTimeoutCause(t.Context(), test.limits.Timeout, slow)
			defer cancel()
			begun := time.Now()
			_, err := inEngine(ctx, t, test.sql, test.limits, nil)
			require.Less(t, time.Since(begun), test.limits.Timeout+20*time.Second)

			if test.kinds != nil {
				require.Error(t, err)
				require.Contains(t, test.kinds, fault.KindOf(err), "%v", err)
				t.Log(err)
			}
		})
	}
}

func TestAnswersAreTruncated(t *testing.T) {
	t.Parallel()
	limits := DefaultLimits
	limits.Rows, limits.Bytes = 10, 1<<20
	out, err := inEngine(t.Context(), t, "FROM range(10)", limits, nil)
	require.NoError(t, err)
	require.Len(t, out.List, 10)
	require.False(t, out.Truncated)
	out, err = inEngine(t.Context(), t, "FROM range(11)", limits, nil)
	require.NoError(t, err)
	require.Len(t, out.List, 10)
	require.True(t, out.Truncated)
	out, err = inEngine(t.Context(), t, "SELECT repeat('x', 400000) FROM range(9)", limits, nil)
	require.NoError(t, err)
	require.Len(t, out.List, 2)
	require.True(t, out.Truncated)
}

// A statement leaves nothing behind: its process ends with it, and its folder.
func TestEveryStatementHasAnEngineOfItsOwn(t *testing.T) {
	t.Parallel()
	q := asking(t, DefaultLimits)
	org := uuid.New()
	seen := map[int]bool{}
	for range 3 {
		a, _, err := q.begin(t.Context(), org, "tester", relations.UTC, Statement{SQL: "SELECT 1", Limit: 1})
		require.NoError(t, err)
		require.False(t, seen[a.PID()])
		seen[a.PID()] = true
		own, err := a.Own()
		require.NoError(t, err)
		a.Discard()
		require.NoDirExists(t, filepath.Dir(filepath.Dir(own)))
		require.ErrorIs(t, syscall.Kill(a.PID(), 0), syscall.ESRCH)
	}
}

func TestCallersDoNotShareRights(t *testing.T) {
	t.Parallel()
	all := map[string]bool{}
	for _, caller := range []authz.Caller{{Actor: "token:a", Role: authz.RoleReader},
		{Actor: "token:a", Role: authz.RoleWriter}, {Actor: "token:b", Role: authz.RoleReader},
		{Actor: "token:a", Role: authz.RoleReader, OrgRoles: []string{"role:finance"}}} {
		all[as(caller)] = true
	}
	require.Len(t, all, 4)
}

// BenchmarkStatement measures the fixed cost of a query: a process, in which DuckDB starts once.
func BenchmarkStatement(b *testing.B) {
	q := asking(b, DefaultLimits)
	for b.Loop() {
		a, _, err := q.begin(b.Context(), uuid.Nil, "tester", relations.UTC, Statement{SQL: "SELECT 1", Limit: 1})
		require.NoError(b, err)
		_, err = a.rows(b.Context(), nil)
		require.NoError(b, err)
		a.Discard()
	}
}

// BenchmarkStatementAgain measures it in an engine that has had a statement before.
func BenchmarkStatementAgain(b *testing.B) {
	q := asking(b, DefaultLimits)
	for b.Loop() {
		a, _, err := q.begin(b.Context(), uuid.Nil, "tester", relations.UTC, Statement{SQL: "SELECT 1", Limit: 1})
		require.NoError(b, err)
		_, err = a.rows(b.Context(), nil)
		require.NoError(b, err)
		a.Release()
	}
}
