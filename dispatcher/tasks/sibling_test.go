package tasks_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/tasks"
)

func TestAnEventDuringARunWaitsAsSibling(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	running := w.One(w.D)
	w.Change("c")
	require.Equal(t, []string{dispatchertest.FirstDay + " Completed", dispatchertest.FirstDay + " Running",
		dispatchertest.FirstDay + " Queued"}, w.Tasks("made"))
	require.Equal(t, 1, w.Count(`SELECT FROM waiting WHERE reason = 'sibling' AND blocker = $1`,
		running.TaskID.String()))
	require.Empty(t, w.Claim(w.D))
	// The waiting task also covers everything that arrives later.
	w.Change("d")
	w.Change("e")
	require.Len(t, w.Tasks("made"), 3)
	require.Equal(t, 2, w.Count(`SELECT FROM event_outcomes c JOIN tasks t ON t.id = c.task_id
		WHERE c.outcome = 'included' AND t.status = 'Queued'`))

	require.NoError(t, w.D.CompleteAttempt(t.Context(), running, w.Do(w.D, running), dispatchertest.Later(0)))
	w.Check()
	require.Equal(t, []string{"m(b)"}, w.Read("pair_made")[dispatchertest.FirstDay])
	w.Settle()
	require.Equal(t, []string{"m(e)"}, w.Read("pair_made")[dispatchertest.FirstDay])
	require.Equal(t, 3, w.Attempts("made"))
}

// A failed task makes room for the task that was created since.
func TestARetryMeetsASibling(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		steps func(w *dispatchertest.World, running dispatcher.Claimed)
		runs  int
	}{
		"made while it backs off": {func(w *dispatchertest.World, running dispatcher.Claimed) {
			require.NoError(w.T, w.D.Fail(w.T.Context(), running, tasks.ReasonError, dispatcher.ErrTimedOut, true,
				dispatchertest.Later(0)))
			w.Change("c")
		}, 3},
		"made while it runs": {func(w *dispatchertest.World, running dispatcher.Claimed) {
			w.Change("c")
			require.NoError(w.T, w.D.Fail(w.T.Context(), running, tasks.ReasonError, dispatcher.ErrTimedOut, true,
				dispatchertest.Later(0)))
			w.Promote(dispatchertest.Later(time.Hour))
		}, 3},
		"made while it runs, and done before its retry": {func(w *dispatchertest.World, running dispatcher.Claimed) {
			w.Change("c")
			require.NoError(w.T, w.D.Fail(w.T.Context(), running, tasks.ReasonError, dispatcher.ErrTimedOut, true,
				dispatchertest.Later(0)))
			w.Settle()
			w.Promote(dispatchertest.Later(time.Hour))
		}, 3},
		"made while it runs, and running at its retry": {func(w *dispatchertest.World, running dispatcher.Claimed) {
			w.Change("c")
			require.NoError(w.T, w.D.Fail(w.T.Context(), running, tasks.ReasonError, dispatcher.ErrTimedOut, true,
				dispatchertest.Later(0)))
			sibling := w.One(w.D)
			w.Promote(dispatchertest.Later(time.Hour))
			w.Check()
			require.NoError(w.T, w.D.CompleteAttempt(w.T.Context(), sibling, w.Do(w.D, sibling),
				dispatchertest.Later(0)))
		}, 3},
		"dead": {func(w *dispatchertest.World, running dispatcher.Claimed) {
			require.NoError(w.T, w.D.Fail(w.T.Context(), running, tasks.ReasonError, dispatcher.ErrTimedOut, false,
				dispatchertest.Later(0)))
			w.Change("c")
		}, 3},
		"handed back": {func(w *dispatchertest.World, running dispatcher.Claimed) {
			w.Change("c")
			require.NoError(w.T, w.D.HandBack(w.T.Context(), running, "stopped", dispatchertest.Later(0),
				dispatchertest.Later(0)))
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.PairWorld(t)
			w.Change("b")
			c.steps(w, w.One(w.D))

			w.Check()
			w.Settle()
			require.Equal(t, []string{"m(c)"}, w.Read("pair_made")[dispatchertest.FirstDay])
			require.Equal(t, c.runs, w.Attempts("made"))
			require.Zero(t, w.Count(`SELECT FROM waiting`), w.Tasks("made"))
		})
	}
}
