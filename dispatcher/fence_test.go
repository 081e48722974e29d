package dispatcher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/operators"
)

func TestALateCompletionCountsUntilANewerAttemptBegins(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	task := w.One(w.D)
	done := w.Do(w.D, task)
	w.Reap(dispatchertest.Later(time.Minute))
	require.Equal(t, "Failed lease_expired waiting:backoff", w.Task(task.TaskID))
	_, held, err := w.D.ExtendLease(t.Context(), task.Fence, 50, "", dispatchertest.Later(0))
	require.NoError(t, err)
	require.False(t, held, "a lease that was taken back cannot be extended")

	require.NoError(t, w.D.CompleteAttempt(t.Context(), task, done, dispatchertest.Later(0)))
	require.Equal(t, "Completed", w.Task(task.TaskID))
	require.Equal(t, []string{"m(b)"}, w.Read("pair_made")[dispatchertest.FirstDay])
	w.Check()
	// A repeated report is acknowledged and changes nothing.
	require.NoError(t, w.D.CompleteAttempt(t.Context(), task, done, dispatchertest.Later(0)))
	require.Equal(t, map[string]int64{dispatchertest.FirstDay: 2}, w.Published("made"))
	// A different completion of the same attempt is refused.
	other := done
	other.Outcome.Result.Result = []byte(`{"n": 1}`)
	dispatchertest.Refused(t, w.D.CompleteAttempt(t.Context(), task, other, dispatchertest.Later(0)))
}

func TestALateCompletionOfAQueuedRetryCounts(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	task := w.One(w.D)
	done := w.Do(w.D, task)
	w.Reap(dispatchertest.Later(time.Minute))
	w.Promote(dispatchertest.Later(time.Hour))
	require.Equal(t, "Queued lease_expired ready", w.Task(task.TaskID))
	require.NoError(t, w.D.CompleteAttempt(t.Context(), task, done, dispatchertest.Later(0)))
	require.Equal(t, "Completed", w.Task(task.TaskID))
	w.Check()
}

func TestAnAttemptIsFencedOffByTheNext(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	first := w.One(w.D)
	done := w.Do(w.D, first)
	w.Reap(dispatchertest.Later(time.Minute))
	w.Promote(dispatchertest.Later(time.Hour))
	second := w.One(w.D)
	require.Equal(t, first.TaskID, second.TaskID)
	require.Equal(t, 2, second.Attempt)

	before := w.Count(`SELECT FROM partition_versions UNION ALL SELECT FROM task_events UNION ALL SELECT FROM events`)
	dispatchertest.Refused(t, w.D.CompleteAttempt(t.Context(), first, done, dispatchertest.Later(0)))
	dispatchertest.Refused(t, w.D.Fail(t.Context(), first, tasks.ReasonError, errors.New("late"), true,
		dispatchertest.Later(0)))
	dispatchertest.Refused(t, w.D.CancelRunning(t.Context(), first, dispatchertest.Later(0)))
	dispatchertest.Refused(t, w.D.HandBack(t.Context(), first, "late", dispatchertest.Later(0),
		dispatchertest.Later(0)))
	_, held, err := w.D.ExtendLease(t.Context(), first.Fence, 99, "", dispatchertest.Later(0))
	require.NoError(t, err)
	require.False(t, held)
	forged := second
	forged.LeaseToken = first.LeaseToken
	dispatchertest.Refused(t, w.D.CompleteAttempt(t.Context(), forged, done, dispatchertest.Later(0)))
	require.Equal(t, before, w.Count(`SELECT FROM partition_versions UNION ALL SELECT FROM task_events UNION ALL
		SELECT FROM events`))
	require.Equal(t, "Running lease_expired leased", w.Task(second.TaskID))

	require.NoError(t, w.D.CompleteAttempt(t.Context(), second, w.Do(w.D, second), dispatchertest.Later(0)))
	require.Equal(t, map[string]int64{dispatchertest.FirstDay: 2}, w.Published("made"))
	dispatchertest.Refused(t, w.D.CompleteAttempt(t.Context(), first, done, dispatchertest.Later(0)))
	w.Check()
}

// After a timeout, a failure, a hand-back or a cancellation, calls of the attempt have no effect.
func TestWhatEndedOtherwiseCannotComplete(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(w *dispatchertest.World, task dispatcher.Claimed)
		left string
	}{
		"timeout": {func(w *dispatchertest.World, task dispatcher.Claimed) { w.Reap(task.TimeoutAt.Add(time.Minute)) },
			"Failed timeout waiting:backoff"},
		"failure": {func(w *dispatchertest.World, task dispatcher.Claimed) {
			require.NoError(w.T, w.D.Fail(w.T.Context(), task, tasks.ReasonError, errors.New("no"), true,
				dispatchertest.Later(0)))
		}, "Failed error waiting:backoff"},
		"not to retry": {func(w *dispatchertest.World, task dispatcher.Claimed) {
			require.NoError(w.T, w.D.Fail(w.T.Context(), task, tasks.ReasonError, errors.New("no"), false,
				dispatchertest.Later(0)))
		}, "Failed error waiting:dead"},
		"hand-back": {func(w *dispatchertest.World, task dispatcher.Claimed) {
			require.NoError(w.T, w.D.HandBack(w.T.Context(), task, "stopped", dispatchertest.Later(0),
				dispatchertest.Later(0)))
		}, "Queued handed_back ready"},
		"canceled": {func(w *dispatchertest.World, task dispatcher.Claimed) {
			_, err := w.D.Control.Cancel(w.T.Context(), w.Caller, task.TaskID)
			require.NoError(w.T, err)
			canceled, held, err := w.D.ExtendLease(w.T.Context(), task.Fence, 1, "", dispatchertest.Later(0))
			require.NoError(w.T, err)
			require.True(w.T, canceled && held)
			require.NoError(w.T, w.D.CancelRunning(w.T.Context(), task, dispatchertest.Later(0)))
		}, "Canceled canceled"},
		"canceled, and lost": {func(w *dispatchertest.World, task dispatcher.Claimed) {
			_, err := w.D.Control.Cancel(w.T.Context(), w.Caller, task.TaskID)
			require.NoError(w.T, err)
			w.Reap(dispatchertest.Later(time.Minute))
		}, "Canceled canceled"},
		"canceled, and failed": {func(w *dispatchertest.World, task dispatcher.Claimed) {
			_, err := w.D.Control.Cancel(w.T.Context(), w.Caller, task.TaskID)
			require.NoError(w.T, err)
			require.NoError(w.T, w.D.Fail(w.T.Context(), task, tasks.ReasonError, errors.New("no"), true,
				dispatchertest.Later(0)))
		}, "Canceled canceled"},
		"canceled, and handed back": {func(w *dispatchertest.World, task dispatcher.Claimed) {
			_, err := w.D.Control.Cancel(w.T.Context(), w.Caller, task.TaskID)
			require.NoError(w.T, err)
			require.NoError(w.T, w.D.HandBack(w.T.Context(), task, "stopped", dispatchertest.Later(0),
				dispatchertest.Later(0)))
		}, "Canceled canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.PairWorld(t)
			w.Change("b")
			task := w.One(w.D)
			done := w.Do(w.D, task)
			c.end(w, task)
			require.Equal(t, c.left, w.Task(task.TaskID))
			w.Check()
			dispatchertest.Refused(t, w.D.CompleteAttempt(t.Context(), task, done, dispatchertest.Later(0)))
			require.Equal(t, c.left, w.Task(task.TaskID))
			require.Equal(t, []string{"m(a)"}, w.Read("pair_made")[dispatchertest.FirstDay])
			w.Check()
		})
	}
}

// A worker that hangs beyond its lease, and resumes after another has done its work, creates no second revision.
func TestAZombieChangesNothing(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	held := dispatchertest.NewMeeting()
	zombie := w.Dispatcher("zombie")
	w.Serve(dispatchertest.Pair)
	w.Change("b")
	w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		if task.Attempt == 1 {
			held.Arrived <- task.TaskID
			<-held.Leave // ignores its context, like a suspended process
		}
		return operators.Result{}, w.Probe.Write(ctx, task, "by attempt")
	})
	task := w.One(zombie)
	over := make(chan struct{})
	go func() { defer close(over); dispatchertest.Execute(context.WithoutCancel(t.Context()), zombie, task) }()
	<-held.Arrived
	w.Reap(dispatchertest.Later(time.Minute))
	w.Promote(dispatchertest.Later(time.Hour))
	w.Work()
	require.Equal(t, "Completed", w.Task(task.TaskID))
	require.Equal(t, map[string]int64{dispatchertest.FirstDay: 2}, w.Published("made"))
	close(held.Leave)
	<-over
	w.Settle()
	require.Equal(t, map[string]int64{dispatchertest.FirstDay: 2}, w.Published("made"))
	require.Equal(t, 2, w.Count(`SELECT FROM task_attempts WHERE task_id = $1`, task.TaskID))
}

// A task that has read older inputs and ends last publishes nothing.
func TestTheOlderTaskEndsLast(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	older := w.One(w.D)
	done := w.Do(w.D, older)
	w.Change("c")
	w.Reap(dispatchertest.Later(time.Minute)) // frees the slot for the newer task
	newer := w.One(w.D)
	require.NotEqual(t, older.TaskID, newer.TaskID)
	require.NoError(t, w.D.CompleteAttempt(t.Context(), newer, w.Do(w.D, newer), dispatchertest.Later(0)))
	require.Equal(t, []string{"m(c)"}, w.Read("pair_made")[dispatchertest.FirstDay])

	require.NoError(t, w.D.CompleteAttempt(t.Context(), older, done, dispatchertest.Later(0)))
	require.Equal(t, []string{"m(c)"}, w.Read("pair_made")[dispatchertest.FirstDay])
	require.Equal(t, map[string]int64{dispatchertest.FirstDay: 2}, w.Published("made"))
	var state string
	w.Row(`SELECT state FROM tasks WHERE id = $1`, older.TaskID)(&state)
	require.Equal(t, "superseded: newer inputs were published already", state)
	w.Check()
}

// The silence of a process costs it no lease: the database may have been away. After a gap, leases that ran out are not
// taken back at once.
func TestSilenceCostsNoLease(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	gone := w.Dispatcher("gone")
	task := w.One(gone)
	w.Reap(dispatchertest.Later(time.Second))
	require.Equal(t, "Running leased", w.Task(task.TaskID))
	w.Exec(`UPDATE workers SET last_heartbeat = now() - interval '11 seconds' WHERE id = 'gone'`)
	w.Reap(dispatchertest.Later(0))
	require.Equal(t, "Running leased", w.Task(task.TaskID))
	require.Contains(t, dispatchertest.CodesIn(w.WhyTask(w.Caller, task.TaskID).Reasons), "worker_silent")

	back := dispatchertest.Later(time.Minute)
	reap := func(after time.Duration) {
		t.Helper()
		_, err := w.D.ReapSince(t.Context(), back.Add(after), back)
		require.NoError(t, err)
	}
	reap(9 * time.Second) // of a lease of 30 s, a third has not passed since the database is back
	require.Equal(t, "Running leased", w.Task(task.TaskID))
	_, held, err := gone.ExtendLease(t.Context(), task.Fence, 0, "", back)
	require.NoError(t, err)
	require.False(t, held, "where nobody knows of a gap, the holder was silent")
	reap(time.Minute)
	require.Equal(t, "Failed lease_expired waiting:backoff", w.Task(task.TaskID))
	w.Promote(dispatchertest.Later(time.Hour))
	w.Settle()
	require.Equal(t, []string{"m(b)"}, w.Read("pair_made")[dispatchertest.FirstDay])
}

// A task that read a source before another task did publishes nothing either.
func TestTheOlderReadingEndsLast(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	read := func(content string) (dispatcher.Claimed, dispatcher.Completion) {
		w.Probe.Put("raw", dispatchertest.FirstDay, content)
		w.Poll()
		w.Reap(dispatchertest.Later(time.Minute)) // takes back the lease of the slot's holder
		task := w.One(w.D)
		return task, w.Do(w.D, task)
	}
	older, old := read("b")
	w.Probe.Put("raw", dispatchertest.FirstDay, "c")
	w.Poll() // its task waits for the slot, so the older task is late and not replaced
	newer, young := read("c")
	require.NoError(t, w.D.CompleteAttempt(t.Context(), newer, young, dispatchertest.Later(0)))
	require.NoError(t, w.D.CompleteAttempt(t.Context(), older, old, dispatchertest.Later(0)))
	require.Equal(t, "Completed", w.Task(older.TaskID))
	w.Settle()
	require.Equal(t, []string{"m(c)"}, w.Read("pair_made")[dispatchertest.FirstDay])
	require.Equal(t, map[string]int64{dispatchertest.FirstDay: 2}, w.Published("raw"))
}
