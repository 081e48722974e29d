package dispatcher_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/worker/protocol"
)

// A task's record says who asked for it and with what, how far each attempt came, and what happened in the order in
// which it did.
func TestATasksRecord(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	out, err := w.D.Enqueue(t.Context(), w.Caller, "work", "daily", []dispatcher.EnqueueItem{{Partition: "a",
		Metadata: json.RawMessage(`{"ticket": 17, "traceparent": "none"}`)}})
	require.NoError(t, err)
	id := out[0].ID
	f := claimFarAgain(w.Tenant, id)
	_, err = f.beat(time.Now())
	require.NoError(t, err)
	_, err = f.complete(f.failed(true), time.Now())
	require.NoError(t, err)

	task, err := w.D.Views.Task(t.Context(), w.Caller, id)
	require.NoError(t, err)
	require.Equal(t, w.Caller.Actor, task.CreatedBy)
	require.JSONEq(t, `{"ticket": 17}`, string(task.Metadata))
	require.Equal(t, []any{40, "on it"}, []any{task.Progress, task.State}, "a failed attempt's progress is kept")
	require.Len(t, task.Attempts, 1)
	require.Equal(t, "40 % on it", task.Attempts[0].Reached())

	w.Promote(time.Now().Add(time.Hour))
	second := claimFarAgain(w.Tenant, id)
	_, err = w.D.Control.Cancel(t.Context(), w.Caller, id)
	require.NoError(t, err)
	steps := func(limit int) (steps []string) {
		t.Helper()
		for before := uuid.Nil; ; {
			page, err := w.D.Views.TaskEvents(t.Context(), w.Caller, id, before, limit)
			require.NoError(t, err)
			for _, e := range page {
				steps = append(steps, e.From+" "+e.To+" "+e.State)
				before = e.ID
			}
			if len(page) < limit {
				slices.Reverse(steps)
				return steps
			}
		}
	}
	running := []string{" Queued ", "Queued Running ", "Running Running on it", "Running Failed ",
		"Failed Queued ", "Queued Running ", "Running Running asked to end"}
	require.Equal(t, running, steps(100))
	for limit := range 3 {
		require.Equal(t, running, steps(limit+1), "in pages of %d", limit+1)
	}
	_, err = second.complete(protocol.Completion{Fence: second.claim.Fence(), Status: "Canceled"}, time.Now())
	require.NoError(t, err)
	require.Equal(t, append(running, "Running Canceled "), steps(100))
	require.Equal(t, append(running, "Running Canceled "), steps(2))

	// It was made before all else, even where a claim has the time of the transaction that made it.
	w.Exec(`UPDATE tasks SET created_at = created_at - interval '1 h', started_at = created_at - interval '1 h'
		WHERE id = $1`, id)
	w.Exec(`DELETE FROM task_events WHERE task_id = $1`, id)
	for limit := range 3 {
		require.Equal(t, []string{" Queued ", "Queued Running "}, steps(limit+1), "in pages of %d", limit+1)
	}
}

// Texts that heartbeats bring are steps of the trail: each once, and the first fifty of an attempt.
func TestStepsOfAnAttempt(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	f := claimFar(w.Tenant, "daily", "a")
	beat := func(percent int, text string) {
		t.Helper()
		_, err := w.D.Heartbeat(t.Context(), f.c,
			protocol.Heartbeat{Fence: f.claim.Fence(), Progress: percent, State: text}, time.Now())
		require.NoError(t, err)
	}
	beat(0, "")
	beat(10, "reading")
	beat(20, "reading")
	beat(30, "")
	beat(40, "writing")
	for i := range 60 {
		beat(41, fmt.Sprint("part ", i))
	}

	events, err := w.D.Views.TaskEvents(t.Context(), w.Caller, f.id, uuid.Nil, 1000)
	require.NoError(t, err)
	var steps []string
	for _, e := range slices.Backward(events) {
		if e.From == "Running" {
			steps = append(steps, fmt.Sprint(e.Attempt, " ", e.Actor, " ", e.State, " ", string(e.Detail)))
		}
	}
	require.Len(t, steps, 50)
	require.Subset(t, steps, []string{`1 WORKER reading {"progress": 10}`, `1 WORKER writing {"progress": 40}`,
		`1 WORKER part 0 {"progress": 41}`, `1 WORKER part 47 {"progress": 41}`})
	task, err := w.D.Views.Task(t.Context(), w.Caller, f.id)
	require.NoError(t, err)
	require.Equal(t, "part 59", task.State)

	local := dispatchertest.NewWorld(t)
	local.Probe.On("count", count)
	local.Serve(counting)
	local.Enqueue("count", dispatcher.EnqueueItem{})
	own := local.One(local.D)
	for _, text := range []string{"one", "one", "two"} {
		_, held, err := local.D.ExtendLease(t.Context(), own.Fence, 5, text, time.Now())
		require.NoError(t, err)
		require.True(t, held)
	}
	require.Equal(t, []string{"one", "two"}, dispatchertest.Texts(t, local.Pool,
		`SELECT state FROM task_events WHERE from_status = 'Running' ORDER BY state`))
}

// Metadata is an object; what an earlier version took for metadata is shown as it is.
func TestMetadataIsAnObject(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	enqueue := func(metadata string) error {
		_, err := w.D.Enqueue(t.Context(), w.Caller, "work", "daily", []dispatcher.EnqueueItem{{Partition: "a",
			Metadata: json.RawMessage(metadata)}})
		return err
	}
	for _, wrong := range []string{`5`, `"x"`, `true`, `["traceparent"]`} {
		require.ErrorContains(t, enqueue(wrong), "metadata: it is not a JSON object", wrong)
	}
	for _, right := range []string{``, `null`, `{}`, `{"a": [1]}`} {
		require.NoError(t, enqueue(right), right)
	}

	for _, former := range []string{`5`, `"x"`, `true`, `["traceparent"]`} {
		w.Exec(`UPDATE tasks SET metadata = $1`, former)
		list, err := w.D.Views.Tasks(t.Context(), w.Caller, views.TaskFilter{Limit: 10})
		require.NoError(t, err, former)
		require.Len(t, list, 4)
		require.JSONEq(t, former, string(list[0].Metadata))
	}
}
