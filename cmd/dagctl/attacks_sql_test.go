//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// refusedSQL are statements that reach for files, settings, other statements and other datasets. They are refused,
// whether they are queries, the SQL of jobs or checks.
func refusedSQL(secret string) []string {
	return []string{
		"SELECT * FROM read_csv('" + secret + "')", "SELECT * FROM '/etc/passwd'", `FROM "` + secret + `"`,
		"FROM '0.parquet'", "FROM '*.parquet'", "FROM '../*/*.parquet'", "FROM 'in/0.parquet'",
		"FROM read_text('/proc/self/environ')", "FROM read_blob('/proc/self/maps')", "FROM read_parquet('0.parquet')",
		"FROM read_text('/proc/self/fd/3')", "FROM read_text('/proc/self/cmdline')", "FROM read_json('/etc/passwd')",
		"FROM read_ndjson_objects('/etc/passwd')", "FROM read_csv_auto('/etc/passwd')", "FROM parquet_schema('x')",
		"FROM parquet_metadata('0.parquet')", "FROM parquet_kv_metadata('*')", "FROM parquet_bloom_probe('x', 'y', 1)",
		"FROM sniff_csv('" + secret + "')", "FROM glob('/*')", "FROM glob('**')", "FROM read_duckdb('x')",
		"FROM parquet_scan('/tmp/x')", "SELECT (SELECT content FROM read_text('/etc/passwd'))",
		"WITH c AS (FROM read_text('/etc/passwd')) FROM c", "SELECT 1 FROM sales, read_text('/etc/passwd')",
		"SELECT 1 FROM sales, LATERAL (FROM read_text(name))", "FROM read_csv('https://example.org/x.csv')",
		"FROM 's3://bucket/x.parquet'", "FROM 'http://127.0.0.1/x.parquet'", "FROM postgres_scan('', 'public', 'x')",
		"FROM sqlite_scan('x', 'y')", "FROM iceberg_scan('x')", "FROM delta_scan('x')", "FROM st_read('x')",
		"COPY sales TO 'x.csv'", "COPY (SELECT 1) TO '/tmp/x'", "COPY sales FROM PROGRAM 'id'", "EXPORT DATABASE 'x'",
		"IMPORT DATABASE 'x'", "ATTACH 'x.db'", "ATTACH '' AS p (TYPE postgres)", "DETACH memory", "USE memory",
		"INSTALL httpfs", "LOAD httpfs", "LOAD '/tmp/x.duckdb_extension'", "UPDATE EXTENSIONS",
		"FORCE INSTALL x FROM 'http://127.0.0.1'", "CREATE SECRET s (TYPE http)", "SET memory_limit = '1TB'",
		"SET enable_external_access = true", "SET allowed_directories = ['/']", "SET lock_configuration = false",
		"SET log_query_path = '/tmp/x'", "RESET lock_configuration", "SET VARIABLE x = 1", "PRAGMA database_list",
		"PRAGMA enable_profiling", "PRAGMA json_execute_serialized_sql('{}')", "CALL pragma_version()", "CHECKPOINT",
		"VACUUM", "EXPLAIN SELECT 1", "EXPLAIN ANALYZE FROM sales", "DESCRIBE duckdb_settings()", "SHOW TABLES",
		"FROM (SHOW ALL TABLES)", "FROM (DESCRIBE sales)", "FROM (SUMMARIZE sales)", "PREPARE p AS SELECT 1",
		"EXECUTE p", "BEGIN", "COMMIT", "SELECT 1; SELECT 2", "SELECT 1; DROP VIEW sales", "; ; DROP VIEW sales",
		"CREATE TABLE t AS FROM sales", "INSERT INTO sales VALUES ('x', 1)", "UPDATE sales SET n = 1",
		"DELETE FROM sales", "TRUNCATE sales", "MERGE INTO sales USING sales s ON true WHEN MATCHED THEN DELETE",
		"CREATE MACRO m() AS TABLE FROM read_text('/etc/passwd')", "CREATE FUNCTION f(a) AS a", "DROP VIEW sales",
		"CREATE TYPE t AS ENUM (FROM read_text('/etc/passwd'))", "COMMENT ON VIEW sales IS 'x'",
		"ALTER VIEW sales RENAME TO s", "WITH x AS (INSERT INTO sales VALUES ('x', 1) RETURNING *) FROM x",
		"WITH x AS (DELETE FROM sales RETURNING *) FROM x", "FROM duckdb_settings()", "FROM duckdb_settings",
		"FROM duckdb_views()", "FROM duckdb_views", "FROM duckdb_secrets()", "FROM duckdb_variables()",
		"FROM pg_settings", "FROM pg_catalog.pg_settings", "FROM pg_catalog.pg_class", "FROM information_schema.tables",
		"FROM information_schema.columns", "FROM sqlite_master", "FROM pg_tables", "FROM main.sales",
		"FROM memory.main.sales", "FROM system.main.duckdb_views", "FROM temp.sales", "FROM duckdb_functions()",
		"FROM duckdb_databases()", "FROM duckdb_external_file_cache()", "FROM duckdb_temporary_files()",
		"FROM duckdb_logs", "FROM pragma_database_size()", "FROM pragma_storage_info('sales')",
		"FROM query('SELECT 42')", "FROM query_table('sales')", "FROM query_table(['sales'])",
		"FROM json_execute_serialized_sql(json_serialize_sql('FROM sales'))", "FROM histogram('sales', 'n')",
		"FROM histogram_values(sales, n)", "FROM seq_scan('sales')", "FROM arrow_scan(1, 2, 3)",
		"FROM pandas_scan(1)", "FROM test_all_types()", "FROM summary(sales)", "FROM sql_auto_complete('SEL')",
		"FROM enable_logging()", "FROM checkpoint()", "FROM force_checkpoint()", "FROM which_secret('x', 's3')",
		"FROM repeat(1, 2)", "SELECT current_setting('allowed_paths')", "SELECT CURRENT_SETTING('temp_directory')",
		"SELECT main.current_setting('home_directory')", "SELECT getenv('PATH')", "SELECT GetEnv('CANARY')",
		`SELECT "getenv"('DAGCTL_DATABASE_URL')`, "SELECT system.main.getenv('PATH')",
		"SELECT [getenv(x) FOR x IN ['PATH']]", "SELECT list_transform(['PATH'], lambda s: getenv(s))",
		"SELECT json_serialize_plan('SELECT current_setting(''allowed_paths'')', optimize := true)",
		"SELECT write_log('x')", "SELECT list_transform(['allowed_paths'], lambda s: current_setting(s))",
		"SELECT n FROM sales ORDER BY getenv('PATH')", "SELECT n FROM sales QUALIFY row_number() OVER (ORDER BY " +
			"getenv('x')) = 1",
		"SELECT count(*) FILTER (getenv('PATH') IS NOT NULL) FROM sales", "VALUES (getenv('PATH'))",
		"SELECT filename FROM sales", "SELECT file_row_number FROM sales", "SELECT rowid FROM sales",
		"FROM sales AT (VERSION => 1)", "SELECT $1", "SELECT ?", "SELECT $secret", "FROM vault", `FROM "quiet/kept/0"`,
		"FROM umbrella.vault", `FROM "umbrella/vault"`, "FROM sales, vault", "SELECT (SELECT count(*) FROM vault)",
		"SELECT 1 WHERE EXISTS (FROM vault)", "FROM data_umbrella.vault", "FROM tasks", "FROM public.tasks",
		"FROM secrets", "SELECT nope FROM sales", "SELECT FROM", "SELECT no_such_function(1)",
		"SELECT lo_import('/etc/passwd')", "SELECT pg_read_file('/etc/passwd')", "SELECT set_config('a', 'b', false)",
		"SELECT 1 FROM FROM", "\x00", "SELECT 'x\x00y'", "SELECT '", "/*", "SELECT 1 /* ", "--", ";", "((((",
	}
}

// harmlessSQL looks dangerous and shows nothing of the server.
var harmlessSQL = []string{
	"SELECT pg_sleep(1000) AS x",
	"SELECT current_database() AS a, current_schema() AS b, current_user AS c, version() AS d",
	"SELECT current_query() AS q",
	"SELECT getvariable('x')::VARCHAR AS x", "SELECT json_serialize_sql('SELECT 1')::VARCHAR AS x",
	"SELECT parse_path('/etc/passwd') AS x", "SELECT stats(n) AS x FROM sales", "SELECT alias(n) AS x FROM sales",
	"SELECT json_deserialize_sql(json_serialize_sql('FROM read_text(''/etc/passwd'')')) AS x",
	"SELECT pg_get_viewdef(1) AS x", "SELECT has_table_privilege('sales', 'SELECT') AS x", "SELECT * FROM sales",
	"SELECT e'\\x2f\\x65\\x74\\x63' AS x", "SELECT \"name\" AS \"'; DROP TABLE tasks; --\" FROM sales",
	"SELECT txid_current()::BIGINT AS x", "SELECT error(name) AS x FROM sales", "SELECT name::INTEGER AS x FROM sales",
}

// runningBombs take time and memory while they run.
var runningBombs = map[string]string{
	"memory": "SELECT list(range) AS x FROM range(100000000)",
	"sort": "SELECT sum(n) AS x FROM (SELECT row_number() OVER (ORDER BY hash(range)) AS n, range FROM " +
		"range(200000000)) WHERE range % 2 = 0",
	"one huge value": "SELECT repeat('x', 3000000000) AS x", "large row": "SELECT repeat('x', 30000000) AS x",
	"recursion": "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r, range(10)) SELECT count(*) " +
		"AS x FROM r",
	"cross join": "SELECT count(*) AS x FROM range(10000000000) a, range(10000000000) b WHERE a.range % 7 = " +
		"b.range % 3",
	"doubling": "WITH RECURSIVE r AS (SELECT 'x' AS s, 1 AS n UNION ALL SELECT s || s, n + 1 FROM r WHERE n < " +
		"40) SELECT max(length(s)) AS x FROM r",
	"regex":      "SELECT regexp_matches(repeat('a', 1000000), '(a*)*b') AS x FROM sales",
	"aggregates": "SELECT string_agg(repeat('x', 1000000)) AS x FROM range(1000000)",
	"window": "SELECT max(s) AS x FROM (SELECT string_agg(range::VARCHAR) OVER (ORDER BY range) AS s FROM " +
		"range(1000000))",
}

// parseBombs take time and memory before anything runs: in the parser, the binder, the optimizer or by constants that
// are computed.
func parseBombs() map[string]string {
	doubled := "WITH c0 AS (SELECT * FROM sales a, sales b)"
	for i := range 40 {
		doubled += fmt.Sprintf(", c%d AS (SELECT * FROM c%d a, c%d b)", i+1, i, i)
	}
	many := func(n int, word string) string { return strings.Repeat(word, n) }
	return map[string]string{
		"conditions":     "SELECT 1 AS x FROM sales WHERE true" + many(9_000, " AND true"),
		"parentheses":    "SELECT " + many(49_000, "(") + "1" + many(49_000, ")") + " AS x",
		"operators":      "SELECT 1" + many(49_000, "+1") + " AS x",
		"queries":        "SELECT * FROM " + many(5000, "(SELECT * FROM ") + "sales" + many(5000, ")"),
		"doubled tables": doubled + " SELECT 1 AS x FROM c40",
		"JSON " +
			"types": `SELECT json_transform('1', repeat('[', 100000) || '"INT"' || repeat(']', 100000)) AS x FROM sales`,
		"constants":     "SELECT repeat('x', 3000000000) AS x FROM sales",
		"a constant":    "SELECT list_sum(range(10000000000)) AS x FROM sales",
		"lists":         "SELECT " + many(30_000, "[") + "1" + many(30_000, "]") + " AS x",
		"unions":        "SELECT 1 AS x" + many(5_000, " UNION SELECT 1"),
		"unions of all": "SELECT 1 AS x" + many(4_500, " UNION ALL SELECT 1"),
		"values":        "SELECT 1 AS x WHERE 1 IN (1" + many(49_000, ",1") + ")",
		"cases":         "SELECT " + many(4_000, "CASE WHEN true THEN ") + "1" + many(4_000, " END") + " AS x",
		"joins":         "SELECT 1 AS x FROM sales s0" + many(2_000, ", sales"),
		"natural joins": "SELECT 1 AS x FROM sales" + many(3_000, " NATURAL JOIN sales"),
		"columns":       "SELECT 1 AS x" + many(30_000, ", 1"),
		"lambdas":       "SELECT " + many(1_000, "list_transform([1], lambda x: ") + "x" + many(1_000, ")") + " AS x",
		"a long name":   `SELECT 1 AS "` + many(90_000, "x") + `"`,
		"cubes":         "SELECT 1 AS x FROM sales GROUP BY CUBE (" + strings.TrimSuffix(many(60, "n,"), ",") + ")",
		"sets": "SELECT 1 AS x FROM sales GROUP BY GROUPING SETS (" + strings.TrimSuffix(many(9_000,
			"(n),"), ",") + ")",
		"a pivot": "FROM (PIVOT sales ON name IN (SELECT range::VARCHAR FROM range(100000)) USING sum(n))",
		"casts":   "SELECT 1" + many(9_000, "::INTEGER") + " AS x",
		"not":     "SELECT " + many(24_000, "NOT ") + "true AS x",
		"minus":   "SELECT " + many(48_000, "- ") + "1 AS x",
		"a regex": "SELECT regexp_matches('x', '" + many(5_000, "(a{1,100}") + many(5_000, "){1,100}") +
			"') AS x",
		"a type":        "SELECT NULL::" + many(9_000, "STRUCT(a ") + "INTEGER" + many(9_000, ")") + " AS x",
		"a wide type":   "SELECT NULL::INTEGER" + many(30_000, "[]") + " AS x",
		"a big decimal": "SELECT 1e" + many(50_000, "9") + " AS x",
	}
}

// queriedBombs are the parse bombs that are sent as queries, too.
var queriedBombs = []string{"parentheses", "doubled tables", "JSON types", "a constant", "a big decimal", "lambdas"}

// attackBySQL sends statements as queries, and as the SQL of jobs and checks.
func (a *arena) attackBySQL(t *testing.T) {
	t.Run("queries", func(t *testing.T) {
		statements := refusedSQL(a.secret)
		if !*allAttacks { // package query sends all of them to engines
			kept := statements[:0]
			for i := 0; i < len(statements); i += 4 {
				kept = append(kept, statements[i])
			}
			statements = kept
		}
		each(3, statements, func(sql string) {
			status, text := a.post(t, "query", sql, "/v1/query", map[string]string{"sql": sql})
			assert.GreaterOrEqual(t, status, 400, "%s\n%s", sql, text)
		})
		each(3, harmlessSQL, func(sql string) {
			a.post(t, "query", sql, "/v1/query", map[string]string{"sql": sql})
		})
	})
	t.Run("jobs", func(t *testing.T) {
		for _, r := range a.attackByJobs(t, "sql", jobsOf(refusedSQL(a.secret))) {
			assert.Equal(t, "dead", r.Waiting, "%s: %s", r.name, r.Result)
		}
		a.attackByJobs(t, "sql", jobsOf(harmlessSQL))
	})
	t.Run("checks", func(t *testing.T) {
		list := refusedSQL(a.secret)
		var checks []string
		for _, at := range a.refused(t, "check", checksOf(list)) {
			list[at] = ""
		}
		for _, sql := range append(list, harmlessSQL...) {
			if sql != "" {
				checks = append(checks, fmt.Sprintf("{ name: c%d, severity: warn, sql: %s }", len(checks),
					yamlText(sql)))
			}
		}
		a.run(t, "check", []attackJob{{name: "checks", yaml: fromSales + "config: { query: FROM sales }, checks: [" +
			strings.Join(checks, ", ") + "]"}})
	})
}

const fromSales = "operator: sql, inputs: [{ from: { dataset: sales } }], max_attempts: 1, timeout_seconds: 5, "

// jobsOf returns a job for each statement, which has it as its query.
func jobsOf(statements []string) (jobs []attackJob) {
	for _, sql := range statements {
		jobs = append(jobs, attackJob{sql, fromSales + "config: { query: " + yamlText(sql) + " }"})
	}
	return jobs
}

// checksOf returns a job for each statement, which has it in a check.
func checksOf(statements []string) (jobs []attackJob) {
	for _, sql := range statements {
		jobs = append(jobs, attackJob{sql, fromSales + "config: { query: FROM sales }, " +
			"checks: [{ name: bad, severity: warn, sql: " + yamlText(sql) + " }]"})
	}
	return jobs
}

// attackByBombs sends what takes time and memory: as plans, as queries and as tasks.
func (a *arena) attackByBombs(t *testing.T) {
	t.Run("parse", func(t *testing.T) {
		bombs := parseBombs()
		if !*allAttacks {
			for _, slow := range []string{"columns", "sets", "unions", "unions of all", "values"} {
				delete(bombs, slow)
			}
		}
		each(2, slices.Sorted(maps.Keys(bombs)), func(name string) {
			began := time.Now()
			a.plan(t, "parse bomb", "plan: "+name, document("attack", jobsOf([]string{bombs[name]})))
			if slices.Contains(queriedBombs, name) {
				a.post(t, "parse bomb", "query: "+name, "/v1/query", map[string]string{"sql": bombs[name]})
			}
			t.Logf("%s: %s", name, time.Since(began).Round(time.Millisecond))
		})
	})
	t.Run("queries", func(t *testing.T) {
		each(3, slices.Sorted(maps.Keys(runningBombs)), func(name string) {
			a.post(t, "running bomb", name, "/v1/query", map[string]string{"sql": runningBombs[name]})
		})
	})
	t.Run("tasks", func(t *testing.T) {
		for _, r := range a.attackByJobs(t, "running bomb", jobsOf(slices.Collect(maps.Values(runningBombs)))) {
			t.Logf("%.60s %s %s", r.name, r.Status, r.Error)
		}
	})
}
