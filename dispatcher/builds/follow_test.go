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

// A job of another DAG that can go on with other partitions follows them in place, forward and back.
func TestRepartitionIsFollowed(t *testing.T) {
	t.Parallel()
	w := dayWorld(t)
	w.Serve(spelledBy("none"))
	require.Equal(t, map[string][]string{"all": {"x(w(m(a)))"}}, w.Read("words"))

	plan, err := w.TryPlan(monthly)
	require.NoError(t, err)
	reasons := map[string]string{}
	for _, c := range plan.Changes {
		reasons[c.Job] = c.Reason
	}
	require.Equal(t, "definition changed, from day partitions to month partitions, which words/spelled can follow",
		reasons["made"])
	require.Equal(t, "definition changed", reasons["raw"])

	w.Serve(monthly)
	require.Equal(t, map[string][]string{"all": {"x(w(m(b)+m(c)))"}}, w.Read("words"))

	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{})
	require.NoError(t, err)
	w.Settle()
	require.Equal(t, map[string][]string{"all": {"x(w(m(a)))"}}, w.Read("words"))
}

// A window follows a change from days to hours, of which its months are made as well.
func TestWindowFollowsRepartition(t *testing.T) {
	t.Parallel()
	w := dayWorld(t)
	w.Serve(dispatchertest.Edit(copied, "letters_made }", "letters_made }, map: { window: month, require: available }"))
	require.Equal(t, map[string][]string{"2024-01": {"x(w(m(a)))"}}, w.Read("words"))

	w.Probe.Put("hours", "2024-01-05T01", "d")
	w.Probe.Put("hours", "2024-01-31T23", "e")
	w.Serve(dispatchertest.Edit(dispatchertest.Upkept, "time: day", "time: hour", "list: raw", "list: hours"))
	require.Equal(t, map[string][]string{"2024-01": {"x(w(m(d)+m(e)))"}}, w.Read("words"))
	w.Probe.Put("hours", "2024-01-31T23", "f")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01": {"x(w(m(d)+m(f)))"}}, w.Read("words"))
}
