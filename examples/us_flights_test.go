package examples_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/registry"
)

// january is the number of partitions of the example: 31 days of three daily jobs, the airports, and the month.
const january = 31*3 + 1 + 1

// TestFlightsThroughACrash starts the example, kills it halfway, restarts it, deploys again, and adds a day.
func TestFlightsThroughACrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "us-flights")

	server := w.serve(t)
	processtest.Eventually(t, "half of it is computed", func() bool { return w.published(t) >= january/2 })
	server.Kill()
	left := january - w.published(t)
	require.Positive(t, left, "nothing was left to do when the server was killed")

	server = w.serve(t)
	w.settle(t)
	w.requireEachOnce(t, january)
	w.requireSameAsDuckDB(t)

	before := w.taskIDs(t)
	deployed := ask[registry.Deployment](t, w, "deploy", w.dir)
	require.False(t, deployed.Created, "the same file is the same version")
	require.Equal(t, 1, deployed.Version.Number)

	w.settle(t)
	require.Equal(t, before, w.taskIDs(t), "a deploy without changes creates no task")

	w.land(t, "2001-02-01")
	processtest.Eventually(t, "the new day is there", func() bool { return w.published(t) == january+3 })
	w.settle(t)
	made := []string{}
	for _, task := range ask[[]views.Task](t, w, "tasks", "list", "--limit", "1000") {
		if _, old := before[task.ID.String()]; !old && task.Kind != "check" {
			made = append(made, task.Job+" "+task.Partition)
		}
	}
	require.ElementsMatch(t, []string{"flights_raw 2001-02-01", "airport_delays 2001-02-01", "route_delays 2001-02-01"},
		made,
		"February is not complete, so it is not ranked, and nothing of January is computed again")

	w.requireEachOnce(t, january+3)
	w.requireSameAsDuckDB(t)
	server.Stop(t)
}

// land moves a later day into the landing folder in one step, as a careful sender does.
func (w *world) land(t testing.TB, day string) {
	t.Helper()
	name := day + ".csv.gz"
	text, err := os.ReadFile(filepath.Join(w.dir, "later", name))
	require.NoError(t, err)
	landing := filepath.Join(w.dir, "data", "flights")
	require.NoError(t, os.WriteFile(filepath.Join(landing, name+".part"), text, 0o600))
	require.NoError(t, os.Rename(filepath.Join(landing, name+".part"), filepath.Join(landing, name)))
}

// published counts the committed partitions that have passed their checks.
func (w *world) published(t testing.TB) int {
	t.Helper()
	return w.count(t, `SELECT count(*) FROM partition_versions WHERE state = 'Published'`)
}

// requireEachOnce requires that one task committed each partition, once, and that no task is open.
func (w *world) requireEachOnce(t testing.TB, partitions int) {
	t.Helper()
	require.Equal(t, partitions, w.published(t))
	require.Equal(t, partitions, w.count(t, `SELECT count(*) FROM partition_versions`),
		"no partition has a second revision")
	require.Equal(t, partitions,
		w.count(t, `SELECT count(*) FROM tasks WHERE status = 'Completed' AND kind <> 'check'`))
	require.Zero(t, w.count(t, `SELECT count(*) FROM tasks WHERE status <> 'Completed'`))
}

func (w *world) taskIDs(t testing.TB) map[string]bool {
	t.Helper()
	ids := map[string]bool{}
	for _, task := range ask[[]views.Task](t, w, "tasks", "list", "--limit", "1000") {
		ids[task.ID.String()] = true
	}
	require.NotEmpty(t, ids)
	return ids
}

// requireSameAsDuckDB compares all that the example publishes with the result of its SQL over its files in DuckDB
// alone.
func (w *world) requireSameAsDuckDB(t testing.TB) {
	t.Helper()
	s := flightsInDuckDB(t, w.dir)
	for _, p := range document(t, w.dir).Publish {
		w.equal(t, s, p.Name, p.Name)
	}
}

// flightsInDuckDB runs the example's SQL over its files without dagctl, into tables with the names of the datasets.
func flightsInDuckDB(t testing.TB, dir string) *duck.Session {
	t.Helper()
	doc := document(t, dir)
	query := func(job string) string {
		j, ok := doc.Job(job)
		require.True(t, ok, job)
		text, ok := j.Config["query"].(string)
		require.True(t, ok, job)
		return text
	}

	s := session(t)
	run := func(format string, args ...any) {
		require.NoError(t, s.Exec(t.Context(), fmt.Sprintf(format, args...)))
	}
	run(`CREATE TABLE airports AS FROM read_csv(%s, nullstr = 'NA', types = {'iata': 'VARCHAR', 'name': 'VARCHAR',
		'city': 'VARCHAR',
		'state': 'VARCHAR', 'country': 'VARCHAR', 'latitude': 'DOUBLE',
			'longitude': 'DOUBLE'})`, sqltext.Literal(filepath.Join(dir, "data", "airports.csv")))
	days, err := filepath.Glob(filepath.Join(dir, "data", "flights", "*.csv.gz"))
	require.NoError(t, err)

	for i, file := range days {
		day := strings.TrimSuffix(filepath.Base(file), ".csv.gz")
		run(`SET VARIABLE partition = '%s'`, day)
		run(`CREATE OR REPLACE TEMP TABLE flights AS FROM read_csv(%s, types = {'date': 'TIMESTAMP', 'delay': 'INTEGER',
			'distance': 'INTEGER', 'origin': 'VARCHAR', 'destination': 'VARCHAR'})`, sqltext.Literal(file))
		for table, query := range map[string]string{
			"all_flights": "FROM flights", "airport_delays": query("airport_delays"),
			"route_delays": query("route_delays"),
		} {
			if i == 0 {
				run("CREATE TABLE %s AS %s LIMIT 0", table, query)
			}
			run("INSERT INTO %s %s", table, query)
		}
	}

	run("DROP TABLE flights; ALTER TABLE all_flights RENAME TO flights")
	run("SET VARIABLE partition = '2001-01'; CREATE VIEW days AS FROM airport_delays WHERE strftime(day, '%%Y-%%m') " +
		"= '2001-01'")
	run("CREATE TABLE airport_ranking AS %s", query("airport_ranking"))
	return s
}

// The benchmark runs the pipeline from the start of the process until everything is computed, and the same SQL alone.
// On a busy machine CPU time says more than the clock; it does not include PostgreSQL's.
func BenchmarkFlights(b *testing.B) {
	b.Run("dagctl", func(b *testing.B) {
		var cpu time.Duration
		for b.Loop() {
			w := newWorld(b, "us-flights")
			r := processtest.Run(b, w.dir, "dev", w.dir, "--once", "--addr", "127.0.0.1:0", "--data", w.data,
				"--database-url", w.dbURL)
			require.Zero(b, r.Code, r.Err)
			cpu += r.CPU
		}
		b.ReportMetric(cpu.Seconds()/float64(b.N), "cpu-s/op")
	})

	b.Run("duckdb", func(b *testing.B) {
		before := cpuTime(b)
		for b.Loop() {
			flightsInDuckDB(b, "us-flights")
		}
		b.ReportMetric((cpuTime(b)-before).Seconds()/float64(b.N), "cpu-s/op")
	})
}

// cpuTime returns the CPU time of this process.
func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var used syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
