package builds_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

// Jobs of other DAGs follow a swap in either direction by themselves, without waiting for a sweep.
func TestOtherDAGsFollowASwap(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Serve(dispatchertest.Upkept)
	w.Serve(dispatchertest.WordsDAG)
	first := map[string][]string{"2024-01-01": {"w(m(a))"}, "2024-01-02": {"w(m(b))"}}
	require.Equal(t, first, w.Read("words"))

	w.Serve(dispatchertest.Tagged("two"))
	second := map[string][]string{"2024-01-01": {"w(two(a))"}, "2024-01-02": {"w(two(b))"}}
	require.Equal(t, second, w.Read("words"))

	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{})
	require.NoError(t, err)
	w.Settle()
	require.Equal(t, first, w.Read("words"), "nobody keeps data of a version that serves no more")

	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{})
	require.NoError(t, err)
	w.Settle()
	require.Equal(t, second, w.Read("words"))
}
