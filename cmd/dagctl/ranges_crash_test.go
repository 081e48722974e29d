package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
)

const tilingDAG = `name: tiling
jobs:
  - name: parts
    operator: file_source
    source: { kind: poll, every: 1s }
    partition_by: key
    heartbeat_timeout_seconds: 5
    config: { path: landing, pattern: "{key}.csv", format: csv, header: true,
              types: { range_start: BIGINT, range_end: BIGINT } }
  - name: big
    operator: range_aggregator
    inputs: [{ from: { job: parts } }]
    execution_strategy: PerUpdate
    partition_by: none
    update_strategy: append
    unique_key: [range_start]
    heartbeat_timeout_seconds: 5
    max_attempts: 20
    config: { size: 50 }
  - name: small
    operator: range_splitter
    inputs: [{ from: { job: big } }]
    execution_strategy: PerUpdate
    partition_by: none
    update_strategy: append
    unique_key: [range_start]
    heartbeat_timeout_seconds: 5
    max_attempts: 20
    config: { size: 20 }
publish:
  big_ranges: { from: { job: big } }
  small_ranges: { from: { job: small } }
`

// TestKilledServerKeepsRangesExact kills a server with SIGKILL while range_aggregator and range_splitter run, several
// times, as parts arrive in a random order, more than once, and over each other. In the end every range is listed once,
// and none that is not whole.
func TestKilledServerKeepsRangesExact(t *testing.T) {
	t.Parallel()
	b := newBuilt(t, "")
	landing := filepath.Join(b.roots, "landing")
	require.NoError(t, os.Mkdir(landing, 0o700))
	env := b.env(t, admin)
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(tilingDAG), 0o600))
	must(t, env, "deploy", file)

	count := func(sql string, args ...any) (n int) {
		require.NoError(t, b.pool.QueryRow(t.Context(), sql, args...).Scan(&n))
		return n
	}

	// Each position from 0 to 300 is in two parts or three; positions 140 to 150 are in none until the end.
	random := rand.New(rand.NewPCG(11, 11))
	var parts [][2]int
	for at := 0; at < 300; at += 10 {
		if at != 140 {
			parts = append(parts, [2]int{at, at + 10}, [2]int{at, at + 10})
		}
	}
	for at := 0; at+25 <= 125; at += 25 {
		parts = append(parts, [2]int{at, at + 25}) // they are not aligned with the others
	}
	random.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	landed := 0
	land := func(some [][2]int) {
		for _, p := range some {
			landed++
			text := fmt.Sprintf("range_start,range_end\n%d,%d\n", p[0], p[1])
			whole := filepath.Join(b.roots, "incoming")
			require.NoError(t, os.WriteFile(whole, []byte(text), 0o600))
			require.NoError(t, os.Rename(whole, filepath.Join(landing, fmt.Sprintf("part%03d.csv", landed))))
		}
	}

	const running = `SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id
		WHERE t.status = 'Running' AND j.name = $1 AND t.started_at > $2`
	lost := func(job string) int {
		return count(`SELECT count(*) FROM task_events e JOIN tasks t ON t.id = e.task_id JOIN jobs j ON j.id = t.job_id
			WHERE j.name = $1 AND e.from_status = 'Running' AND e.to_status = 'Failed'`, job)
	}
	batches := slices.Collect(slices.Chunk(parts, (len(parts)+5)/6))
	for n, batch := range batches {
		var began time.Time // by the clock of the database; attempts of before died with their server
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&began))
		land(batch)
		job := []string{"big", "small"}[n%2]
		b.stopWhile(t, 20*time.Second, func() int { return count(running, job, began) }) // it may make no range whole
		b.crash(t)
	}

	done := func() (bool, error) {
		status := decode[views.DAGDetail](t, env, "status", "tiling")
		read := count(`SELECT count(*) FROM partition_versions p JOIN dataset_versions g ON g.id = p.dataset_version
			JOIN jobs j ON j.id = g.origin_job_id WHERE j.name = 'parts' AND p.state = 'Published'`)
		if read == landed && status.Tasks.Open() == 0 {
			return true, nil
		}
		return false, fmt.Errorf("%d of %d parts are read, and %d tasks are open", read, landed, status.Tasks.Open())
	}
	starts := func(dataset string, size int) []string {
		out := must(t, env, "query", "SELECT range_start, range_end FROM "+dataset+" ORDER BY range_start", "-o", "csv")
		lines := strings.Split(strings.TrimSpace(out), "\n")[1:]
		for i, line := range lines {
			var from, to int
			_, err := fmt.Sscanf(line, "%d,%d", &from, &to)
			require.NoError(t, err)
			require.Equal(t, size, to-from, line)
			lines[i] = fmt.Sprint(from)
		}
		return lines
	}
	want := func(size int, without ...int) (list []string) {
		for at := 0; at < 300; at += size {
			if !slices.Contains(without, at) {
				list = append(list, fmt.Sprint(at))
			}
		}
		return list
	}
	eventually(t, "all is read", done)
	require.Equal(t, want(50, 100), starts("big_ranges", 50))
	// A range of 20 that lies in two of 50 is there once both are: 100 to 150 is missing.
	require.Equal(t, want(20, 100, 120, 140), starts("small_ranges", 20))

	land([][2]int{{140, 150}})
	eventually(t, "all is read", done)
	require.Equal(t, want(50), starts("big_ranges", 50))
	require.Equal(t, want(20), starts("small_ranges", 20))
	require.Positive(t, lost("big"), "a run of range_aggregator was killed")
	require.Positive(t, lost("small"), "a run of range_splitter was killed")
	require.Zero(t, count(`SELECT count(*) FROM tasks WHERE status = 'Failed'`))
	b.process.kill(t)
}
