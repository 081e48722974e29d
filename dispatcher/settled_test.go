package dispatcher

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// A source that has fired and is still being read may be about to find work.
func TestNothingIsSettledWhileASourceIsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", firstDay, "a")
	w.serve(pair)
	w.probe.put("raw", "2024-01-02", "b")
	asked := false
	w.probe.asked = func() {
		asked = true
		settled, err := w.d.Settled(t.Context(), w.caller.OrgID)
		require.NoError(t, err)
		require.False(t, settled, "what is there to be found has no task yet")
	}
	w.poll()
	require.True(t, asked)
	require.Zero(t, w.count(`SELECT FROM sources WHERE reading_until IS NOT NULL`))
	w.probe.asked = nil
	w.settle()
	settled, err := w.d.Settled(t.Context(), w.caller.OrgID)
	require.NoError(t, err)
	require.True(t, settled)
}

// What a DAG has done is told of the last day, whatever has gathered before.
func TestCompletedTasksAreCountedOfTheLastDay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", firstDay, "a")
	w.serve(pair)
	completed := func() (n int64) {
		t.Helper()
		dag, err := w.d.DAG(t.Context(), w.caller, "pair")
		require.NoError(t, err)
		return dag.Tasks.Completed
	}
	require.Equal(t, int64(2), completed())
	var old uuid.UUID
	w.row(`SELECT id FROM tasks ORDER BY id LIMIT 1`)(&old)
	w.exec(`UPDATE tasks SET id = $1 WHERE id = $2`, firstID(later(-2*lately)), old)
	require.Equal(t, int64(1), completed())
}
