package dispatcher

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/registry"
)

// unchecked is checked without its check.
var unchecked = edit(checked, "    checks:\n      - { name: short, sql: \"SELECT * FROM output WHERE n > 3\" }\n", "")

func TestNewChecksOnAReusedOutputGate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "ab")
	w.probe.put("raw", "2024-01-02", "toolong")
	w.serve(unchecked)
	runs := w.attempts("good")

	failed := w.deploy(checked)
	require.Equal(t, registry.Reuse, failed.Changes[1].Action)
	w.settle()
	status, reason := w.status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Equal(t, "new checks of checked/good fail on partition 2024-01-02, which is reused: short: 1 rows", reason)
	require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}, "2024-01-02": {"toolong,7"}}, w.read("checked_good"), "live is untouched")
	require.Zero(t, w.count(`SELECT FROM check_results WHERE outcome <> 'pass'`), "readers hear nothing of checks that do not serve")

	// The same again fails again; with the data mended it serves, and has computed nothing else.
	w.deploy(checked)
	w.settle()
	status, _ = w.status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	w.probe.put("raw", "2024-01-02", "cd")
	w.poll()
	w.settle()
	require.Equal(t, runs+1, w.attempts("good"))
	w.serve(checked)
	require.Equal(t, runs+1, w.attempts("good"))
	require.Equal(t, []string{"2024-01-01 pass", "2024-01-02 pass"}, texts(t, w.pool,
		`SELECT k.partition_key || ' ' || k.outcome FROM check_results k JOIN partition_versions p USING (dataset_version, partition_key, revision) WHERE p.state = 'Published' ORDER BY 1`))

	// From now on it decides over publication.
	w.probe.put("raw", "2024-01-02", "toolong")
	w.poll()
	w.settle()
	require.Equal(t, []string{"cd,2"}, w.read("checked_good")["2024-01-02"])

	// What has passed a check is not held against it again.
	checks := w.count(`SELECT FROM tasks WHERE kind = 'check'`)
	w.serve(unchecked)
	w.serve(edit(checked, "name: raw", "name: raw\n    max_attempts: 9"))
	w.serve(checked)
	require.Equal(t, checks, w.count(`SELECT FROM tasks WHERE kind = 'check'`))
}

func TestNewChecksOnAnOutputOfAnEarlierVersionGate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "toolong")
	w.serve(unchecked)
	w.serve(edit(unchecked, "length(content) AS n", "1 AS n"))
	failed := w.deploy(checked)
	require.Equal(t, registry.SwapOnly, failed.Changes[1].Action)
	w.settle()
	status, reason := w.status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, "new checks of checked/good fail on partition 2024-01-01")
	require.Equal(t, map[string][]string{"2024-01-01": {"toolong,1"}}, w.read("checked_good"))
	runs := w.runs()
	w.serve(unchecked)
	require.Equal(t, runs, w.runs(), "a version that served needs no check to serve again")
}
