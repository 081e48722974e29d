package dispatcher_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/registry"
)

func TestAFailingCheckFailsTheVersion(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "ab")
	w.Serve(dispatchertest.Checked)
	require.Equal(t, map[string][]string{"all": {"2"}}, w.Read("checked_count"))

	doubled := dispatchertest.Edit(dispatchertest.Checked, "SELECT content, length(content) AS n",
		"SELECT content || content AS content, 2 * length(content) AS n")
	failed := w.Deploy(doubled)
	w.Settle()
	status, reason := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Equal(t, "checks of checked/good failed on partition 2024-01-01: short: 1 row", reason)
	require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}}, w.Read("checked_good"), "live is untouched")
	require.Equal(t, map[string][]string{"all": {"2"}}, w.Read("checked_count"))
	require.Zero(t, w.Count(`SELECT FROM events e JOIN partition_versions p ON p.dataset_version = e.dataset_version
		AND p.partition_key = e.partition_key
		AND p.revision = e.revision WHERE p.state = 'Rejected'`), "nobody downstream heard of it")

	// Deployed again unchanged, it fails for the same reason and computes nothing.
	runs := w.Attempts("good")
	w.Deploy(doubled)
	w.Settle()
	status, _ = w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Equal(t, runs, w.Attempts("good"))

	// Once the check is fixed, it passes, and still computes nothing.
	mended := w.Serve(dispatchertest.Edit(doubled, "n > 3", "n > 4"))
	require.Equal(t, w.Generation(failed.Version.ID, "good"), w.Generation(mended.Version.ID, "good"))
	require.Equal(t, runs, w.Attempts("good"))
	require.Equal(t, map[string][]string{"2024-01-01": {"abab,4"}}, w.Read("checked_good"))
	require.Equal(t, map[string][]string{"all": {"4"}}, w.Read("checked_count"))
}

func TestARevisionIsHeldUntilItsChecksPass(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "ab")
	w.Serve(dispatchertest.Checked)
	w.Probe.Put("raw", "2024-01-01", "toolong")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}}, w.Read("checked_good"))
	require.Equal(t, map[string][]string{"all": {"2"}}, w.Read("checked_count"))
	require.Equal(t, []string{"Replaced", "Rejected"}[1:], dispatchertest.Texts(t, w.Pool, `SELECT state
		FROM partition_versions WHERE dataset_version IN
		(SELECT dataset_version FROM dag_version_datasets WHERE job_name = 'good') AND revision = 2`))
	// It is not tried again while nothing changes,
	runs := w.Attempts("good")
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	w.Settle()
	require.Equal(t, runs, w.Attempts("good"))
	// and the next revision is published.
	w.Probe.Put("raw", "2024-01-01", "abc")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"abc,3"}}, w.Read("checked_good"))
	require.Equal(t, map[string][]string{"all": {"3"}}, w.Read("checked_count"))
}

func TestAWarningOnlyRecords(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "toolong")
	w.Serve(dispatchertest.Edit(dispatchertest.Checked, "- { name: short,", "- { name: short, severity: warn,"))
	require.Equal(t, map[string][]string{"2024-01-01": {"toolong,7"}}, w.Read("checked_good"))
	require.Equal(t, []string{"short warn fail 1"}, dispatchertest.Texts(t, w.Pool, `SELECT concat_ws(' ', name,
		severity, outcome, failures) FROM check_results`))
}

// Held revisions are decided in order, whichever check ends first.
func TestChecksEndInAnyOrder(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][]int{"in order": {0, 1}, "the newer first": {1, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", "2024-01-01", "a")
			w.Serve(dispatchertest.Checked)
			var checks []dispatcher.Claimed
			for _, content := range []string{"b", "c"} {
				w.Probe.Put("raw", "2024-01-01", content)
				w.Poll()
				dispatchertest.Execute(t.Context(), w.D, w.One(w.D)) // raw
				w.Route()
				w.Unchecked(w.One(w.D)) // good
				checks = append(checks, w.One(w.D))
				require.NotNil(t, checks[len(checks)-1].Check)
			}
			require.Equal(t, []string{"a,1"}, w.Read("checked_good")["2024-01-01"])
			for _, i := range order {
				require.NoError(t, w.D.CompleteAttempt(t.Context(), checks[i], w.Do(w.D, checks[i]),
					dispatchertest.Later(0)))
				w.Check()
			}
			w.Settle()
			require.Equal(t, []string{"c,1"}, w.Read("checked_good")["2024-01-01"])
			require.Equal(t, map[string]int64{"2024-01-01": 3}, w.Published("good"))
		})
	}
}

// A check that cannot be run fails the build, which must not wait for it forever.
func TestABuildWithADeadOrCanceledCheck(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *dispatchertest.World, check dispatcher.Claimed){
		"dead": func(w *dispatchertest.World, check dispatcher.Claimed) {
			w.Exec(`UPDATE tasks SET max_attempts = 1 WHERE id = $1`, check.TaskID)
			require.NoError(w.T, w.D.Fail(w.T.Context(), check, tasks.ReasonError, dispatcher.ErrTimedOut, true,
				dispatchertest.Later(0)))
		},
		"canceled": func(w *dispatchertest.World, check dispatcher.Claimed) {
			_, err := w.D.Control.Cancel(w.T.Context(), w.Caller, check.TaskID)
			require.NoError(w.T, err)
			require.NoError(w.T, w.D.CancelRunning(w.T.Context(), check, dispatchertest.Later(0)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", "2024-01-01", "ab")
			deployed := w.Deploy(dispatchertest.Checked)
			w.Advance()
			dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
			w.Route()
			w.Unchecked(w.One(w.D))
			end(w, w.One(w.D))
			w.Settle()
			w.Settle()
			status, reason := w.Status(deployed.Version.ID)
			require.Equal(t, registry.Failed, status)
			require.Contains(t, reason, "checked/good")
			require.Contains(t, reason, "2024-01-01")

			again := w.Serve(dispatchertest.Checked)
			require.Equal(t, deployed.Version.ID, again.Version.ID)
			require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}}, w.Read("checked_good"))
			require.Equal(t, 1, w.Attempts("good"))
		})
	}
}
