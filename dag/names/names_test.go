package names_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
)

func catalog(t *testing.T) dag.Catalog {
	t.Helper()
	builtin, err := standard.New(operators.Options{Engines: enginetest.Engines(),
		Command: operators.CommandOptions{Every: true}})
	require.NoError(t, err)
	return builtin.Catalog(nil)
}

func parse(t *testing.T, file dag.File) (*dag.Document, dag.Problems) {
	t.Helper()
	file.Name = "dag.yaml"
	return dag.Parse(file, catalog(t))
}

// What is at fault is found all at once, each at its word.
func TestNamesAtFault(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/faults.yaml")
	require.NoError(t, err)
	want, err := os.ReadFile("testdata/faults.txt")
	require.NoError(t, err)
	const cold = "-- cold days\nSELECT station,\n  celsus\nFROM landing\n"
	files := dag.InMemory(map[string][]byte{"cold.sql": []byte(cold)})
	_, problems := parse(t, dag.File{Text: text, Files: files})
	require.Equal(t, string(want), problems.Error()+"\n")
}

// states are what may be known of a source's columns.
var states = map[string]string{
	"typed":   ", columns: [%s], types: { %s }",
	"untyped": ", columns: [%s]",
	"open":    "",
}

// sources returns two sources, of each of which something else is known.
func sources(flights, airports string) string {
	source := func(name, state string, columns ...string) string {
		var list, types []string
		for _, column := range columns {
			word, _, _ := strings.Cut(column, ":")
			list, types = append(list, word), append(types, column)
		}
		config := states[state]
		switch state {
		case "typed":
			config = fmt.Sprintf(config, strings.Join(list, ", "), strings.Join(types, ", "))
		case "untyped":
			config = fmt.Sprintf(config, strings.Join(list, ", "))
		}
		return fmt.Sprintf("  - name: %s\n    operator: file_source\n    source: { kind: poll, every: 1m }\n"+
			"    partition_by: { time: day }\n    config: { path: data, pattern: \"{date}.json\", format: ndjson%s }\n",
			name, config)
	}
	return "name: shop\njobs:\n" +
		source("flights", flights, "id: BIGINT", "origin: VARCHAR", "delay: DOUBLE", "at: TIMESTAMP",
			"\"plane\": \"STRUCT(tail VARCHAR, seats INTEGER)\"", "stops: \"VARCHAR[]\"", "\"Order\": INTEGER",
			"body: JSON") +
		source("airports", airports, "iata: VARCHAR", "name: VARCHAR", "lat: DOUBLE", "id: BIGINT")
}

func job(n int, fields string) string {
	return fmt.Sprintf("  - name: q%d\n    operator: sql\n    inputs: [{ from: { job: flights }, as: flights }, "+
		"{ from: { job: airports }, as: Airports }]\n    %s\n", n, fields)
}

// valid are queries that run.
var valid = []string{
	"SELECT * FROM flights",
	"FROM flights",
	"FROM flights SELECT origin",
	"TABLE flights",
	"SELECT ORIGIN, Delay FROM FLIGHTS",
	`SELECT "origin", "Order", "order" + 1 AS next FROM flights`,
	"SELECT f.origin, a.name FROM flights f JOIN airports a ON f.origin = a.iata",
	"SELECT flights.origin, Airports.name FROM flights, airports WHERE origin = iata",
	"SELECT id, origin, name FROM flights JOIN airports USING (id)",
	"SELECT origin, count(*) AS n FROM flights GROUP BY origin HAVING count(*) > 1 ORDER BY n DESC",
	"SELECT origin, sum(delay) FROM flights GROUP BY ALL ORDER BY ALL",
	"SELECT * EXCLUDE (delay) FROM flights",
	"SELECT * REPLACE (upper(origin) AS origin) FROM flights",
	"SELECT f.* EXCLUDE (delay), a.name FROM flights f LEFT JOIN airports a ON a.iata = f.origin",
	"SELECT COLUMNS('^d.*') FROM flights",
	"SELECT max(COLUMNS(*)) FROM airports",
	"SELECT plane.tail, plane.seats + 1 AS more FROM flights",
	"SELECT f.plane.tail FROM flights f",
	"SELECT plane.* FROM flights",
	"SELECT unnest(stops) AS stop, id FROM flights",
	"SELECT id, s.stop FROM flights, unnest(stops) AS s(stop)",
	"SELECT list_transform(stops, x -> upper(x)) AS loud FROM flights",
	"SELECT stops[1] AS first, len(stops) AS n FROM flights",
	"SELECT body->>'$.gate' AS gate, body.gate AS g FROM flights",
	"SELECT (SELECT max(delay) FROM flights) AS worst",
	"WITH late AS (SELECT origin, delay AS minutes FROM flights WHERE delay > 15) SELECT origin, minutes FROM late",
	"WITH late AS (SELECT * FROM flights) SELECT late.origin, a.name FROM late JOIN airports a ON a.iata = late.origin",
	"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT n.i, origin FROM n, flights",
	"WITH airports AS (SELECT 'X' AS code) SELECT airports.code, flights.id FROM airports, flights",
	"SELECT a.iata, (SELECT max(f.delay) FROM flights f WHERE f.origin = a.iata) AS worst FROM airports a",
	"SELECT name FROM airports a WHERE EXISTS (SELECT 1 FROM flights WHERE origin = a.iata)",
	"SELECT name FROM airports WHERE iata IN (SELECT origin FROM flights)",
	"SELECT origin, row_number() OVER (PARTITION BY origin ORDER BY delay) AS r FROM flights QUALIFY r = 1",
	"SELECT origin, avg(delay) OVER w AS m FROM flights WINDOW w AS (PARTITION BY origin)",
	"SELECT l.delay AS d FROM (SELECT delay, origin FROM flights) l",
	"SELECT s.place FROM (SELECT origin FROM flights) AS s(place)",
	"SELECT origin FROM flights UNION SELECT iata FROM airports",
	"SELECT origin AS x, delay FROM flights UNION ALL BY NAME SELECT name AS x, lat AS y FROM airports",
	"SELECT * FROM (PIVOT flights ON origin IN ('A', 'B') USING count(*) GROUP BY id)",
	"SELECT date_trunc('day', f.at) AS day FROM flights f WHERE f.at >= getvariable('start')",
	"SELECT getvariable('partition') AS p, origin FROM flights",
	"SELECT origin, CASE WHEN delay > 5 THEN 'late' ELSE 'ok' END AS verdict FROM flights -- done",
	"SELECT f.id, a.lat FROM flights f ASOF JOIN airports a ON f.id >= a.id;",
	"SELECT id, l.far FROM airports a, LATERAL (SELECT a.lat * 2 AS far) l",
	"SELECT flights FROM flights",
	"SELECT f FROM flights f",
	"VALUES (1, 'a')",
	"SELECT DISTINCT ON (origin) origin, id FROM flights ORDER BY origin, delay",
	"SELECT 'text with delays.nothing' AS t, /* a.nothing */ 1 AS one FROM airports a",
	"SELECT delay AS minutes FROM flights WHERE minutes > 3 ORDER BY minutes",
	"SELECT id FROM flights NATURAL JOIN (SELECT id FROM airports) n",
	"SELECT struct_pack(a := name, b := lat) AS s FROM airports",
	"SELECT {'k': iata, 'v': lat} AS s FROM airports",
	"SELECT strftime(f.at, '%Y') AS y, extract(hour FROM f.at) AS h, f.at::DATE AS d FROM flights f",
	"SELECT sum(delay) FILTER (WHERE origin = 'A') AS s, quantile_cont(delay, 0.5) AS q FROM flights",
	"SELECT rowid FROM (SELECT 1 AS rowid, id FROM flights)",
	"SELECT id, id FROM flights",
	"SELECT grouping(origin) AS g, origin FROM flights GROUP BY GROUPING SETS ((origin), ())",
}

// A query that runs is never refused, whatever is known of the columns that it reads. All that follows from its columns
// is followed, too.
func TestValidNamesAreNotRefused(t *testing.T) {
	t.Parallel()
	var jobs strings.Builder
	for n, query := range valid {
		jobs.WriteString(job(n, fmt.Sprintf("config: { query: %q }", query)))
		jobs.WriteString("    checks: [{ name: there, sql: SELECT * FROM output WHERE false }]\n")
		fmt.Fprintf(&jobs, "  - { name: after%d, operator: sql, inputs: [{ from: { job: q%d } }], "+
			"config: { query: \"SELECT *, 1 AS after FROM q%d\" } }\n", n, n, n)
	}
	for flights := range states {
		for airports := range states {
			t.Run(flights+" "+airports, func(t *testing.T) {
				t.Parallel()
				_, problems := parse(t, dag.File{Text: []byte(sources(flights, airports) + jobs.String())})
				require.Empty(t, problems.Error())
			})
		}
	}
}

// What is not known of one input leaves the others checked.
func TestOneOpenInputLeavesTheOthersChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ query, says string }{
		"qualified":   {"SELECT f.orign, a.nam FROM flights f JOIN airports a ON f.origin = a.iata", `"f" has no column "orign" (did you mean "origin"?)`},
		"by its name": {"SELECT flights.delai FROM flights, airports", `"flights" has no column "delai" (did you mean "delay"?)`},
		"a function":  {"SELECT maxx(a.name) AS m FROM flights, airports a", `there is no function "maxx"`},
	} {
		for _, flights := range []string{"typed", "untyped"} {
			text := sources(flights, "open") + job(0, fmt.Sprintf("config: { query: %q }", c.query)) +
				job(1, `config: { query: "SELECT dellay FROM flights" }`)
			_, problems := parse(t, dag.File{Text: []byte(text)})
			require.Len(t, problems, 2, "%s: %s", name, problems.Error())
			require.Contains(t, problems.Error(), c.says, name)
			require.Contains(t, problems.Error(), `there is no column "dellay" (did you mean "delay"?)`)
		}
	}
}

// Columns of datasets of other DAGs are known where a server, or a folder of files, says them.
func TestColumnsOfOtherDAGs(t *testing.T) {
	t.Parallel()
	file := dag.File{Text: []byte(`name: shop
jobs:
  - name: report
    operator: sql
    inputs: [{ from: { dataset: readings } }]
    partition_by: none
    config: { query: SELECT statoin FROM readings }
`)}
	_, problems := parse(t, file)
	require.Empty(t, problems.Error())
	file.Columns = map[string][]dag.Column{"readings": {{Name: "station", Type: "VARCHAR"}}}
	_, problems = parse(t, file)
	require.Equal(t, `dag.yaml:7:29: there is no column "statoin" (did you mean "station"?)`, problems.Error())
}

// Columns go from job to job through queries and operators that hand rows on.
func TestColumnsAreFollowed(t *testing.T) {
	t.Parallel()
	text := sources("typed", "untyped") + `
  - { name: a, operator: sql, inputs: [{ from: { job: flights } }], config: { query: "SELECT origin, delay * 2 AS d FROM flights" } }
  - { name: b, operator: parquet_compact, inputs: [{ from: { job: a } }], config: {} }
  - { name: c, operator: sql, inputs: [{ from: { job: b } }], config: { query: "SELECT *, 1 AS one FROM b" } }
  - { name: d, operator: sql, inputs: [{ from: { job: airports } }], config: { query: "SELECT name, lat FROM airports" } }
`
	doc, problems := parse(t, dag.File{Text: []byte(text)})
	require.Empty(t, problems.Error())
	require.Equal(t, []dag.Column{{Name: "origin", Type: "VARCHAR"}, {Name: "d", Type: "DOUBLE"},
		{Name: "one", Type: "INTEGER"}}, doc.Columns["c"][0])
	require.Equal(t, []dag.Column{{Name: "name"}, {Name: "lat"}}, doc.Columns["d"][0])
}

// A file of a thousand jobs asks engines a few times, not a thousand times.
func TestManyJobsInARowAreFollowed(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString(sources("typed", "open"))
	last := "flights"
	for n := range 300 {
		fmt.Fprintf(&text, "  - { name: j%d, operator: sql, inputs: [{ from: { job: %s }, as: up }], "+
			"config: { query: \"SELECT *, %d AS c%d FROM up\" } }\n", n, last, n, n)
		last = fmt.Sprint("j", n)
	}
	text.WriteString("  - { name: end, operator: sql, inputs: [{ from: { job: j299 } }], " +
		"config: { query: SELECT c300 FROM j299 } }\n")
	_, problems := parse(t, dag.File{Text: []byte(text.String())})
	require.Len(t, problems, 1, problems.Error())
	require.Contains(t, problems.Error(), `there is no column "c300"`)
}
