package dispatcher

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAnEventDuringARunWaitsAsSibling(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.change("b")
	running := w.one(w.d)
	w.change("c")
	require.Equal(t, []string{firstDay + " Completed", firstDay + " Running", firstDay + " Queued"}, w.tasks("made"))
	require.Equal(t, 1, w.count(`SELECT FROM waiting WHERE reason = 'sibling' AND blocker = $1`, running.TaskID.String()))
	require.Empty(t, w.claim(w.d))
	// The one that waits takes in whatever else comes.
	w.change("d")
	w.change("e")
	require.Len(t, w.tasks("made"), 3)
	require.Equal(t, 2, w.count(`SELECT FROM event_outcomes c JOIN tasks t ON t.id = c.task_id WHERE c.outcome = 'included' AND t.status = 'Queued'`))

	require.NoError(t, w.d.complete(t.Context(), running, w.do(w.d, running), later(0)))
	w.check()
	require.Equal(t, []string{"m(b)"}, w.read("pair_made")[firstDay])
	w.settle()
	require.Equal(t, []string{"m(e)"}, w.read("pair_made")[firstDay])
	require.Equal(t, 3, w.attempts("made"))
}

// A task that failed makes room for the one that was made since.
func TestARetryMeetsASibling(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		steps func(w *world, running claimed)
		runs  int
	}{
		"made while it backs off": {func(w *world, running claimed) {
			require.NoError(w.t, w.d.fail(w.t.Context(), running, reasonError, errTimedOut, true, later(0)))
			w.change("c")
		}, 3},
		"made while it runs": {func(w *world, running claimed) {
			w.change("c")
			require.NoError(w.t, w.d.fail(w.t.Context(), running, reasonError, errTimedOut, true, later(0)))
			w.promote(later(time.Hour))
		}, 3},
		"made while it runs, and done before its retry": {func(w *world, running claimed) {
			w.change("c")
			require.NoError(w.t, w.d.fail(w.t.Context(), running, reasonError, errTimedOut, true, later(0)))
			w.settle()
			w.promote(later(time.Hour))
		}, 3},
		"made while it runs, and running at its retry": {func(w *world, running claimed) {
			w.change("c")
			require.NoError(w.t, w.d.fail(w.t.Context(), running, reasonError, errTimedOut, true, later(0)))
			sibling := w.one(w.d)
			w.promote(later(time.Hour))
			w.check()
			require.NoError(w.t, w.d.complete(w.t.Context(), sibling, w.do(w.d, sibling), later(0)))
		}, 3},
		"dead": {func(w *world, running claimed) {
			require.NoError(w.t, w.d.fail(w.t.Context(), running, reasonError, errTimedOut, false, later(0)))
			w.change("c")
		}, 3},
		"handed back": {func(w *world, running claimed) {
			w.change("c")
			require.NoError(w.t, w.d.handBack(w.t.Context(), running, "stopped", later(0), later(0)))
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := pairWorld(t)
			w.change("b")
			c.steps(w, w.one(w.d))
			w.check()
			w.settle()
			require.Equal(t, []string{"m(c)"}, w.read("pair_made")[firstDay])
			require.Equal(t, c.runs, w.attempts("made"))
			require.Zero(t, w.count(`SELECT FROM waiting`), w.tasks("made"))
		})
	}
}
