package dispatcher

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

func TestAFailureIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	runs := 0
	w.probe.on("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		if runs++; runs < 3 {
			return operators.Result{}, errors.New("not yet")
		}
		return operators.Result{}, w.probe.write(ctx, task, "at last")
	})
	w.change("b")
	now := later(0)
	w.work()
	var id uuid.UUID
	var available time.Time
	w.row(`SELECT task_id, available_at FROM waiting WHERE reason = 'backoff'`)(&id, &available)
	require.WithinRange(t, available, now.Add(500*time.Millisecond), later(1600*time.Millisecond))
	w.promote(available.Add(-time.Millisecond))
	require.Equal(t, "Failed error waiting:backoff", w.task(id))
	w.promote(available)
	require.Equal(t, "Queued error ready", w.task(id))
	w.work()
	w.promote(later(time.Minute))
	w.settle()
	require.Equal(t, []string{"at last"}, w.read("pair_made")[firstDay])
	require.Equal(t, []string{"1 Failed not yet", "2 Failed not yet", "3 Completed"},
		texts(t, w.pool, `SELECT concat_ws(' ', attempt, outcome, error) FROM task_attempts WHERE task_id = $1 ORDER BY attempt`, id))
	require.Equal(t, []string{"Queued", "Running", "Failed", "Queued", "Running", "Failed", "Queued", "Running", "Completed"},
		w.trail(id))
}

// trail is what a task went through, as people are told.
func (w *world) trail(id uuid.UUID) (statuses []string) {
	w.t.Helper()
	events, err := w.d.TaskEvents(w.t.Context(), w.caller, id, uuid.Nil, 100)
	require.NoError(w.t, err)
	for _, e := range slices.Backward(events) {
		statuses = append(statuses, e.To)
	}
	return statuses
}

func TestWhatFailsForGoodIsDead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fail func(context.Context, *operators.Task) (operators.Result, error)
		runs int
	}{
		"each attempt": {func(context.Context, *operators.Task) (operators.Result, error) {
			return operators.Result{}, errors.New("never")
		}, 3},
		"not to be retried": {func(context.Context, *operators.Task) (operators.Result, error) {
			return operators.Result{}, operators.Permanent(errors.New("never"))
		}, 1},
		"a panic of its code": {func(context.Context, *operators.Task) (operators.Result, error) { panic("never") }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := pairWorld(t)
			w.probe.on("made", c.fail)
			w.change("b")
			for range 5 {
				w.work()
				w.promote(later(time.Hour))
			}
			var id uuid.UUID
			w.row(`SELECT task_id FROM waiting WHERE reason = 'dead'`)(&id)
			require.Equal(t, "Failed error waiting:dead", w.task(id))
			require.Equal(t, c.runs, w.count(`SELECT FROM task_attempts WHERE task_id = $1`, id))
			w.check()
			settled, err := w.d.Settled(t.Context(), w.caller.OrgID)
			require.NoError(t, err)
			require.True(t, settled, "what is dead is waited for by nobody")

			// By hand it gets all its attempts anew.
			w.probe.on("made", nil)
			task, err := w.d.Retry(t.Context(), w.caller, id)
			require.NoError(t, err)
			require.Equal(t, "Queued", task.Status)
			require.Zero(t, task.Failures)
			_, err = w.d.Retry(t.Context(), w.caller, id)
			refused(t, err)
			w.settle()
			require.Equal(t, []string{"m(b)"}, w.read("pair_made")[firstDay])
		})
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.change("b")
	var queued uuid.UUID
	w.row(`SELECT task_id FROM ready`)(&queued)
	task, err := w.d.Cancel(t.Context(), w.caller, queued)
	require.NoError(t, err)
	require.Equal(t, "Canceled", task.Status)
	require.Empty(t, w.claim(w.d))
	_, err = w.d.Cancel(t.Context(), w.caller, queued)
	refused(t, err)
	w.check()
	_, err = w.d.Cancel(t.Context(), w.caller, uuid.New())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	// What was canceled by hand is not made again,
	require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
	require.Empty(t, w.claim(w.d))
	// but what is new is.
	w.change("c")
	w.settle()
	require.Equal(t, []string{"m(c)"}, w.read("pair_made")[firstDay])
}

// A run hears of its cancellation, and of its timeout, while it goes on.
func TestARunIsStopped(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stop func(w *world, id uuid.UUID)
		yaml string
		left string
	}{
		"canceled": {func(w *world, id uuid.UUID) {
			_, err := w.d.Cancel(w.t.Context(), w.caller, id)
			require.NoError(w.t, err)
		}, "heartbeat_timeout_seconds: 5", "Canceled canceled"},
		"timed out": {func(*world, uuid.UUID) {}, "timeout_seconds: 1", "Failed timeout waiting:backoff"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.probe.put("raw", firstDay, "a")
			w.serve(edit(pair, "    config: { tag: m }", "    "+c.yaml+"\n    config: { tag: m }"))
			w.change("b")
			m := newMeeting()
			w.probe.on("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
				return operators.Result{}, m.wait(ctx, task)
			})
			task := w.one(w.d)
			over := make(chan struct{})
			go func() { defer close(over); w.d.execute(t.Context(), task) }()
			c.stop(w, <-m.arrived)
			<-over
			require.Equal(t, c.left, w.task(task.TaskID))
			w.check()
		})
	}
}
