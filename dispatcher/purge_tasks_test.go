package dispatcher

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

func TestPurgeWhatTasksHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(mail)
	w.probe.on("send", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{Result: []byte(`{"sent": "to ann"}`)}, nil
	})
	to := func(who string) EnqueueItem {
		return EnqueueItem{Payload: payload(map[string]any{"to": who, "n": 1}), IdempotencyKey: "mail-" + who, Metadata: []byte(`{"by": {"name": "` + who + `"}}`)}
	}
	made := w.enqueue("send", to("ann"), to("bob"))
	ann, bob := made[0].ID, made[1].ID
	purge := func(req PurgeTasksRequest) (PurgedTasks, error) {
		req.Reason = "erasure request 17"
		return w.d.PurgeTasks(t.Context(), w.caller, req, time.Now())
	}
	byName := PurgeTasksRequest{Where: map[string]string{"payload.to": "ann", "metadata.by.name": "ann"}}
	_, err := purge(byName)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "1 of 1 tasks are open")
	require.Equal(t, 2, w.work())

	for name, req := range map[string]PurgeTasksRequest{
		"nothing said": {}, "no path": {Where: map[string]string{"payload": "x"}}, "no column": {Where: map[string]string{"status.x": "x"}},
		"an empty field": {Where: map[string]string{"payload..x": "x"}},
	} {
		_, err := purge(req)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
	}
	_, err = purge(PurgeTasksRequest{Where: map[string]string{"payload.to": "zoe"}})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	dry := byName
	dry.DryRun = true
	purged, err := purge(dry)
	require.NoError(t, err)
	require.Equal(t, PurgedTasks{DryRun: true, Tasks: 1}, purged)
	require.Equal(t, 2, w.count(`SELECT FROM task_results`))

	purged, err = purge(byName)
	require.NoError(t, err)
	require.Equal(t, PurgedTasks{Tasks: 1}, purged)
	left := texts(t, w.pool, `SELECT t::text FROM tasks t WHERE id = $1 UNION ALL SELECT e::text FROM task_events e WHERE task_id = $1
		UNION ALL SELECT r::text FROM task_results r WHERE task_id = $1 UNION ALL SELECT a::text FROM task_attempts a WHERE task_id = $1
		UNION ALL SELECT l::text FROM audit_log l`, ann)
	for _, row := range left {
		require.NotContains(t, row, "ann")
	}
	require.Equal(t, []string{"purged"}, texts(t, w.pool, `SELECT state FROM task_events WHERE task_id = $1`, ann))
	detail, err := w.d.Task(t.Context(), w.caller, bob)
	require.NoError(t, err)
	require.JSONEq(t, `{"to": "bob", "n": 1}`, string(detail.Payload))
	require.Equal(t, 1, w.count(`SELECT FROM audit_log WHERE action = 'task.purge' AND detail ->> 'reason' = 'erasure request 17'`))
	w.check()
	require.True(t, w.enqueue("send", to("ann"))[0].Created, "a key that was purged is not known")
}

func TestPurgeWhatTasksHeldKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	before := w.read("pair_made")
	_, err := w.d.PurgeTasks(t.Context(), w.caller, PurgeTasksRequest{Filter: TaskSelection{DAG: "pair"}, Reason: "x"}, time.Now())
	require.NoError(t, err)
	require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
	require.Empty(t, w.claim(w.d), "nothing is computed again")
	require.Equal(t, before, w.read("pair_made"))
	w.change("b")
	w.settle()
	require.Equal(t, []string{"m(b)"}, w.read("pair_made")[firstDay])

	// What a rollback would take up again takes more than a reason.
	w.change("c")
	id := w.taskOf("made", firstDay)
	_, err = w.d.PurgeTasks(t.Context(), w.caller, PurgeTasksRequest{Filter: TaskSelection{IDs: []uuid.UUID{id}}, Reason: "x"}, time.Now())
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	w.exec(`WITH gone AS (DELETE FROM ready) UPDATE tasks SET status = 'Canceled', reason = 'superseded', completed_at = now() WHERE id = $1`, id)
	req := PurgeTasksRequest{Filter: TaskSelection{IDs: []uuid.UUID{id}}, Reason: "x"}
	_, err = w.d.PurgeTasks(t.Context(), w.caller, req, time.Now())
	require.ErrorContains(t, err, "a rollback would take up 1 of 1 tasks again")
	req.BreakWindow = true
	_, err = w.d.PurgeTasks(t.Context(), w.caller, req, time.Now())
	require.NoError(t, err)
	require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
	require.NotEqual(t, id, w.taskOf("made", firstDay), "its work is another task's")
	w.settle()
	require.Equal(t, []string{"m(c)"}, w.read("pair_made")[firstDay])

	other := w.org("other")
	_, err = w.d.PurgeTasks(t.Context(), other.caller, PurgeTasksRequest{Filter: TaskSelection{IDs: []uuid.UUID{id}}, Reason: "x"}, time.Now())
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
}
