//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/internal/rest"
)

// attempt is a statement that must not do what it tries, and what the refusal says.
type attempt struct {
	sql  string
	says string
}

// What refusals say.
const (
	onlySelect   = "only a SELECT is allowed"
	noDataset    = "there is no dataset"
	noTable      = "the table function"
	noFunction   = "the function"
	noQualified  = "relations are plain names"
	noStatements = "there must be exactly one SELECT"
	noShow       = "DESCRIBE, SHOW and SUMMARIZE are not allowed"
	noParameters = "parameters ($name, ?) are not allowed"
	noSyntax     = "syntax error"
	noBinding    = "Binder Error"
	noCatalogue  = "Catalog Error"
)

// sandboxAttempts are the statements that are sent through the API and through the page.
var sandboxAttempts = slices.Concat(
	refusedWith(noDataset, // names of files and URLs are names of datasets, which do not exist
		"FROM '/etc/passwd'", `FROM "/etc/passwd"`, "FROM '/proc/self/environ'", "FROM '*.parquet'",
		"FROM '0.parquet'",
		"FROM 'in/0.parquet'", "FROM '../**/*.parquet'", "FROM 'https://example.org/x.csv'",
		"FROM 's3://bucket/x.parquet'",
		"FROM 'file:///etc/passwd'", "FROM 'x.db'", "FROM 'x.csv.gz'", "FROM 'hf://datasets/x/y.parquet'",
		"FROM 'C:\\x.csv'",
		"SELECT (SELECT count(*) FROM '/etc/passwd')", "WITH a AS (FROM '/etc/hosts') FROM a",
		"SELECT 1 WHERE EXISTS (FROM '/etc/passwd')", "SELECT 1 UNION ALL SELECT 2 FROM '/etc/passwd'",
		"/* x */ FROM /* y */ '/etc/passwd' -- z", "FROM\n\t'/etc/passwd'",
		"FROM \"\u2215etc\u2215passwd\"", "FROM \"daily_highest\u200b\"", "FROM dаily_highest",
		"FROM vault", `FROM "VAULT"`, `FROM "quiet/kept/0"`, `FROM "umbrella/vault"`, "FROM daily_highest, vault",
		"SELECT * FROM daily_highest JOIN vault USING (station)",
		"SELECT (SELECT max(secret) FROM vault) FROM daily_highest",
		"WITH vault2 AS (FROM vault) FROM vault2", "WITH RECURSIVE r AS (FROM r) SELECT 1 FROM r, vault",
		"FROM (PIVOT vault ON station IN ('a') USING count(*))", "FROM (UNPIVOT vault ON secret)",
		"SELECT * FROM daily_highest WHERE station IN (SELECT secret FROM vault)",
		"FROM daily_highest ASOF JOIN vault USING (n)",
		`FROM "readings/landing/0"`, "FROM duckdb_settings", "FROM duckdb_tables", "FROM duckdb_columns",
		"FROM duckdb_views",
		"FROM pg_settings", "FROM pg_class", "FROM pg_tables", "FROM sqlite_master", "FROM sqlite_schema",
		"FROM pragma_database_list",
		"FROM tables", "FROM datasets", "FROM partition_versions", "FROM secrets", "FROM duckdb_logs",
		`FROM "dagctl view 1"`),
	refusedWith(noQualified,
		"FROM information_schema.tables", "FROM information_schema.columns", "FROM information_schema.schemata",
		"FROM pg_catalog.pg_class", "FROM pg_catalog.pg_settings", "FROM main.daily_highest",
		"FROM memory.main.daily_highest",
		"FROM temp.daily_highest", "FROM system.main.duckdb_views", "FROM umbrella.vault",
		"FROM data_acme.daily_highest",
		`FROM "public"."tokens"`, "FROM system.information_schema.tables", "FROM main.\"/etc/passwd\""),
	refusedWith(noTable,
		"FROM read_csv('/etc/passwd')", "FROM read_csv_auto('/etc/passwd')", "FROM READ_CSV('/etc/passwd')",
		`FROM "read_csv"('/etc/passwd')`, "FROM main.read_csv('/etc/passwd')", "FROM read_text('/proc/self/environ')",
		"FROM read_text(['/etc/passwd'])", "FROM read_blob('/proc/self/maps')", "FROM read_json('/etc/passwd')",
		"FROM read_json_auto('x')", "FROM read_json_objects('x')", "FROM read_ndjson('x')",
		"FROM read_ndjson_objects('x')",
		"FROM read_parquet('*')", "FROM read_parquet(['0.parquet', '/etc/passwd'])", "FROM parquet_scan('x')",
		"FROM parquet_metadata('*')", "FROM parquet_schema('*')", "FROM parquet_kv_metadata('*')",
		"FROM parquet_file_metadata('*')", "FROM parquet_bloom_probe('x', 'y', 1)", "FROM sniff_csv('/etc/passwd')",
		"FROM glob('/*')", "FROM glob('**')", "FROM read_duckdb('x')", "FROM sqlite_scan('x', 'y')",
		"FROM postgres_scan('', 'public', 'tokens')", "FROM postgres_query('x', 'SELECT 1')",
		"FROM mysql_query('x', 'y')",
		"FROM iceberg_scan('x')", "FROM delta_scan('x')", "FROM st_read('x')", "FROM read_xlsx('x.xlsx')",
		"FROM arrow_scan(1, 2, 3)", "FROM pandas_scan(1)", "FROM seq_scan('vault')", "FROM query('FROM vault')",
		"FROM query_table('vault')", "FROM query_table(['daily_highest', 'vault'])",
		"FROM query('SELECT 1; DROP VIEW x')",
		"FROM json_execute_serialized_sql(json_serialize_sql('FROM vault'))",
		"FROM sql_auto_complete('SELECT * FROM v')",
		"FROM duckdb_settings()", "FROM duckdb_secrets()", "FROM duckdb_tables()", "FROM duckdb_columns()",
		"FROM duckdb_views()", "FROM duckdb_functions()", "FROM duckdb_databases()", "FROM duckdb_extensions()",
		"FROM duckdb_variables()", "FROM duckdb_memory()", "FROM duckdb_temporary_files()",
		"FROM duckdb_external_file_cache()",
		"FROM pragma_database_list()", "FROM pragma_table_info('vault')", "FROM pragma_storage_info('vault')",
		"FROM pragma_database_size()", "FROM pragma_version()", "FROM pragma_user_agent()",
		"FROM which_secret('x', 's3')",
		"FROM test_all_types()", "FROM summary(daily_highest)", "FROM checkpoint()", "FROM force_checkpoint()",
		"FROM enable_logging()", "FROM enable_profiling()", "FROM histogram('vault', 'x')",
		"FROM repeat_row(1, num_rows = 9)",
		"SELECT 1 FROM daily_highest, LATERAL (FROM read_text(station))", "WITH c AS (FROM read_text('x')) SELECT 1",
		"SELECT (SELECT content FROM read_text('/etc/passwd'))", "FROM parse_duckdb_log_message('x')",
		"SELECT 1 WHERE (SELECT 1 FROM glob('/')) = 1", "FROM (FROM (FROM read_text('/etc/passwd')))"),
	refusedWith(noFunction,
		"SELECT getenv('PATH')", "SELECT GETENV('DAGCTL_DATABASE_URL')", `SELECT "getenv"('HOME')`,
		"SELECT main.getenv('x')",
		"SELECT system.main.getenv('PATH')", "SELECT [getenv(x) FOR x IN ['PATH']]",
		"SELECT list_transform(['PATH'], lambda s: getenv(s))", "SELECT current_setting('allowed_paths')",
		"SELECT main.current_setting('home_directory')", "SELECT CURRENT_SETTING('temp_directory')",
		"SELECT 1 ORDER BY current_setting('threads')", "VALUES (getenv('PATH'))",
		"SELECT count(*) FILTER (getenv('x') IS NULL)",
		"SELECT json_serialize_plan('SELECT current_setting(''allowed_paths'')')", "SELECT write_log('x')",
		"SELECT sum(1) OVER (ORDER BY getenv('x'))", "SELECT CASE WHEN getenv('x') = 'y' THEN 1 END",
		"SELECT 1 GROUP BY getenv('x')", "SELECT 1 LIMIT length(getenv('PATH'))", "SELECT getenv/**/('x')"),
	refusedWith(onlySelect,
		"COPY daily_highest TO 'x.csv'", "COPY (SELECT 1) TO '/tmp/x'", "COPY daily_highest FROM '/etc/passwd'",
		"EXPORT DATABASE 'x'", "ATTACH 'x.db'", "ATTACH '' AS p (TYPE postgres)", "DETACH memory", "USE memory",
		"INSTALL httpfs", "LOAD httpfs", "LOAD '/tmp/x.duckdb_extension'", "FORCE INSTALL x FROM 'http://127.0.0.1'",
		"UPDATE EXTENSIONS", "CREATE SECRET s (TYPE http)", "DROP SECRET s", "SET memory_limit = '1TB'",
		"SET enable_external_access = true", "SET allowed_directories = ['/']", "SET lock_configuration = false",
		"SET VARIABLE x = 1", "RESET lock_configuration", "PRAGMA database_list", "PRAGMA enable_profiling",
		"CALL pragma_version()", "CHECKPOINT", "VACUUM", "ANALYZE", "EXPLAIN SELECT 1", "EXPLAIN ANALYZE SELECT 1",
		"PREPARE p AS SELECT 1", "EXECUTE p", "DEALLOCATE p", "BEGIN", "COMMIT", "ROLLBACK",
		"CREATE TABLE t AS SELECT 1",
		"CREATE VIEW v AS SELECT 1", "CREATE OR REPLACE TEMP VIEW daily_highest AS SELECT 1",
		"CREATE MACRO m() AS TABLE FROM read_text('/etc/passwd')", "CREATE FUNCTION f(a) AS a", "CREATE SCHEMA s",
		"CREATE SEQUENCE s", "CREATE TYPE t AS ENUM ('a')", "DROP VIEW daily_highest",
		"ALTER VIEW daily_highest RENAME TO s",
		"INSERT INTO daily_highest VALUES ('x', 1)", "UPDATE daily_highest SET highest = 1",
		"DELETE FROM daily_highest",
		"TRUNCATE daily_highest", "COMMENT ON VIEW daily_highest IS 'x'"),
	refusedWith(noStatements, "SELECT 1; SELECT 2", "SELECT 1; SELECT 2; SELECT 3", ";", "-- nothing",
		"/* nothing */"),
	refusedWith("", // several refusals fit
		`FROM U&"\002Fetc\002Fpasswd"`, "SELECT 'PATH'.getenv()", "SELECT get/**/env('x')",
		"SELECT 1; DROP VIEW daily_highest", "IMPORT DATABASE 'x'", "COPY daily_highest FROM PROGRAM 'id'",
		"WITH x AS (INSERT INTO daily_highest VALUES ('x', 1) RETURNING *) FROM x", "DESCRIBE duckdb_settings()",
		"WITH x AS (DELETE FROM daily_highest RETURNING *) FROM x", "SUMMARIZE glob('*')", "SHOW TABLES",
		"SHOW ALL TABLES",
		"MERGE INTO daily_highest USING daily_highest s ON true WHEN MATCHED THEN DELETE", "SHOW memory_limit",
		"SELECT 1; ; COPY (SELECT 1) TO '/tmp/x'", "SELECT 1 INTO OUTFILE '/tmp/x'",
		"SELECT * INTO t FROM daily_highest",
		"PIVOT daily_highest ON station", "FROM daily_highest AT (VERSION => 1)",
		"\ufeffCOPY (SELECT 1) TO '/tmp/x'"),
	refusedWith(noShow, "FROM (DESCRIBE daily_highest)", "FROM (SUMMARIZE daily_highest)", "FROM (SHOW ALL TABLES)",
		"FROM (SHOW TABLES)", "WITH x AS (FROM (DESCRIBE vault)) FROM x"),
	refusedWith(noParameters, "SELECT $1", "SELECT ?", "SELECT $secret", "FROM daily_highest LIMIT ?"),
	refusedWith(noSyntax, "SELECT FROM", "SELECT 1 FROM FROM", "((((", "SELECT 1 /", "GRANT ALL TO x", "LISTEN x"),
	refusedWith(noBinding, "SELECT filename FROM daily_highest", "SELECT file_row_number FROM daily_highest",
		"SELECT rowid FROM daily_highest", "SELECT nope FROM daily_highest"),
	refusedWith(noCatalogue, "SELECT pg_read_file('/etc/passwd')", "SELECT lo_import('/etc/passwd')",
		"SELECT load_extension('x')",
		"SELECT system('id')", "SELECT set_config('a', 'b', false)", "SELECT dblink('x')",
		"SELECT no_such_function(1)",
		"SELECT http_get('http://127.0.0.1')", "SELECT sys_exec('id')", "SELECT readfile('/etc/passwd')"),
)

func refusedWith(says string, statements ...string) (all []attempt) {
	for _, sql := range statements {
		all = append(all, attempt{sql, says})
	}
	return all
}

// queryBombs take time, memory or rows. They reach a limit, which the answer names, or answer within it.
var queryBombs = map[string]string{
	"rows":   "FROM generate_series(1, 10000000000)",
	"memory": "SELECT list(range) FROM range(100000000)",
	"sort": "SELECT sum(n) FROM (SELECT row_number() OVER (ORDER BY hash(range)) AS n FROM " +
		"range(200000000))",
	"a value": "SELECT repeat('x', 1000000000)",
	"values":  "SELECT repeat('x', 1000000) FROM range(1000000)",
	"a list":  "SELECT range(1000000000)",
	"lists":   "SELECT list_transform(range(1000000), lambda x: range(x))",
	"structs": "SELECT {'a': list(repeat('y', 100000))} FROM range(100000)",
	"recursion": "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r, range(10)) SELECT " +
		"count(*) FROM r",
	"endless": "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n FROM r) SELECT count(*) FROM r",
	"doubling": "WITH RECURSIVE r AS (SELECT 'x' AS s, 1 AS n UNION ALL SELECT s || s, n + 1 FROM r " +
		"WHERE n < 40) SELECT max(length(s)) FROM r",
	"cross join": "SELECT count(*) FROM range(10000000000) a, range(10000000000) b WHERE a.range % 7 = " +
		"b.range % 3",
	"nesting": "SELECT " + strings.Repeat("(", 49_000) + "1" + strings.Repeat(")", 49_000),
	"subqueries": "SELECT * FROM " + strings.Repeat("(SELECT * FROM ", 5000) + "range(1)" + strings.Repeat(")",
		5000),
	"operators": "SELECT 1" + strings.Repeat("+1", 49_000),
	"lambdas": "SELECT " + strings.Repeat("list_transform([1], lambda x: ", 1000) + "x" +
		strings.Repeat(")", 1000),
	"a regex": "SELECT regexp_matches(repeat('a', 1000000), '(a*)*b')",
	"a large regex": "SELECT regexp_matches('x', '" + strings.Repeat("(a{1,100}", 5000) +
		strings.Repeat("){1,100}", 5000) + "')",
	"a pivot": "FROM (PIVOT (SELECT range::VARCHAR AS r FROM range(9)) ON r IN (SELECT range::VARCHAR " +
		"FROM range(100000)) USING count(*))",
	"columns": "SELECT 1" + strings.Repeat(", 1", 30_000),
	"cubes": "SELECT 1 FROM (SELECT 1 AS n) GROUP BY CUBE (" + strings.TrimSuffix(strings.Repeat("n,",
		60), ",") + ")",
	"an aggregate": "SELECT string_agg(repeat('x', 1000000)) FROM range(1000000)",
	"a window": "SELECT max(s) FROM (SELECT string_agg(range::VARCHAR) OVER (ORDER BY range) AS s FROM " +
		"range(1000000))",
	"a constant":       "SELECT list_sum(range(10000000000))",
	"a sleep":          "SELECT pg_sleep(1000)",
	"padding":          "SELECT lpad('x', 2000000000, 'y')",
	"a big number":     "SELECT 1e" + strings.Repeat("9", 50_000),
	"a bit string":     "SELECT bitstring('1', 2000000000)",
	"a map":            "SELECT map(range(50000000), range(50000000))",
	"JSON":             `SELECT json_transform('1', repeat('[', 100000) || '"INT"' || repeat(']', 100000))`,
	"many conditions":  "SELECT 1 WHERE true" + strings.Repeat(" AND true", 9000),
	"unions":           "SELECT 1" + strings.Repeat(" UNION SELECT 1", 5000),
	"factorial":        "SELECT factorial(30)",
	"levenshtein":      "SELECT levenshtein(repeat('a', 200000), repeat('b', 200000))",
	"a long statement": "SELECT '" + strings.Repeat("x", 99_000) + "'",
}

// Nothing gets through the sandbox, whichever way it comes, and the server answers after all of it.
func TestQuerySandbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(cfg *server.Config) { cfg.Queries.Concurrent = 8 })
	w.deployReadings(t, "2026-01-01")
	hidden := strings.NewReplacer("name: readings", "name: quiet", "daily_highest", "vault").Replace(readingsDAG)
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "quiet", hidden))
	_, err := w.pool.Exec(t.Context(), `UPDATE datasets SET read_roles = '{role:finance}' WHERE name = 'vault'`)
	require.NoError(t, err)
	must(t, w.env(t, admin), "query", "FROM vault")
	require.Greater(t, len(sandboxAttempts), 150)

	leaks := []string{w.files, w.roots, os.TempDir() + "/", "root:x:", "postgres://", "dagctl view 1\""}
	check := func(way, sql, says string, status int, body string) {
		assert.GreaterOrEqual(t, status, 400, "%s: %.200s\n%.300s", way, sql, body)
		assert.Less(t, status, 500, "%s: %.200s\n%.300s", way, sql, body)
		assert.Contains(t, body, says, "%s: %.200s", way, sql)
		for _, leak := range leaks {
			if !strings.Contains(sql, leak) {
				assert.NotContains(t, body, leak, "%s: %.200s", way, sql)
			}
		}
	}

	// Each goes both ways with -attacks-all, and else one of them, in turns.
	type try struct {
		attempt
		page bool
	}
	var tries []try
	for i, a := range sandboxAttempts {
		for _, page := range []bool{true, false} {
			if *allAttacks || page == (i%2 == 0) {
				tries = append(tries, try{a, page})
			}
		}
	}
	bounded(4, tries, func(a try) {
		if a.page {
			status, body := w.patiently(t, func() (int, string) {
				return w.ask(t, reader,
					url.Values{"sql": {a.sql}})
			})
			check("page", a.sql, a.says, status, text(parse(t, body)))
			return
		}
		status, body := w.patiently(t, func() (int, string) { return w.queryAPI(t, reader, a.sql) })
		check("API", a.sql, a.says, status, problemText(t, body))
	})

	// Plans are refused what statements are, and files too.
	for _, do := range []string{"explain", "csv", "parquet", "arrow"} {
		for _, sql := range []string{"FROM read_text('/etc/passwd')", "FROM vault", "SELECT getenv('PATH')",
			"SELECT 1; SELECT 2",
			"COPY (SELECT 1) TO '/tmp/x'", "ANALYZE SELECT 1", "(FORMAT json) SELECT 1"} {
			status, body := w.ask(t, reader, url.Values{"sql": {sql}, "do": {do}})
			check(do, sql, "", status, body)
		}
	}
	status, body := w.ask(t, reader, url.Values{"sql": {"SELECT count(*) AS n FROM daily_highest"}})
	require.Equal(t, http.StatusOK, status, body)
	require.Equal(t, [][]string{{"2"}}, rows(parse(t, body), 0))
}

// What takes too much ends at a limit, and the server answers after all of it.
func TestQueryBombs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(cfg *server.Config) {
		cfg.Queries.Concurrent, cfg.Queries.TimeoutSeconds, cfg.Queries.MemoryMB, cfg.Queries.Threads = 8, 1, 128, 1
	})
	honest := []int{http.StatusOK, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge}
	bounded(3, slices.Sorted(maps.Keys(queryBombs)), func(name string) {
		begun, sql := time.Now(), queryBombs[name]
		status, body := w.patiently(t, func() (int, string) { return w.queryAPI(t, reader, sql) })
		assert.Contains(t, honest, status, "%s: %.300s", name, body)
		status, body = w.patiently(t, func() (int, string) { return w.ask(t, reader, url.Values{"sql": {sql}}) })
		assert.Contains(t, honest, status, "%s: %.300s", name, body)
		assert.Less(t, time.Since(begun), time.Minute, name)
	})

	// A busy machine may need more than the second that a statement has.
	eventually(t, "an answer after all of it", func() (bool, error) {
		status, _ := w.queryAPI(t, reader, "SELECT 1")
		return status == http.StatusOK, nil
	})
}

// queryAPI sends a statement to the API.
func (w *world) queryAPI(t *testing.T, caller, sql string) (int, string) {
	t.Helper()
	return w.send(t, caller, http.MethodPost, "/v1/query", "application/json",
		strings.NewReader(fmt.Sprintf(`{"sql": %s}`, jsonText(sql))))
}

// patiently asks again while all places for queries are taken.
func (w *world) patiently(t *testing.T, ask func() (int, string)) (status int, body string) {
	t.Helper()
	eventually(t, "a place for a query", func() (bool, error) {
		status, body = ask()
		return status != http.StatusTooManyRequests, nil
	})
	return status, body
}

// bounded does something with each item, n at once.
func bounded[T any](n int, items []T, do func(T)) {
	var all sync.WaitGroup
	places := make(chan struct{}, n)
	for _, item := range items {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			do(item)
		})
	}
	all.Wait()
}

// problemText returns what a problem says.
func problemText(t *testing.T, body string) string {
	t.Helper()
	var p rest.Problem
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		return body
	}
	return strings.Join(strings.Fields(p.Detail+" "+p.Hint), " ")
}
