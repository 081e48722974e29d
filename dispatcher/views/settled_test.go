package views_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
)

// A source that has fired and is still being read may find work.
func TestNothingIsSettledWhileASourceIsRead(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Pair)
	w.Probe.Put("raw", "2024-01-02", "b")
	asked := false
	w.Probe.Enumerating = func() {
		asked = true
		settled, err := w.D.Views.Settled(t.Context(), w.Caller.OrgID)
		require.NoError(t, err)
		require.False(t, settled, "what is there to be found has no task yet")
	}
	w.Poll()
	require.True(t, asked)
	require.Zero(t, w.Count(`SELECT FROM sources WHERE reading_until IS NOT NULL`))
	w.Probe.Enumerating = nil
	w.Settle()
	settled, err := w.D.Views.Settled(t.Context(), w.Caller.OrgID)
	require.NoError(t, err)
	require.True(t, settled)
}

// The summary of a DAG covers only the last day, however long its history is.
func TestCompletedTasksAreCountedOfTheLastDay(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Pair)
	completed := func() (n int64) {
		t.Helper()
		dag, err := w.D.Views.DAG(t.Context(), w.Caller, "pair")
		require.NoError(t, err)
		return dag.Tasks.Completed
	}
	require.Equal(t, int64(2), completed())
	var old uuid.UUID
	w.Row(`SELECT id FROM tasks ORDER BY id LIMIT 1`)(&old)
	w.Exec(`UPDATE tasks SET id = $1 WHERE id = $2`, tasks.LowestIDAt(dispatchertest.Later(-2*views.Lately)), old)
	require.Equal(t, int64(1), completed())
}

// A deploy does not undo what was done before: the tasks of a job's former definition stay counted, each once.
func TestCompletedTasksOutliveTheirDefinition(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Pair)
	w.Serve(dispatchertest.Edit(dispatchertest.Pair, "tag: m", "tag: n"))

	dag, err := w.D.Views.DAG(t.Context(), w.Caller, "pair")
	require.NoError(t, err)
	require.EqualValues(t, 3, dag.Tasks.Completed, "raw once, made by either definition")
	for _, job := range dag.Jobs {
		require.EqualValues(t, map[string]int64{"raw": 1, "made": 2}[job.Name], job.Tasks.Completed, job.Name)
	}
	job, err := w.D.Views.Job(t.Context(), w.Caller, "pair", "made")
	require.NoError(t, err)
	require.EqualValues(t, 2, job.Tasks.Completed)
}
