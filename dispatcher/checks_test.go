package dispatcher

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/registry"
)

const checked = `
name: checked
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: raw }
  - name: good
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { query: "SELECT content, length(content) AS n FROM raw" }
    checks:
      - { name: short, sql: "SELECT * FROM output WHERE n > 3" }
  - name: count
    operator: sql
    inputs: [{ from: { job: good } }]
    partition_by: none
    config: { query: "SELECT sum(n)::BIGINT AS n FROM good" }
publish:
  checked_good: { from: { job: good } }
  checked_count: { from: { job: count } }
`

func TestAFailingCheckFailsTheVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "ab")
	w.serve(checked)
	require.Equal(t, map[string][]string{"all": {"2"}}, w.read("checked_count"))

	doubled := edit(checked, "SELECT content, length(content) AS n", "SELECT content || content AS content, 2 * length(content) AS n")
	failed := w.deploy(doubled)
	w.settle()
	status, reason := w.status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Equal(t, "checks of checked/good failed on partition 2024-01-01: short: 1 rows", reason)
	require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}}, w.read("checked_good"), "live is untouched")
	require.Equal(t, map[string][]string{"all": {"2"}}, w.read("checked_count"))
	require.Zero(t, w.count(`SELECT FROM events e JOIN partition_versions p ON p.dataset_version = e.dataset_version AND p.partition_key = e.partition_key
		AND p.revision = e.revision WHERE p.state = 'Rejected'`), "nobody downstream heard of it")

	// The same again fails again, for the same reason, and computes nothing.
	runs := w.attempts("good")
	w.deploy(doubled)
	w.settle()
	status, _ = w.status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Equal(t, runs, w.attempts("good"))

	// With the check mended it passes, and still computes nothing.
	mended := w.serve(edit(doubled, "n > 3", "n > 4"))
	require.Equal(t, w.generation(failed.Version.ID, "good"), w.generation(mended.Version.ID, "good"))
	require.Equal(t, runs, w.attempts("good"))
	require.Equal(t, map[string][]string{"2024-01-01": {"abab,4"}}, w.read("checked_good"))
	require.Equal(t, map[string][]string{"all": {"4"}}, w.read("checked_count"))
}

func TestARevisionIsHeldUntilItsChecksPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "ab")
	w.serve(checked)
	w.probe.put("raw", "2024-01-01", "toolong")
	w.poll()
	w.settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}}, w.read("checked_good"))
	require.Equal(t, map[string][]string{"all": {"2"}}, w.read("checked_count"))
	require.Equal(t, []string{"Replaced", "Rejected"}[1:], texts(t, w.pool, `SELECT state FROM partition_versions WHERE dataset_version IN
		(SELECT dataset_version FROM dag_version_datasets WHERE job_name = 'good') AND revision = 2`))
	// It is not tried again as long as nothing changes,
	runs := w.attempts("good")
	require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
	w.settle()
	require.Equal(t, runs, w.attempts("good"))
	// and what comes next is published.
	w.probe.put("raw", "2024-01-01", "abc")
	w.poll()
	w.settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"abc,3"}}, w.read("checked_good"))
	require.Equal(t, map[string][]string{"all": {"3"}}, w.read("checked_count"))
}

func TestAWarningOnlyRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "toolong")
	w.serve(edit(checked, "- { name: short,", "- { name: short, severity: warn,"))
	require.Equal(t, map[string][]string{"2024-01-01": {"toolong,7"}}, w.read("checked_good"))
	require.Equal(t, []string{"short warn fail 1"}, texts(t, w.pool, `SELECT concat_ws(' ', name, severity, outcome, failures) FROM check_results`))
}

// Held revisions are decided in their order, whichever check ends first.
func TestChecksEndInAnyOrder(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][]int{"in order": {0, 1}, "the newer first": {1, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.probe.put("raw", "2024-01-01", "a")
			w.serve(checked)
			var checks []claimed
			for _, content := range []string{"b", "c"} {
				w.probe.put("raw", "2024-01-01", content)
				w.poll()
				w.d.execute(t.Context(), w.one(w.d)) // raw
				w.route()
				w.d.execute(t.Context(), w.one(w.d)) // good
				checks = append(checks, w.one(w.d))
				require.NotNil(t, checks[len(checks)-1].check)
			}
			require.Equal(t, []string{"a,1"}, w.read("checked_good")["2024-01-01"])
			for _, i := range order {
				require.NoError(t, w.d.complete(t.Context(), checks[i], w.do(w.d, checks[i]), later(0)))
				w.check()
			}
			w.settle()
			require.Equal(t, []string{"c,1"}, w.read("checked_good")["2024-01-01"])
			require.Equal(t, map[string]int64{"2024-01-01": 3}, w.published("good"))
		})
	}
}

// A check that cannot be made fails the build; it must not wait for it for ever.
func TestABuildWithADeadOrCanceledCheck(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *world, check claimed){
		"dead": func(w *world, check claimed) {
			w.exec(`UPDATE tasks SET max_attempts = 1 WHERE id = $1`, check.TaskID)
			require.NoError(w.t, w.d.fail(w.t.Context(), check, reasonError, errTimedOut, true, later(0)))
		},
		"canceled": func(w *world, check claimed) {
			_, err := w.d.Cancel(w.t.Context(), w.caller, check.TaskID)
			require.NoError(w.t, err)
			require.NoError(w.t, w.d.cancelRunning(w.t.Context(), check, later(0)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.probe.put("raw", "2024-01-01", "ab")
			deployed := w.deploy(checked)
			w.advance()
			w.d.execute(t.Context(), w.one(w.d))
			w.route()
			w.d.execute(t.Context(), w.one(w.d))
			end(w, w.one(w.d))
			w.settle()
			w.settle()
			status, reason := w.status(deployed.Version.ID)
			require.Equal(t, registry.Failed, status)
			require.Contains(t, reason, "checked/good")
			require.Contains(t, reason, "2024-01-01")

			again := w.serve(checked)
			require.Equal(t, deployed.Version.ID, again.Version.ID)
			require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}}, w.read("checked_good"))
			require.Equal(t, 1, w.attempts("good"))
		})
	}
}
