package dispatcher_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/tasks"
)

// failForGood ends a claimed task as one that no further attempt can mend.
func failForGood(w *dispatchertest.World, task dispatcher.Claimed) {
	w.T.Helper()
	require.NoError(w.T, w.D.Fail(w.T.Context(), task, tasks.ReasonError, errors.New("no"), false,
		dispatchertest.Later(0)))
	require.Equal(w.T, "Failed error waiting:dead", w.Task(task.TaskID))
}

// A dead task ends once the task that waited beside it has made its partition: nothing is left for it to do.
func TestALaterSuccessEndsADeadTask(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	next := func(content string) {
		w.Probe.Put("raw", dispatchertest.FirstDay, content)
		w.Poll()
		dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
		w.Route()
	}
	next("b")
	made := w.One(w.D)
	next("c") // its task waits for the slot
	failForGood(w, made)
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	require.Equal(t, "Failed error waiting:dead", w.Task(made.TaskID), "nobody has done its work yet")

	w.Settle()
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	require.Equal(t, "Canceled superseded", w.Task(made.TaskID))
	require.Equal(t, []string{"m(c)"}, w.Read("pair_made")[dispatchertest.FirstDay])
	detail, err := w.D.Views.DAG(t.Context(), w.Caller, "pair")
	require.NoError(t, err)
	require.Zero(t, detail.Tasks.Dead)
	w.Check()
}

// A dead task stays while its partition is not made from what its inputs have now.
func TestADeadTaskStaysWhileItsPartitionIsStale(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	made := w.One(w.D)
	failForGood(w, made)
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	require.Equal(t, "Failed error waiting:dead", w.Task(made.TaskID))
}
