package sources_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/operators"
)

const steady = `
name: steady
jobs:
  - name: tail
    operator: hook
    source: { kind: always_on }
    partition_by: { cursor: height }
    max_attempts: 1
    config: { tag: t }
publish:
  tailed: { from: { job: tail } }
`

func supervise(w *dispatchertest.World, now time.Time) (state string) {
	w.T.Helper()
	_, err := w.D.Sources.Supervise(w.T.Context(), now)
	require.NoError(w.T, err)
	w.Row(`SELECT state FROM sources WHERE job_name = 'tail'`)(&state)
	return state
}

func TestAnAlwaysOnSource(t *testing.T) {
	t.Parallel()
	w, l := dispatchertest.NewWorld(t), &dispatchertest.Ledger{Blocks: "abc"}
	w.Probe.On("tail", l.Read)
	w.Serve(steady)
	require.Equal(t, "Pending", supervise(w, dispatchertest.Later(0)))
	require.Equal(t, "Pending", supervise(w, dispatchertest.Later(0)))
	require.Len(t, w.Tasks("tail"), 1, "one task, however often it is looked")
	first := w.One(w.D)
	require.Equal(t, "Running", supervise(w, dispatchertest.Later(0)))
	require.Len(t, w.Tasks("tail"), 1)
	dispatchertest.Execute(t.Context(), w.D, first)
	require.Equal(t, map[string][]string{"0-3": {"0,a", "1,b", "2,c"}}, w.Read("tailed"))

	// The next task continues from there. Its worker dies: any other process retries it.
	l.Set("abcde")
	require.Equal(t, "Pending", supervise(w, dispatchertest.Later(0)))
	lost := w.One(w.D)
	w.Exec(`UPDATE tasks SET max_attempts = 2 WHERE id = $1`, lost.TaskID)
	w.Reap(dispatchertest.Later(time.Hour))
	require.Equal(t, "Dead", supervise(w, dispatchertest.Later(time.Hour)))
	w.Promote(dispatchertest.Later(2 * time.Hour))
	again := w.One(w.D)
	require.Equal(t, lost.TaskID, again.TaskID)
	require.Error(t, w.D.CompleteAttempt(t.Context(), lost, w.Do(w.D, lost), time.Now()))
	dispatchertest.Execute(t.Context(), w.D, again)
	require.Len(t, w.Read("tailed"), 2)

	// It fails for good: it is dead, which is reported, and after a while it is tried again.
	supervise(w, dispatchertest.Later(0))
	w.Probe.On("tail", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, operators.Permanent(context.DeadlineExceeded)
	})
	w.Work()
	require.Equal(t, "Dead", supervise(w, dispatchertest.Later(0)))
	status, err := w.D.Views.Sources(t.Context(), w.Caller)
	require.NoError(t, err)
	require.Contains(t, status[0].Error, "deadline exceeded")
	require.Equal(t, "Pending", supervise(w, dispatchertest.Later(sources.DeadFor+time.Second)))
	w.Probe.On("tail", l.Read)
	l.Set("abcdefg")
	w.Work()
	require.Len(t, w.Read("tailed"), 3)
	w.Check()

	// A pause removes its task from the queue; no new task is created before the pause ends.
	_, err = w.D.Control.Pause(t.Context(), w.Caller, "steady", "tail", "", time.Now())
	require.NoError(t, err)
	require.Equal(t, "Pending", supervise(w, dispatchertest.Later(0)))
	require.Empty(t, w.Claim(w.D))
	require.NoError(t, w.D.Control.Resume(t.Context(), w.Caller, "steady", "tail", time.Now()))
	require.Equal(t, "Pending", supervise(w, dispatchertest.Later(0)))
	w.One(w.D)
}

// A cutover that changes the job lets the running task end where it chooses and commit; the next task begins with the
// new definition. A cutover that does not change the job does not affect it.
func TestAlwaysOnIsDrainedByACutoverThatChangesIt(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	var began, drained atomic.Int32
	tags := make(chan any, 10)
	l := &dispatchertest.Ledger{Blocks: "ab"}
	w.Probe.On("tail", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		began.Add(1)
		tags <- task.Config["tag"]
		select {
		case <-task.Drain:
			drained.Add(1)
			return l.Read(ctx, task)
		case <-ctx.Done():
			return operators.Result{}, ctx.Err()
		}
	})
	w.Serve(steady)
	stop := w.Start(w.Dispatcher("two"))
	require.Equal(t, "t", <-tags)
	state := func(want string) func() bool {
		return func() bool { return w.Count(`SELECT FROM sources WHERE state = $1`, want) == 1 }
	}
	w.Eventually("it runs", state("Running"))
	other := dispatchertest.Edit(steady, "publish:\n", "publish:\n  # a comment\n")
	deployed := w.Deploy(dispatchertest.Edit(other, "{ from: { job: tail } }",
		"{ from: { job: tail }, description: x }"))
	w.Eventually("the version serves", func() bool { s, _ := w.Status(deployed.Version.ID); return s == "Active" })
	require.Zero(t, w.Count(`SELECT FROM leases WHERE drain_requested_at IS NOT NULL`))
	deployed = w.Deploy(dispatchertest.Edit(steady, "{ tag: t }", "{ tag: u }"))
	w.Eventually("the version serves", func() bool { s, _ := w.Status(deployed.Version.ID); return s == "Active" })
	require.Equal(t, "u", <-tags, "the new definition runs")
	require.Equal(t, int32(1), drained.Load())
	require.Len(t, w.Read("tailed"), 1, "what it had when it was asked to end was committed")

	// A pause drains the running task as well, and it continues after the resume.
	_, err := w.D.Control.Pause(t.Context(), w.Caller, "steady", "", "", time.Now())
	require.NoError(t, err)
	w.Eventually("it ends", func() bool { return drained.Load() == 2 })
	w.Eventually("it is at rest", func() bool { return w.Count(`SELECT FROM leases`) == 0 && state("Pending")() })
	require.NoError(t, w.D.Control.Resume(t.Context(), w.Caller, "steady", "", time.Now()))
	require.Equal(t, "u", <-tags)

	// A process that is stopped lets the task end where it chooses and commit; another task continues from there.
	l.Set("abcd")
	stop()
	require.Equal(t, int32(3), drained.Load())
	require.Len(t, w.Read("tailed"), 2, "what it had when the process stopped was committed")
	w.Start(w.Dispatcher("three"))
	require.Equal(t, "u", <-tags)
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE failures > 0`))
}
