package upkeep_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry/deploy"
)

func TestOldVersionsShrinkToTheirRecords(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	for _, tag := range []string{"one", "two", "three", "four", "five"} {
		w.Serve(dispatchertest.Tagged(tag))
	}
	pinned := 3
	_, err := w.D.Registry.Pin(t.Context(), w.Caller, "letters", pinned, nil, "audit")
	require.NoError(t, err)

	other := w.Org("other")
	other.Serve(dispatchertest.Tagged("one"))
	other.Serve(dispatchertest.Tagged("two"))
	shrunk := func() []string {
		return dispatchertest.Texts(t, w.Pool, `SELECT o.slug || ' ' || v.number FROM dag_versions v
			JOIN orgs o ON o.id = v.org_id WHERE v.shrunk_at IS NOT NULL ORDER BY 1`)
	}
	jobsOf := func(number int) int {
		return w.Count(`SELECT FROM jobs j JOIN dag_versions v ON v.id = j.dag_version_id
			WHERE v.org_id = $1 AND v.number = $2`, w.Caller.OrgID, number)
	}
	require.Equal(t, 2, jobsOf(2))

	later := dispatchertest.Later(401 * 24 * time.Hour)
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), later))
	require.Empty(t, shrunk(), "gc has not removed their data yet")
	w.GC(later)
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), dispatchertest.Later(399*24*time.Hour)))
	require.Empty(t, shrunk(), "it is not their time")
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), later))
	require.Equal(t, []string{"acme 1", "acme 2"}, shrunk(),
		"not the one that serves, the one before, and the pinned one")
	require.Equal(t, 1, jobsOf(2), "the job that it introduced stays")
	require.Equal(t, 2, jobsOf(pinned))

	back := 2
	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{To: &back})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "version 2 of letters is a record only since")

	deployer := deploy.New(w.D.Registry)
	diff, err := deployer.DiffVersions(t.Context(), w.Caller, "letters", 2, 5)
	require.NoError(t, err)
	require.Equal(t, []int{2}, diff.Records)
	require.Empty(t, diff.Changes)
	require.Contains(t, diff.Text, "-    config: { tag: two }")
	history, err := deployer.History(t.Context(), w.Caller, "letters", 0, 10)
	require.NoError(t, err)
	for _, v := range history {
		require.Equal(t, v.Number <= 2, v.ShrunkAt != nil, fmt.Sprint(v.Number))
		require.NotEmpty(t, v.Activations)
	}

	again := w.Serve(dispatchertest.Tagged("two"))
	require.True(t, again.Created)
	require.Equal(t, 6, again.Version.Number, "a new version of the same document")
	require.Equal(t, map[string][]string{"2024-01-01": {"two(a)"}}, w.Read("letters_made"))
	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{})
	require.NoError(t, err)
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"five(a)"}}, w.Read("letters_made"))
}
