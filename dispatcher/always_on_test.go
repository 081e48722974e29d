package dispatcher

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

func TestWhatASupervisorDoes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	long := now.Add(time.Hour)
	for name, c := range map[string]struct {
		s            standing
		state        string
		start, drain bool
	}{
		"nothing":                {standing{}, "Pending", true, false},
		"paused":                 {standing{mustRest: true}, "Pending", false, false},
		"queued":                 {standing{queued: true}, "Pending", false, false},
		"running":                {standing{running: true, timeout: long}, "Running", false, false},
		"running, with the next": {standing{running: true, queued: true, timeout: long}, "Running", false, false},
		"running and paused":     {standing{running: true, mustRest: true, timeout: long}, "Draining", false, true},
		"its time is nearly up":  {standing{running: true, timeout: now.Add(time.Minute)}, "Draining", false, true},
		"asked to end":           {standing{running: true, drained: true, mustRest: true, timeout: long}, "Draining", false, false},
		"tried again soon":       {standing{backoff: true}, "Dead", false, false},
		"dead just now":          {standing{died: ago(time.Second)}, "Dead", false, false},
		"dead for a while":       {standing{died: ago(deadFor)}, "Pending", true, false},
		"dead and paused":        {standing{died: ago(deadFor), mustRest: true}, "Pending", false, false},
	} {
		state, start, drain := c.s.supervise(now)
		require.Equal(t, c.state, state, name)
		require.Equal(t, []bool{c.start, c.drain}, []bool{start, drain}, name)
	}
}

func (w *world) supervise(now time.Time) (state string) {
	w.t.Helper()
	_, err := w.d.superviseSources(w.t.Context(), now)
	require.NoError(w.t, err)
	w.row(`SELECT state FROM sources WHERE job_name = 'tail'`)(&state)
	return state
}

func TestAnAlwaysOnSource(t *testing.T) {
	t.Parallel()
	w, l := newWorld(t), &ledger{blocks: "abc"}
	w.probe.on("tail", l.read)
	w.serve(steady)
	require.Equal(t, "Pending", w.supervise(later(0)))
	require.Equal(t, "Pending", w.supervise(later(0)))
	require.Len(t, w.tasks("tail"), 1, "one task, however often it is looked")
	first := w.one(w.d)
	require.Equal(t, "Running", w.supervise(later(0)))
	require.Len(t, w.tasks("tail"), 1)
	w.d.execute(t.Context(), first)
	require.Equal(t, map[string][]string{"0-3": {"0,a", "1,b", "2,c"}}, w.read("tailed"))

	// The next goes on from there. Its worker dies: it is tried again, by whoever is there.
	l.set("abcde")
	require.Equal(t, "Pending", w.supervise(later(0)))
	lost := w.one(w.d)
	w.exec(`UPDATE tasks SET max_attempts = 2 WHERE id = $1`, lost.TaskID)
	w.reap(later(time.Hour))
	require.Equal(t, "Dead", w.supervise(later(time.Hour)))
	w.promote(later(2 * time.Hour))
	again := w.one(w.d)
	require.Equal(t, lost.TaskID, again.TaskID)
	require.Error(t, w.d.complete(t.Context(), lost, w.do(w.d, lost), time.Now()))
	w.d.execute(t.Context(), again)
	require.Len(t, w.read("tailed"), 2)

	// It fails for good: it is dead, which is told, and after a while it is tried again.
	w.supervise(later(0))
	w.probe.on("tail", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, operators.Permanent(context.DeadlineExceeded)
	})
	w.work()
	require.Equal(t, "Dead", w.supervise(later(0)))
	status, err := w.d.Sources(t.Context(), w.caller)
	require.NoError(t, err)
	require.Contains(t, status[0].Error, "deadline exceeded")
	require.Equal(t, "Pending", w.supervise(later(deadFor+time.Second)))
	w.probe.on("tail", l.read)
	l.set("abcdefg")
	w.work()
	require.Len(t, w.read("tailed"), 3)
	w.check()

	// A pause takes what is queued out; nothing new is made until it is over.
	_, err = w.d.Pause(t.Context(), w.caller, "steady", "tail", "", time.Now())
	require.NoError(t, err)
	require.Equal(t, "Pending", w.supervise(later(0)))
	require.Empty(t, w.claim(w.d))
	require.NoError(t, w.d.Resume(t.Context(), w.caller, "steady", "tail", time.Now()))
	require.Equal(t, "Pending", w.supervise(later(0)))
	w.one(w.d)
}

// A cutover that changes it has the task end where it likes, commit, and the next begin under the new definition; one that
// does not leaves it alone.
func TestAlwaysOnIsDrainedByACutoverThatChangesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var began, drained atomic.Int32
	tags := make(chan any, 10)
	l := &ledger{blocks: "ab"}
	w.probe.on("tail", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		began.Add(1)
		tags <- task.Config["tag"]
		select {
		case <-task.Drain:
			drained.Add(1)
			return l.read(ctx, task)
		case <-ctx.Done():
			return operators.Result{}, ctx.Err()
		}
	})
	w.serve(steady)
	stop := w.start(w.dispatcher("two"))
	require.Equal(t, "t", <-tags)
	state := func(want string) func() bool {
		return func() bool { return w.count(`SELECT FROM sources WHERE state = $1`, want) == 1 }
	}
	w.eventually("it runs", state("Running"))
	other := edit(steady, "publish:\n", "publish:\n  # a comment\n")
	deployed := w.deploy(edit(other, "{ from: { job: tail } }", "{ from: { job: tail }, description: x }"))
	w.eventually("the version serves", func() bool { s, _ := w.status(deployed.Version.ID); return s == "Active" })
	require.Zero(t, w.count(`SELECT FROM leases WHERE drain_requested_at IS NOT NULL`))
	deployed = w.deploy(edit(steady, "{ tag: t }", "{ tag: u }"))
	w.eventually("the version serves", func() bool { s, _ := w.status(deployed.Version.ID); return s == "Active" })
	require.Equal(t, "u", <-tags, "the new definition runs")
	require.Equal(t, int32(1), drained.Load())
	require.Len(t, w.read("tailed"), 1, "what it had when it was asked to end was committed")

	// Paused, it is drained as well, and goes on when it is resumed.
	_, err := w.d.Pause(t.Context(), w.caller, "steady", "", "", time.Now())
	require.NoError(t, err)
	w.eventually("it ends", func() bool { return drained.Load() == 2 })
	w.eventually("it is at rest", func() bool { return w.count(`SELECT FROM leases`) == 0 && state("Pending")() })
	require.NoError(t, w.d.Resume(t.Context(), w.caller, "steady", "", time.Now()))
	require.Equal(t, "u", <-tags)

	// Told to stop, the process has it end where it likes, commits what it had, and another goes on from there.
	l.set("abcd")
	stop()
	require.Equal(t, int32(3), drained.Load())
	require.Len(t, w.read("tailed"), 2, "what it had when the process stopped was committed")
	w.start(w.dispatcher("three"))
	require.Equal(t, "u", <-tags)
	require.Zero(t, w.count(`SELECT FROM tasks WHERE failures > 0`))
}
