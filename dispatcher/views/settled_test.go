package views_test

import (
	"testing"
	"time"

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

// A process that ends when all that was due is done fires nothing that comes due meanwhile, which would never end.
func TestWhatComesDueLaterIsLeft(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Pair)
	w.Serve(`
name: ticking
jobs:
  - name: tick
    operator: hook
    source: { kind: poll, every: 1s }
`)
	w.Settle()

	moment := time.Now()
	settled := func() bool {
		settled, err := w.D.Views.SettledBy(t.Context(), w.Caller.OrgID, moment)
		require.NoError(t, err)
		return settled
	}
	later := func() { w.Exec(`UPDATE sources SET next_fire_at = $1`, moment.Add(time.Millisecond)) }
	w.Exec(`UPDATE sources SET next_fire_at = $1`, moment)
	require.False(t, settled())
	w.D.Sources.FireUntil(moment)
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Fire()
	w.Settle()
	later()
	require.True(t, settled())

	w.Probe.Put("raw", "2024-01-03", "c")
	ticks, reads := w.Tasks("tick"), w.Tasks("raw")
	require.Len(t, ticks, 2, "once when it was deployed, once for the moment")
	require.Len(t, reads, 2)
	more, err := w.D.Sources.Fire(t.Context(), dispatchertest.Later(time.Hour))
	require.NoError(t, err)
	require.False(t, more)
	w.D.Sources.EndReading()
	require.Equal(t, ticks, w.Tasks("tick"))
	require.Equal(t, reads, w.Tasks("raw"))

	w.Exec(`UPDATE sources SET next_fire_at = $1`, moment)
	w.Pause("pair", "")
	w.Pause("ticking", "tick")
	require.True(t, settled(), "nothing fires a source that is paused")
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
