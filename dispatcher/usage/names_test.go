package usage_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/usage"
)

// What a job used and what was backfilled is shown under the name that the job has now, also after a rollback.
func TestARenamedJobKeepsItsUsage(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	us := roll(w, "counts")
	attempts := func() map[string]int64 {
		t.Helper()
		countAll(t, w, us)
		now := time.Now()
		c, err := us.Costs(t.Context(), w.Caller, usage.Question{By: usage.ByJob, Since: now.Add(-time.Hour)}, now)
		require.NoError(t, err)
		all := map[string]int64{}
		for _, row := range c.Rows {
			all[row.Job] += row.Attempts
			require.NotEmpty(t, row.Trend)
		}
		return all
	}

	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	b := w.Follow(w.Backfill(control.BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-01",
		Existing: "all"}))
	require.Equal(t, map[string]int64{"raw": 1, "made": 2}, attempts())

	w.Serve(dispatchertest.Edit(dispatchertest.Upkept, "name: made", "name: built\n    renamed_from: made", "job: made",
		"job: built"))
	require.Equal(t, map[string]int64{"raw": 1, "built": 2}, attempts())
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string]int64{"raw": 2, "built": 3}, attempts())
	trend := func(job string) int64 {
		t.Helper()
		trend, err := us.Trend(t.Context(), w.Caller, "letters", job, 2, time.Now())
		require.NoError(t, err)
		return trend.Days[len(trend.Days)-1].Attempts
	}
	require.EqualValues(t, 3, trend("built"))

	list, err := w.D.Control.Backfills(t.Context(), w.Caller, "letters", uuid.Nil, 10)
	require.NoError(t, err)
	require.Equal(t, "built", list[0].Job)
	b, err = w.D.Control.Backfill(t.Context(), w.Caller, "letters", b.ID)
	require.NoError(t, err)
	require.Equal(t, "built", b.Job)

	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{})
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"raw": 2, "made": 3}, attempts())
	require.EqualValues(t, 3, trend("made"))
}
