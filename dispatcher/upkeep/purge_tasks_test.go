package upkeep_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

func TestPurgeWhatTasksHeld(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	w.Probe.On("send", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{Result: []byte(`{"sent": "to ann"}`)}, nil
	})
	to := func(who string) dispatcher.EnqueueItem {
		return dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]any{"to": who, "n": 1}),
			IdempotencyKey: "mail-" + who, Metadata: []byte(`{"by": {"name": "` + who + `"}}`)}
	}
	made := w.Enqueue("send", to("ann"), to("bob"))
	ann, bob := made[0].ID, made[1].ID
	purge := func(req upkeep.PurgeTasksRequest) (upkeep.PurgedTasks, error) {
		req.Reason = "erasure request 17"
		return w.D.Upkeep.PurgeTasks(t.Context(), w.Caller, req, time.Now())
	}
	byName := upkeep.PurgeTasksRequest{Where: map[string]string{"payload.to": "ann", "metadata.by.name": "ann"}}
	_, err := purge(byName)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "1 of 1 tasks are open")
	require.Equal(t, 2, w.Work())

	for name, req := range map[string]upkeep.PurgeTasksRequest{
		"nothing said": {}, "no path": {Where: map[string]string{"payload": "x"}},
		"no column":      {Where: map[string]string{"status.x": "x"}},
		"an empty field": {Where: map[string]string{"payload..x": "x"}},
	} {
		_, err := purge(req)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
	}
	_, err = purge(upkeep.PurgeTasksRequest{Where: map[string]string{"payload.to": "zoe"}})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	dry := byName
	dry.DryRun = true
	purged, err := purge(dry)
	require.NoError(t, err)
	require.Equal(t, upkeep.PurgedTasks{DryRun: true, Tasks: 1}, purged)
	require.Equal(t, 2, w.Count(`SELECT FROM task_results`))

	purged, err = purge(byName)
	require.NoError(t, err)
	require.Equal(t, upkeep.PurgedTasks{Tasks: 1}, purged)
	left := dispatchertest.Texts(t, w.Pool, `SELECT t::text FROM tasks t WHERE id = $1 UNION ALL SELECT e::text
		FROM task_events e WHERE task_id = $1
		UNION ALL SELECT r::text FROM task_results r WHERE task_id = $1 UNION ALL SELECT a::text FROM task_attempts a
		WHERE task_id = $1
		UNION ALL SELECT l::text FROM audit_log l`, ann)
	for _, row := range left {
		require.NotContains(t, row, "ann")
	}
	require.Equal(t, []string{"purged"}, dispatchertest.Texts(t, w.Pool, `SELECT state FROM task_events
		WHERE task_id = $1`, ann))
	detail, err := w.D.Views.Task(t.Context(), w.Caller, bob)
	require.NoError(t, err)
	require.JSONEq(t, `{"to": "bob", "n": 1}`, string(detail.Payload))
	require.Equal(t, 1, w.Count(`SELECT FROM audit_log WHERE action = 'task.purge'
		AND detail ->> 'reason' = 'erasure request 17'`))
	w.Check()
	require.True(t, w.Enqueue("send", to("ann"))[0].Created, "a key that was purged is not known")
}

func TestPurgeWhatTasksHeldKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	before := w.Read("pair_made")
	_, err := w.D.Upkeep.PurgeTasks(t.Context(), w.Caller,
		upkeep.PurgeTasksRequest{Filter: views.TaskSelection{DAG: "pair"}, Reason: "x"}, time.Now())
	require.NoError(t, err)
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	require.Empty(t, w.Claim(w.D), "nothing is computed again")
	require.Equal(t, before, w.Read("pair_made"))
	w.Change("b")
	w.Settle()
	require.Equal(t, []string{"m(b)"}, w.Read("pair_made")[dispatchertest.FirstDay])

	// Tasks that a rollback would run again need more than a reason.
	w.Change("c")
	id := w.TaskOf("made", dispatchertest.FirstDay)
	_, err = w.D.Upkeep.PurgeTasks(t.Context(), w.Caller,
		upkeep.PurgeTasksRequest{Filter: views.TaskSelection{IDs: []uuid.UUID{id}}, Reason: "x"}, time.Now())
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	w.Exec(`WITH gone AS (DELETE FROM ready) UPDATE tasks
		SET status = 'Canceled', reason = 'superseded', completed_at = now() WHERE id = $1`, id)
	req := upkeep.PurgeTasksRequest{Filter: views.TaskSelection{IDs: []uuid.UUID{id}}, Reason: "x"}
	_, err = w.D.Upkeep.PurgeTasks(t.Context(), w.Caller, req, time.Now())
	require.ErrorContains(t, err, "a rollback would take up 1 of 1 tasks again")
	req.BreakWindow = true
	_, err = w.D.Upkeep.PurgeTasks(t.Context(), w.Caller, req, time.Now())
	require.NoError(t, err)
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	require.NotEqual(t, id, w.TaskOf("made", dispatchertest.FirstDay), "its work is another task's")
	w.Settle()
	require.Equal(t, []string{"m(c)"}, w.Read("pair_made")[dispatchertest.FirstDay])

	other := w.Org("other")
	_, err = w.D.Upkeep.PurgeTasks(t.Context(), other.Caller,
		upkeep.PurgeTasksRequest{Filter: views.TaskSelection{IDs: []uuid.UUID{id}}, Reason: "x"}, time.Now())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
}
