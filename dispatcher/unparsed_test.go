package dispatcher_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/why"
)

// newerForm is a partition key as a newer server may write it, which this one does not understand.
const newerForm = "2024-fortnight-1"

// A newer server may write tasks whose partitions this one cannot read. Such a task waits, and keeps no other waiting;
// it is offered again, until a server comes that can read it.
func TestATaskOfAnUnknownPartitionKeepsNoOtherWaiting(t *testing.T) {
	t.Parallel()
	const second = "2024-01-02"
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Probe.Put("raw", second, "a")
	w.Serve(dispatchertest.Pair)

	change := func(content string) {
		w.Probe.Put("raw", dispatchertest.FirstDay, content)
		w.Probe.Put("raw", second, content)
		w.Poll()
	}
	write := func(id uuid.UUID, key string) {
		w.Exec(`UPDATE tasks SET slot = $2, partitions = ARRAY[$2] WHERE id = $1`, id, key)
		w.Exec(`UPDATE ready SET slot = $2 WHERE task_id = $1`, id, key)
		w.Exec(`UPDATE waiting SET slot = $2 WHERE task_id = $1`, id, key)
	}
	// waits claims beside the task of the first day, and then offers it again to a server that understands it.
	waits := func(job string) {
		t.Helper()
		id := open(w, job, dispatchertest.FirstDay)
		write(id, newerForm)
		other := w.One(w.D)
		require.Equal(t, second, other.Slot)
		dispatchertest.Execute(t.Context(), w.D, other)
		require.Empty(t, w.Claim(w.D), "it is put aside, and not taken again and again")
		require.Equal(t, "Queued waiting:run_at", w.Task(id))

		for _, caller := range []authz.Caller{w.Caller, {OrgID: w.Caller.OrgID, Role: authz.RoleReader}} {
			reason := w.WhyTask(caller, id).Reasons[0]
			require.Equal(t, why.WhyUnknownKey, reason.Code)
			require.Contains(t, reason.Text, `a server put it aside that does not know such a partition`)
			require.WithinDuration(t, time.Now().Add(time.Minute), *reason.Until, time.Minute)
		}
		require.Contains(t, w.WhyTask(w.Caller, id).Reasons[0].Text,
			`"2024-fortnight-1" is not a day such as 2001-01-31`)

		w.Promote(dispatchertest.Later(10 * time.Second))
		require.Equal(t, "Queued waiting:run_at", w.Task(id), "it is not its time yet")
		w.Promote(dispatchertest.Later(2 * time.Minute))
		require.Equal(t, "Queued ready", w.Task(id))
		write(id, dispatchertest.FirstDay)
		first := w.One(w.D)
		require.Equal(t, id, first.TaskID)
		dispatchertest.Execute(t.Context(), w.D, first)
	}

	change("b")
	waits("raw")
	w.Route()
	waits("made")
	w.Settle()
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE status <> 'Completed'`))
}

// A check task names its partition in its payload.
func TestACheckOfAnUnknownPartitionKeepsNoOtherWaiting(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Checked)
	w.Probe.Put("raw", dispatchertest.FirstDay, "b")
	w.Poll()
	dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
	w.Route()
	w.Unchecked(w.One(w.D))
	w.Exec(`UPDATE tasks SET payload = jsonb_set(payload, '{partition}', to_jsonb($1::text)) WHERE kind = 'check'
		AND status = 'Queued'`, newerForm)

	require.Empty(t, w.Claim(w.D))
	require.Equal(t, 1, w.Count(`SELECT FROM waiting WHERE reason = 'run_at'`))
}
