package control_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

func TestAFailureIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	runs := 0
	w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		if runs++; runs < 3 {
			return operators.Result{}, errors.New("not yet")
		}
		return operators.Result{}, w.Probe.Write(ctx, task, "at last")
	})
	w.Change("b")
	now := dispatchertest.Later(0)
	w.Work()
	var id uuid.UUID
	var available time.Time
	w.Row(`SELECT task_id, available_at FROM waiting WHERE reason = 'backoff'`)(&id, &available)
	require.WithinRange(t, available, now.Add(time.Second), dispatchertest.Later(3200*time.Millisecond))
	w.Promote(available.Add(-time.Millisecond))
	require.Equal(t, "Failed error waiting:backoff", w.Task(id))
	w.Promote(available)
	require.Equal(t, "Queued error ready", w.Task(id))
	w.Work()
	w.Promote(dispatchertest.Later(time.Minute))
	w.Settle()
	require.Equal(t, []string{"at last"}, w.Read("pair_made")[dispatchertest.FirstDay])
	require.Equal(t, []string{"1 Failed not yet", "2 Failed not yet", "3 Completed"},
		dispatchertest.Texts(t, w.Pool, `SELECT concat_ws(' ', attempt, outcome, error) FROM task_attempts
			WHERE task_id = $1 ORDER BY attempt`, id))
	require.Equal(t, []string{"Queued", "Running", "Failed", "Queued", "Running", "Failed", "Queued", "Running",
		"Completed"},
		trail(w, id))
}

// trail returns a task's audit trail, as people see it.
func trail(w *dispatchertest.World, id uuid.UUID) (statuses []string) {
	w.T.Helper()
	events, err := w.D.Views.TaskEvents(w.T.Context(), w.Caller, id, uuid.Nil, 100)
	require.NoError(w.T, err)
	for _, e := range slices.Backward(events) {
		statuses = append(statuses, e.To)
	}
	return statuses
}

// ready returns the task that waits for a worker.
func ready(w *dispatchertest.World) (id uuid.UUID) {
	w.T.Helper()
	w.Row(`SELECT task_id FROM ready`)(&id)
	return id
}

func TestWhatFailsForGoodIsDead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fail func(context.Context, *operators.Task) (operators.Result, error)
		runs int
	}{
		"each attempt": {func(context.Context, *operators.Task) (operators.Result, error) {
			return operators.Result{}, errors.New("never")
		}, 5},
		"not to be retried": {func(context.Context, *operators.Task) (operators.Result, error) {
			return operators.Result{}, operators.Permanent(errors.New("never"))
		}, 1},
		"a panic of its code": {func(context.Context, *operators.Task) (operators.Result, error) { panic("never") }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.PairWorld(t)
			w.Probe.On("made", c.fail)
			w.Change("b")
			for range 7 {
				w.Work()
				w.Promote(dispatchertest.Later(time.Hour))
			}
			var id uuid.UUID
			w.Row(`SELECT task_id FROM waiting WHERE reason = 'dead'`)(&id)
			require.Equal(t, "Failed error waiting:dead", w.Task(id))
			require.Equal(t, c.runs, w.Count(`SELECT FROM task_attempts WHERE task_id = $1`, id))
			w.Check()
			settled, err := w.D.Views.Settled(t.Context(), w.Caller.OrgID)
			require.NoError(t, err)
			require.True(t, settled, "what is dead is waited for by nobody")

			// A manual retry gives the task all its attempts again.
			w.Probe.On("made", nil)
			task, err := w.D.Control.Retry(t.Context(), w.Caller, id)
			require.NoError(t, err)
			require.Equal(t, "Queued", task.Status)
			require.Zero(t, task.Failures)
			_, err = w.D.Control.Retry(t.Context(), w.Caller, id)
			dispatchertest.Refused(t, err)
			w.Settle()
			require.Equal(t, []string{"m(b)"}, w.Read("pair_made")[dispatchertest.FirstDay])
		})
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	queued := ready(w)
	task, err := w.D.Control.Cancel(t.Context(), w.Caller, queued)
	require.NoError(t, err)
	require.Equal(t, "Canceled", task.Status)
	require.Empty(t, w.Claim(w.D))
	_, err = w.D.Control.Cancel(t.Context(), w.Caller, queued)
	dispatchertest.Refused(t, err)
	w.Check()
	_, err = w.D.Control.Cancel(t.Context(), w.Caller, uuid.New())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	// Somebody thinks better of it, and then again.
	task, err = w.D.Control.Retry(t.Context(), w.Caller, queued)
	require.NoError(t, err)
	require.Equal(t, "Queued", task.Status)
	require.Equal(t, []string{"Queued", "Canceled", "Queued"}, trail(w, queued))
	w.Check()
	again := w.One(w.D)
	require.Equal(t, queued, again.TaskID)
	_, err = w.D.Control.Cancel(t.Context(), w.Caller, queued)
	require.NoError(t, err)
	require.NoError(t, w.D.CancelRunning(t.Context(), again, dispatchertest.Later(0)))
	require.Equal(t, "Canceled canceled", w.Task(queued))

	// A task that a person canceled is not created again,
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	require.Empty(t, w.Claim(w.D))
	// but tasks for new data are.
	w.Change("c")
	w.Settle()
	require.Equal(t, []string{"m(c)"}, w.Read("pair_made")[dispatchertest.FirstDay])
}

// A canceled task is retried like a failed one: another task of its output does its work, and one whose job no version
// runs any more stays canceled.
func TestRetryOfACanceledTask(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	canceled := func(content string) uuid.UUID {
		w.Change(content)
		id := ready(w)
		_, err := w.D.Control.Cancel(t.Context(), w.Caller, id)
		require.NoError(t, err)
		return id
	}
	id := canceled("b")
	w.Change("c")
	require.Equal(t, 1, w.Count(`SELECT FROM ready`))
	task, err := w.D.Control.Retry(t.Context(), w.Caller, id)
	require.NoError(t, err)
	require.Equal(t, "Canceled merged", task.Status+" "+task.Reason)
	w.Check()
	w.Settle()
	require.Equal(t, []string{"m(c)"}, w.Read("pair_made")[dispatchertest.FirstDay])
	_, err = w.D.Control.Retry(t.Context(), w.Caller, id)
	dispatchertest.Refused(t, err)

	id = canceled("d")
	w.Serve(dispatchertest.Edit(dispatchertest.Pair, "tag: m", "tag: n"))
	_, err = w.D.Control.Retry(t.Context(), w.Caller, id)
	dispatchertest.Refused(t, err)
	require.ErrorContains(t, err, "no version runs any more")
}

// Nobody can do anything about the dead tasks of a version that another one replaced, or of a DAG that is deleted: they
// end with it, and a deploy of the same document takes their work up again.
func TestDeadTasksEndWithTheirDefinition(t *testing.T) {
	t.Parallel()
	dead := func(w *dispatchertest.World) int { return w.Count(`SELECT FROM waiting WHERE reason = 'dead'`) }
	fail := func(w *dispatchertest.World, tag string) {
		deployed := w.Deploy(dispatchertest.Edit(dispatchertest.Pair, "tag: m", "tag: "+tag))
		w.Settle()
		status, _ := w.Status(deployed.Version.ID)
		require.Equal(t, registry.Failed, status)
	}
	for name, c := range map[string]struct {
		end  func(w *dispatchertest.World)
		left int
	}{
		"replaced by one that serves": {func(w *dispatchertest.World) {
			w.Probe.On("made", nil)
			w.Serve(dispatchertest.Edit(dispatchertest.Pair, "tag: m", "tag: o"))
		}, 0},
		"replaced by one that fails": {func(w *dispatchertest.World) { fail(w, "p") }, 1},
		"the DAG is deleted": {func(w *dispatchertest.World) {
			_, err := w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "pair", nil, time.Now())
			require.NoError(t, err)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.PairWorld(t)
			w.Probe.On("made", func(context.Context, *operators.Task) (operators.Result, error) {
				return operators.Result{}, operators.Permanent(errors.New("never"))
			})
			fail(w, "n")
			require.Equal(t, 1, dead(w), "what the version failed for is told")
			var id uuid.UUID
			w.Row(`SELECT task_id FROM waiting WHERE reason = 'dead'`)(&id)

			c.end(w)
			require.Equal(t, "Canceled superseded", w.Task(id))
			require.Equal(t, c.left, dead(w))
			groups, err := w.D.Views.ErrorGroups(t.Context(), w.Caller, views.TaskSelection{Dead: true})
			require.NoError(t, err)
			require.Len(t, groups, c.left)
			w.Check()

			w.Probe.On("made", nil)
			w.Serve(dispatchertest.Edit(dispatchertest.Pair, "tag: m", "tag: n"))
			require.Equal(t, []string{"n(a)"}, w.Read("pair_made")[dispatchertest.FirstDay])
		})
	}
}

// A running task learns of its cancellation, and of its timeout, while it runs.
func TestARunIsStopped(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stop func(w *dispatchertest.World, id uuid.UUID)
		yaml string
		left string
	}{
		"canceled": {func(w *dispatchertest.World, id uuid.UUID) {
			_, err := w.D.Control.Cancel(w.T.Context(), w.Caller, id)
			require.NoError(w.T, err)
		}, "heartbeat_timeout_seconds: 5", "Canceled canceled"},
		"timed out": {func(*dispatchertest.World, uuid.UUID) {}, "timeout_seconds: 1",
			"Failed timeout waiting:backoff"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", dispatchertest.FirstDay, "a")
			w.Serve(dispatchertest.Edit(dispatchertest.Pair, "    config: { tag: m }", "    "+c.yaml+
				"\n    config: { tag: m }"))
			w.Change("b")
			m := dispatchertest.NewMeeting()
			w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
				return operators.Result{}, m.Wait(ctx, task)
			})
			task := w.One(w.D)
			over := make(chan struct{})
			go func() { defer close(over); dispatchertest.Execute(t.Context(), w.D, task) }()
			c.stop(w, <-m.Arrived)
			<-over
			require.Equal(t, c.left, w.Task(task.TaskID))
			w.Check()
		})
	}
}

// What failed in a build that was given up belongs to no version that runs: its retry would be canceled at once, so it
// is refused, and bulk retries do not count it. Deploying the document again is what tries it again.
func TestRetryOfATaskThatNoVersionRunsIsRefused(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Probe.On("made", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, operators.Permanent(errors.New("never"))
	})
	next := dispatchertest.Edit(dispatchertest.Pair, "tag: m", "tag: n")
	deployed := w.Deploy(next)
	w.Settle()
	status, _ := w.Status(deployed.Version.ID)
	require.Equal(t, registry.Failed, status)
	var id uuid.UUID
	w.Row(`SELECT task_id FROM waiting WHERE reason = 'dead'`)(&id)

	_, err := w.D.Control.Retry(t.Context(), w.Caller, id)
	dispatchertest.Refused(t, err)
	require.ErrorContains(t, err, "no version runs any more")
	refusal := (*fault.Error)(nil)
	require.ErrorAs(t, err, &refusal)
	require.Contains(t, refusal.Hint, "deploy")
	require.Equal(t, "Failed error waiting:dead", w.Task(id), "nothing happened to it")

	all := control.BulkRequest{Filter: views.TaskSelection{Dead: true}, DryRun: true}
	b, err := w.D.Control.StartBulk(t.Context(), w.Caller, control.VerbRetry, all, time.Now())
	require.NoError(t, err)
	require.Zero(t, b.Matched, "a retry fits none of them")
	all.Reason = "known"
	b, err = w.D.Control.StartBulk(t.Context(), w.Caller, control.VerbSkip, all, time.Now())
	require.NoError(t, err)
	require.EqualValues(t, 1, b.Matched, "it can still be given up")
	groups, err := w.D.Views.ErrorGroups(t.Context(), w.Caller, views.TaskSelection{Dead: true})
	require.NoError(t, err)
	require.Len(t, groups, 1)
	require.Zero(t, groups[0].Retryable)

	w.Probe.On("made", nil)
	w.Serve(next)
	require.Equal(t, "Completed", w.Task(id), "deployed again, it is retried")
}
