package dispatcher

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// pair: raw → made, a partition a day, both quick.
const pair = `
name: pair
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: raw }
  - name: made
    operator: hook
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { tag: m }
publish:
  pair_made: { from: { job: made } }
`

const firstDay = "2024-01-01"

// pairWorld serves pair, with raw at content "a".
func pairWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.probe.put("raw", firstDay, "a")
	w.serve(pair)
	return w
}

// change brings new content up to the task of made that is to read it, which is ready then.
func (w *world) change(content string) {
	w.t.Helper()
	w.probe.put("raw", firstDay, content)
	w.poll()
	for _, task := range w.claim(w.d) {
		require.Equal(w.t, "raw", task.job.Name)
		w.d.execute(w.t.Context(), task)
	}
	w.route()
	w.check()
}

func refused(t *testing.T, err error) {
	t.Helper()
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
}

func TestALateCompletionCountsUntilANewerAttemptBegins(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.change("b")
	task := w.one(w.d)
	done := w.do(w.d, task)
	w.reap(later(time.Minute))
	require.Equal(t, "Failed lease_expired waiting:backoff", w.task(task.TaskID))
	_, held, err := w.d.heartbeat(t.Context(), task.Fence, 50, "", later(0))
	require.NoError(t, err)
	require.False(t, held, "a lease that was taken back cannot be extended")

	require.NoError(t, w.d.complete(t.Context(), task, done, later(0)))
	require.Equal(t, "Completed", w.task(task.TaskID))
	require.Equal(t, []string{"m(b)"}, w.read("pair_made")[firstDay])
	w.check()
	// Reported again, it is acknowledged and changes nothing.
	require.NoError(t, w.d.complete(t.Context(), task, done, later(0)))
	require.Equal(t, map[string]int64{firstDay: 2}, w.published("made"))
	// Another completion of the same attempt is not.
	other := done
	other.outcome.Result.Result = []byte(`{"n": 1}`)
	refused(t, w.d.complete(t.Context(), task, other, later(0)))
}

func TestALateCompletionOfAQueuedRetryCounts(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.change("b")
	task := w.one(w.d)
	done := w.do(w.d, task)
	w.reap(later(time.Minute))
	w.promote(later(time.Hour))
	require.Equal(t, "Queued lease_expired ready", w.task(task.TaskID))
	require.NoError(t, w.d.complete(t.Context(), task, done, later(0)))
	require.Equal(t, "Completed", w.task(task.TaskID))
	w.check()
}

func TestAnAttemptIsFencedOffByTheNext(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.change("b")
	first := w.one(w.d)
	done := w.do(w.d, first)
	w.reap(later(time.Minute))
	w.promote(later(time.Hour))
	second := w.one(w.d)
	require.Equal(t, first.TaskID, second.TaskID)
	require.Equal(t, 2, second.Attempt)

	before := w.count(`SELECT FROM partition_versions UNION ALL SELECT FROM task_events UNION ALL SELECT FROM events`)
	refused(t, w.d.complete(t.Context(), first, done, later(0)))
	refused(t, w.d.fail(t.Context(), first, reasonError, errors.New("late"), true, later(0)))
	refused(t, w.d.cancelRunning(t.Context(), first, later(0)))
	refused(t, w.d.handBack(t.Context(), first, "late", later(0), later(0)))
	_, held, err := w.d.heartbeat(t.Context(), first.Fence, 99, "", later(0))
	require.NoError(t, err)
	require.False(t, held)
	forged := second
	forged.LeaseToken = first.LeaseToken
	refused(t, w.d.complete(t.Context(), forged, done, later(0)))
	require.Equal(t, before, w.count(`SELECT FROM partition_versions UNION ALL SELECT FROM task_events UNION ALL SELECT FROM events`))
	require.Equal(t, "Running lease_expired leased", w.task(second.TaskID))

	require.NoError(t, w.d.complete(t.Context(), second, w.do(w.d, second), later(0)))
	require.Equal(t, map[string]int64{firstDay: 2}, w.published("made"))
	refused(t, w.d.complete(t.Context(), first, done, later(0)))
	w.check()
}

// After a timeout, a failure, a hand-back or a cancellation, nothing of the attempt counts any more.
func TestWhatEndedOtherwiseCannotComplete(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(w *world, task claimed)
		left string
	}{
		"timeout": {func(w *world, task claimed) { w.reap(task.timeoutAt.Add(time.Minute)) }, "Failed timeout waiting:backoff"},
		"failure": {func(w *world, task claimed) {
			require.NoError(w.t, w.d.fail(w.t.Context(), task, reasonError, errors.New("no"), true, later(0)))
		}, "Failed error waiting:backoff"},
		"not to retry": {func(w *world, task claimed) {
			require.NoError(w.t, w.d.fail(w.t.Context(), task, reasonError, errors.New("no"), false, later(0)))
		}, "Failed error waiting:dead"},
		"hand-back": {func(w *world, task claimed) {
			require.NoError(w.t, w.d.handBack(w.t.Context(), task, "stopped", later(0), later(0)))
		}, "Queued handed_back ready"},
		"canceled": {func(w *world, task claimed) {
			_, err := w.d.Cancel(w.t.Context(), w.caller, task.TaskID)
			require.NoError(w.t, err)
			canceled, held, err := w.d.heartbeat(w.t.Context(), task.Fence, 1, "", later(0))
			require.NoError(w.t, err)
			require.True(w.t, canceled && held)
			require.NoError(w.t, w.d.cancelRunning(w.t.Context(), task, later(0)))
		}, "Canceled canceled"},
		"canceled, and lost": {func(w *world, task claimed) {
			_, err := w.d.Cancel(w.t.Context(), w.caller, task.TaskID)
			require.NoError(w.t, err)
			w.reap(later(time.Minute))
		}, "Canceled canceled"},
		"canceled, and failed": {func(w *world, task claimed) {
			_, err := w.d.Cancel(w.t.Context(), w.caller, task.TaskID)
			require.NoError(w.t, err)
			require.NoError(w.t, w.d.fail(w.t.Context(), task, reasonError, errors.New("no"), true, later(0)))
		}, "Canceled canceled"},
		"canceled, and handed back": {func(w *world, task claimed) {
			_, err := w.d.Cancel(w.t.Context(), w.caller, task.TaskID)
			require.NoError(w.t, err)
			require.NoError(w.t, w.d.handBack(w.t.Context(), task, "stopped", later(0), later(0)))
		}, "Canceled canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := pairWorld(t)
			w.change("b")
			task := w.one(w.d)
			done := w.do(w.d, task)
			c.end(w, task)
			require.Equal(t, c.left, w.task(task.TaskID))
			w.check()
			refused(t, w.d.complete(t.Context(), task, done, later(0)))
			require.Equal(t, c.left, w.task(task.TaskID))
			require.Equal(t, []string{"m(a)"}, w.read("pair_made")[firstDay])
			w.check()
		})
	}
}

// A worker that hangs beyond its lease and wakes up after another has done its work makes no second revision.
func TestAZombieChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", firstDay, "a")
	held := newMeeting()
	zombie := w.dispatcher("zombie")
	w.serve(pair)
	w.change("b")
	w.probe.on("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		if task.Attempt == 1 {
			held.arrived <- task.TaskID
			<-held.leave // deaf to its context, as a process is that was suspended
		}
		return operators.Result{}, w.probe.write(ctx, task, "by attempt")
	})
	task := w.one(zombie)
	over := make(chan struct{})
	go func() { defer close(over); zombie.execute(context.WithoutCancel(t.Context()), task) }()
	<-held.arrived
	w.reap(later(time.Minute))
	w.promote(later(time.Hour))
	w.work()
	require.Equal(t, "Completed", w.task(task.TaskID))
	require.Equal(t, map[string]int64{firstDay: 2}, w.published("made"))
	close(held.leave)
	<-over
	w.settle()
	require.Equal(t, map[string]int64{firstDay: 2}, w.published("made"))
	require.Equal(t, 2, w.count(`SELECT FROM task_attempts WHERE task_id = $1`, task.TaskID))
}

// The task that read less and ends last publishes nothing.
func TestTheOlderTaskEndsLast(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.change("b")
	older := w.one(w.d)
	done := w.do(w.d, older)
	w.change("c")
	w.reap(later(time.Minute)) // the slot is free, the newer task goes
	newer := w.one(w.d)
	require.NotEqual(t, older.TaskID, newer.TaskID)
	require.NoError(t, w.d.complete(t.Context(), newer, w.do(w.d, newer), later(0)))
	require.Equal(t, []string{"m(c)"}, w.read("pair_made")[firstDay])

	require.NoError(t, w.d.complete(t.Context(), older, done, later(0)))
	require.Equal(t, []string{"m(c)"}, w.read("pair_made")[firstDay])
	require.Equal(t, map[string]int64{firstDay: 2}, w.published("made"))
	var state string
	w.row(`SELECT state FROM tasks WHERE id = $1`, older.TaskID)(&state)
	require.Equal(t, "superseded: newer inputs were published already", state)
	w.check()
}

// A dead process frees its tasks before their leases run out.
func TestADeadWorkerFreesItsTasks(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.change("b")
	gone := w.dispatcher("gone")
	task := w.one(gone)
	w.reap(later(time.Second))
	require.Equal(t, "Running leased", w.task(task.TaskID))
	w.exec(`UPDATE workers SET last_heartbeat = now() - interval '11 seconds' WHERE id = 'gone'`)
	w.reap(later(0))
	require.Equal(t, "Failed lease_expired waiting:backoff", w.task(task.TaskID))
	w.promote(later(time.Hour))
	w.settle()
	require.Equal(t, []string{"m(b)"}, w.read("pair_made")[firstDay])
}

// Nor does one that read a source before another did.
func TestTheOlderReadingEndsLast(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	read := func(content string) (claimed, completion) {
		w.probe.put("raw", firstDay, content)
		w.poll()
		w.reap(later(time.Minute)) // whoever holds the slot is thought lost
		task := w.one(w.d)
		return task, w.do(w.d, task)
	}
	older, old := read("b")
	w.probe.put("raw", firstDay, "c")
	w.poll() // waits for the slot, so that the older one is not replaced but late
	newer, young := read("c")
	require.NoError(t, w.d.complete(t.Context(), newer, young, later(0)))
	require.NoError(t, w.d.complete(t.Context(), older, old, later(0)))
	require.Equal(t, "Completed", w.task(older.TaskID))
	w.settle()
	require.Equal(t, []string{"m(c)"}, w.read("pair_made")[firstDay])
	require.Equal(t, map[string]int64{firstDay: 2}, w.published("raw"))
}
