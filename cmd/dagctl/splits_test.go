package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
)

const flightsDAG = `name: flights
jobs:
  - name: flown
    operator: file_source
    source: { kind: poll, every: 1s }
    partition_by: { time: day, column: date }
    heartbeat_timeout_seconds: 5
    max_attempts: 20
    config: { path: landing, pattern: "*.csv", format: csv, types: { date: DATE } }
  - name: delays
    operator: sql
    inputs: [{ from: { job: flown } }]
    heartbeat_timeout_seconds: 5
    max_attempts: 20
    config: { query: "SELECT date, count(*) AS flights, sum(delay)::BIGINT AS delay FROM flown GROUP BY date" }
publish:
  flown: { from: { job: flown } }
  delays: { from: { job: delays } }
`

// TestKilledServerSplitsRowsOnce runs a file of many days through a real server: only days whose rows have changed are
// made again, also those of a late file, and a server that is killed while it splits leaves all days or none.
func TestKilledServerSplitsRowsOnce(t *testing.T) {
	t.Parallel()
	b := newBuilt(t, "")
	require.NoError(t, os.Mkdir(filepath.Join(b.roots, "landing"), 0o700))
	drop := func(name string, first, days, delay int) {
		var text strings.Builder
		text.WriteString("date,origin,delay\n")
		for n := range days * 200 { // the days are mixed, as they are in files that nobody has sorted
			day := time.Date(2001, 1, first+n%days, 0, 0, 0, 0, time.UTC)
			fmt.Fprintf(&text, "%s,SEA,%d\n", day.Format(time.DateOnly), delay)
		}
		whole := filepath.Join(b.roots, "incoming")
		require.NoError(t, os.WriteFile(whole, []byte(text.String()), 0o600))
		require.NoError(t, os.Rename(whole, filepath.Join(b.roots, "landing", name)))
	}
	const days = 90
	drop("a.csv", 1, days, 1)

	env := b.env(t, admin)
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(flightsDAG), 0o600))
	require.Contains(t, dagctl(t, env, "validate", file).out, "is valid")
	must(t, env, "deploy", file)

	// revisions returns how many days of a dataset have each number of revisions.
	revisions := func(dataset string) map[int64]int {
		counts := map[int64]int{}
		for _, p := range decode[[]registry.Revision](t, env, "datasets", "partitions", dataset, "--limit", "1000") {
			counts[p.Revision]++
		}
		return counts
	}
	settled := func(want map[int64]int) {
		t.Helper()
		eventually(t, "all days are made", func() (bool, error) {
			open := decode[views.DAGDetail](t, env, "status", "flights").Tasks.Open()
			raw, made := revisions("flown"), revisions("delays")
			if open == 0 && fmt.Sprint(raw) == fmt.Sprint(want) && fmt.Sprint(made) == fmt.Sprint(want) {
				return true, nil
			}
			return false, fmt.Errorf("%d tasks are open, days by revisions: %v and %v", open, raw, made)
		})
	}
	settled(map[int64]int{1: days})
	require.Contains(t, dagctl(t, env, "backfill", "flights/flown", "--from", "2001-01-01", "--to", "2001-01-02").err,
		"one task makes all partitions")
	require.Contains(t, must(t, env, "why-not", "delays", "2001-01-05"), "2001-01-05")

	// The server dies while it splits a file that is late and changes three days that are there.
	count := func(sql string) (n int) {
		require.NoError(t, b.pool.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	drop("late.csv", days-2, 33, 5)
	const running = `SELECT count(*) FROM leases l JOIN tasks t ON t.id = l.task_id WHERE t.kind = 'source'`
	require.True(t, b.stopWhile(t, 2*time.Minute, func() int { return count(running) }), "it is being split")
	b.process.kill(t)
	published := count(`SELECT count(*) FROM partition_versions p JOIN dataset_versions g ON g.id = p.dataset_version
		JOIN jobs j ON j.id = g.origin_job_id WHERE j.name = 'flown' AND p.state = 'Published'`)
	require.Contains(t, []int{days, days + 30}, published, "all or none")
	b.start(t)
	settled(map[int64]int{1: days - 3 + 30, 2: 3})
	const sql = "SELECT flights, delay FROM delays WHERE date = '2001-03-31'"
	require.Contains(t, must(t, env, "query", sql, "-o", "csv"), "400,1200")
	require.Zero(t, count(`SELECT count(*) FROM tasks WHERE status = 'Failed'`))
	b.process.kill(t)
}

// TestSplitRowsAreReadAtAnInstant reads what the days had before the file was changed, twice.
func TestSplitRowsAreReadAtAnInstant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	landed := func(name string, rows ...string) {
		w.landText(t, name, "date,origin,delay\n"+strings.Join(rows, "\n")+"\n")
	}
	env := w.env(t, writer)
	sql := "SELECT date::VARCHAR AS day, sum(delay)::BIGINT AS delay FROM flown GROUP BY date ORDER BY date"
	read := func(more ...string) string {
		return strings.Join(strings.Fields(must(t, env, append([]string{"query", sql, "-o", "csv"}, more...)...)), " ")
	}
	now := func() (at time.Time) {
		require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&at))
		return at
	}

	landed("a", "2001-01-01,SEA,1", "2001-01-02,SEA,2")
	must(t, env, "deploy", writeDAG(t, t.TempDir(), "x", flightsDAG))
	first := now()
	var times []time.Time
	for delay := 3; delay <= 4; delay++ {
		landed("a", "2001-01-01,SEA,1", fmt.Sprintf("2001-01-02,SEA,%d", delay))
		want := fmt.Sprintf("day,delay 2001-01-01,1 2001-01-02,%d", delay)
		eventually(t, "the day is made again", func() (bool, error) { return read() == want, nil })
		times = append(times, now())
	}

	_, grid := w.send(t, writer, "GET", "/v1/datasets/flown/grid", "", nil)
	require.NotContains(t, grid, `"all"`, "what says of what the days were made is no partition")
	require.Contains(t, grid, `"2001-01-02"`)
	require.Equal(t, "day,delay 2001-01-01,1 2001-01-02,2", read("--at", first.UTC().Format(time.RFC3339Nano)))
	require.Equal(t, "day,delay 2001-01-01,1 2001-01-02,3", read("--at", times[0].UTC().Format(time.RFC3339Nano)))
}
