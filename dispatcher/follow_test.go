package dispatcher

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Jobs of other DAGs follow a swap by themselves, whichever way it goes, and without waiting for a sweep.
func TestOtherDAGsFollowASwap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.probe.put("raw", "2024-01-02", "b")
	w.serve(upkept)
	w.serve(wordsDAG)
	first := map[string][]string{"2024-01-01": {"w(m(a))"}, "2024-01-02": {"w(m(b))"}}
	require.Equal(t, first, w.read("words"))

	w.serve(tagged("two"))
	second := map[string][]string{"2024-01-01": {"w(two(a))"}, "2024-01-02": {"w(two(b))"}}
	require.Equal(t, second, w.read("words"))

	_, err := w.d.Rollback(t.Context(), w.caller, "letters", RollbackRequest{})
	require.NoError(t, err)
	w.settle()
	require.Equal(t, first, w.read("words"), "nobody keeps data of a version that serves no more")

	_, err = w.d.Rollback(t.Context(), w.caller, "letters", RollbackRequest{})
	require.NoError(t, err)
	w.settle()
	require.Equal(t, second, w.read("words"))
}
