package builds_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// strict makes a job fail for good on an input that contains "bad".
func strict(w *dispatchertest.World, job string) {
	w.Probe.On(job, func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		rows, err := dispatchertest.Contents(ctx, task, 0)
		if err != nil {
			return operators.Result{}, err
		}
		text := strings.Join(rows, "+")
		if strings.Contains(text, "bad") {
			return operators.Result{}, operators.Permanent(errors.New("there is a bad row"))
		}
		return operators.Result{}, w.Probe.Write(ctx, task, job+"("+text+")")
	})
}

// TestResumeAfterAnInputWasMended resumes builds whose input was mended since they failed. The first try works: nothing
// that failed is tried on what it failed on.
func TestResumeAfterAnInputWasMended(t *testing.T) {
	t.Parallel()
	chain := strings.Replace(dispatchertest.Upkept, "publish:", `  - name: last
    operator: hook
    inputs: [{ from: { job: made } }]
    execution_strategy: PerPartition
publish:
  letters_last: { from: { job: last } }`, 1)
	other := dispatchertest.Edit(chain, "- name: last", "- name: least", "job: last", "job: least")
	check := dispatchertest.Checked
	for name, test := range map[string]struct {
		before, after string // deployed before, unless empty, and after it
		strict        string // the job that refuses bad rows
		fails         string
	}{
		"in the first deploy": {after: chain, strict: "made", fails: "bad row"},
		"further up":          {after: chain, strict: "last", fails: "bad row"},
		"that serves": {before: chain, after: strings.Replace(chain, "tag: m", "tag: n", 1), strict: "made",
			fails: "bad row"},
		"that serves further up": {before: other, after: chain, strict: "last", fails: "bad row"},
		"of a check":             {after: check, fails: "checks of"},
		"of a check that serves": {before: strings.Replace(check, "n > 3", "n > 9", 1),
			after: strings.Replace(check, "length(content) AS", "length(content) + 0 AS", 1), fails: "checks of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", "2024-01-01", "so bad")
			w.Probe.Put("raw", "2024-01-02", "ok")
			if test.before != "" {
				w.Serve(test.before)
			}
			if test.strict != "" {
				strict(w, test.strict)
			}

			failed := w.Deploy(test.after, movesAllowed)
			w.Settle()
			status, reason := w.Status(failed.Version.ID)
			require.Equal(t, registry.Failed, status)
			require.Contains(t, reason, test.fails)

			w.Probe.Put("raw", "2024-01-01", "ok")
			if test.before != "" {
				w.Poll() // otherwise the build reads its source itself
				w.Settle()
			}
			w.Deploy(test.after, resume, movesAllowed)
			for range 3 { // the build is looked at after every task, and events are routed late
				w.Advance()
				for _, task := range w.Claim(w.D) {
					w.Unrouted(func() { dispatchertest.Execute(t.Context(), w.D, task) })
					w.Advance()
				}
			}
			w.Settle()
			status, reason = w.Status(failed.Version.ID)
			require.Equal(t, registry.Active, status, reason)
		})
	}
}

// Where any input suffices, a statement waits for the columns of the others, which their first partition shows,
// whichever that is. Until then the version serves without it.
func TestAStatementWaitsForTheFirstPartitionOfAnInput(t *testing.T) {
	t.Parallel()
	for strategy, want := range map[string]map[string][]string{
		"PerPartition": {"2024-01-01": {"a"}, "2024-01-02": {"c"}, "2024-01-05": {"e"}},
		"PerUpdate":    {"all": {"a", "c", "e"}},
	} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("one", "2024-01-01", "a")
			w.Probe.Put("one", "2024-01-02", "c")
			w.Serve(`
name: either
jobs:
` + dispatchertest.Edit(dispatchertest.Raw, "name: raw", "name: a", "list: raw", "list: one") +
				dispatchertest.Edit(dispatchertest.Raw, "name: raw", "name: b", "list: raw", "list: two") + `  - name: j
    operator: sql
    trigger: any
    max_attempts: 1
    inputs: [{ from: { job: a } }, { from: { job: b } }]
    execution_strategy: ` + strategy + `
    config: { query: "SELECT content FROM a UNION ALL SELECT content FROM b ORDER BY 1" }
publish:
  either_j: { from: { job: j } }
`)
			w.Settle()
			require.Empty(t, w.Read("either_j"))
			require.Zero(t, w.Count(`SELECT FROM tasks WHERE status = 'Failed' OR failures > 0`))
			require.Contains(t, fmt.Sprint(w.WhyNot("either_j", slices.Min(slices.Collect(maps.Keys(want)))).Reasons),
				"either/b/0 has nothing that it needs: nothing of it was published yet, so nobody knows its columns")

			w.Probe.Put("two", "2024-01-05", "e")
			w.Poll()
			w.Settle()
			require.Equal(t, want, w.Read("either_j"))
		})
	}
}

// A task that another version takes up again has as many attempts as that version gives it.
func TestATaskThatIsTakenUpHasTheAttemptsOfItsVersion(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	attempts := func(most string) string {
		return dispatchertest.Edit(dispatchertest.Pair, "tag: m", "tag: n",
			"name: made", "name: made\n    max_attempts: "+most)
	}
	w.Deploy(attempts("1"))
	w.Advance()
	_, err := w.D.Builds.Abandon(t.Context(), w.Caller, "pair")
	require.NoError(t, err)
	require.Equal(t, 1, w.Count(`SELECT FROM tasks WHERE status = 'Canceled' AND max_attempts = 1`))

	w.Deploy(attempts("4"))
	w.Advance()
	require.Equal(t, 1, w.Count(`SELECT FROM task_events e JOIN tasks t ON t.id = e.task_id
		WHERE e.from_status = 'Canceled' AND t.status = 'Queued' AND t.max_attempts = 4`))
}

// A build does not fail for a dead task whose partition another task has made meanwhile.
func TestABuildPassesOverADeadTaskWhoseWorkIsDone(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	deployed := w.Deploy(dispatchertest.Edit(dispatchertest.Pair, "tag: m", "tag: n"))
	w.Advance()
	made := w.One(w.D)
	w.Probe.Put("raw", dispatchertest.FirstDay, "b")
	w.Poll()
	dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
	w.Route()
	require.NoError(t, w.D.Fail(t.Context(), made, tasks.ReasonError, errors.New("no"), false,
		dispatchertest.Later(0)))

	w.Settle()
	status, reason := w.Status(deployed.Version.ID)
	require.Equal(t, registry.Active, status, reason)
	require.Equal(t, []string{"n(b)"}, w.Read("pair_made")[dispatchertest.FirstDay])
	require.Equal(t, "Canceled superseded", w.Task(made.TaskID))
}
