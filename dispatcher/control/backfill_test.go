package control_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

func TestBackfillAll(t *testing.T) {
	t.Parallel()
	w := dispatchertest.MonthWorld(t, "01", "02", "03", "04")
	made, summed := w.Attempts("made"), w.Attempts("summed")
	b := w.Backfill(control.BackfillRequest{Job: "made", From: "2024-01-02", To: "2024-01-04", Existing: "all",
		Propagate: "once", Concurrency: 2})
	require.Equal(t, 3, b.Pending)
	_, err := w.D.Control.AdvanceBackfills(t.Context(), time.Now())
	require.NoError(t, err)
	require.Equal(t, 2, w.Count(`SELECT FROM ready`), "its own concurrency")
	b = w.Follow(b)
	require.Equal(t, "Completed", b.Status)
	require.Equal(t, 3, b.Done)
	require.NotNil(t, b.EndedAt)
	require.Equal(t, made+3, w.Attempts("made"))
	require.Equal(t, map[string]int64{"2024-01-01": 1, "2024-01-02": 2, "2024-01-03": 2, "2024-01-04": 2},
		w.Published("made"))
	w.Settle()
	require.Equal(t, summed+1, w.Attempts("summed"), "consumers follow once, at the end")
}

func TestBackfillPropagation(t *testing.T) {
	t.Parallel()
	for propagate, follows := range map[string]bool{"none": false, "each": true} {
		t.Run(propagate, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.MonthWorld(t, "01", "02")
			before := w.Published("summed")
			require.Equal(t, "Completed", w.Follow(w.Backfill(control.BackfillRequest{Job: "made", From: "2024-01-01",
				To: "2024-01-02", Existing: "all", Propagate: propagate})).Status)
			require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), time.Now()))
			w.Settle()
			if !follows {
				require.Equal(t, before, w.Published("summed"), "not now, and not at the next sweep")
				require.Equal(t, 2, w.Count(`SELECT FROM partition_inputs WHERE accepted = 2 AND input_revision = 1`),
					"what it was made from stays on record")
			} else {
				require.Greater(t, w.Published("summed")["all"], before["all"])
			}
			w.Probe.Put("raw", "2024-01-02", "new")
			w.Poll()
			w.Settle()
			require.Greater(t, w.Published("summed")["all"], before["all"], "new data is another matter")
			require.Equal(t, map[string]int64{"2024-01-01": 2, "2024-01-02": 3}, w.Published("made"))
		})
	}
}

func TestBackfillExisting(t *testing.T) {
	t.Parallel()
	w := dispatchertest.MonthWorld(t, "01", "02", "03")
	w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{}, errors.New("no luck")
	})
	w.Probe.Put("raw", "2024-01-04", "d")
	w.Poll()
	w.Settle()
	require.Equal(t, 1, w.Count(`SELECT FROM waiting WHERE reason = 'dead'`))
	require.Zero(t, w.Backfill(control.BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-31"}).Pending,
		"nothing is missing that did not fail")
	b := w.Backfill(control.BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-31", Existing: "failed"})
	require.Equal(t, 1, b.Pending)
	b = w.Follow(b)
	require.Equal(t, "Failed", b.Status)
	require.Equal(t, 1, b.Failed)
	w.Probe.On("made", nil)
	b = w.Follow(w.Backfill(control.BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-31",
		Existing: "failed"}))
	require.Equal(t, "Completed", b.Status)
	require.Len(t, w.Read("letters_made"), 4)
	w.Check()

	// The source reads the same data again.
	raw := w.Attempts("raw")
	b = w.Follow(w.Backfill(control.BackfillRequest{Job: "raw", From: "2024-01-02", To: "2024-01-03", Existing: "all"}))
	require.Equal(t, 2, b.Done)
	require.Equal(t, raw+2, w.Attempts("raw"))
}

func TestBackfillCanceled(t *testing.T) {
	t.Parallel()
	w := dispatchertest.MonthWorld(t, "01", "02", "03")
	b := w.Backfill(control.BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-03", Existing: "all",
		Concurrency: 1})
	_, err := w.D.Control.AdvanceBackfills(t.Context(), time.Now())
	require.NoError(t, err)
	b, err = w.D.Control.CancelBackfill(t.Context(), w.Caller, "letters", b.ID, time.Now())
	require.NoError(t, err)
	require.Equal(t, "Canceled", b.Status)
	require.Equal(t, "by "+w.Caller.Actor, b.Reason)
	require.Equal(t, []int{1, 2}, []int{b.Open, b.Pending})
	w.Settle()
	_, err = w.D.Control.AdvanceBackfills(t.Context(), time.Now())
	require.NoError(t, err)
	w.Settle()
	require.Equal(t, map[string]int64{"2024-01-01": 2, "2024-01-02": 1, "2024-01-03": 1}, w.Published("made"))
	b = w.Follow(b)
	require.Equal(t, []int{0, 1, 2}, []int{b.Open, b.Done, b.Pending}, "what it left behind has ended since")
	_, err = w.D.Control.CancelBackfill(t.Context(), w.Caller, "letters", b.ID, time.Now())
	require.ErrorContains(t, err, "no backfill")

	// A backfill ends when its job is replaced.
	b = w.Backfill(control.BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-03", Existing: "all",
		Concurrency: 1})
	w.Serve(strings.ReplaceAll(dispatchertest.January, "tag: m", "tag: other"))
	b = w.Follow(b)
	require.Equal(t, "Canceled", b.Status)
	require.Contains(t, b.Reason, "another version serves")
	require.Zero(t, b.Open)
	list, err := w.D.Control.Backfills(t.Context(), w.Caller, "letters", b.ID, 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
}

func TestBackfillRefuses(t *testing.T) {
	t.Parallel()
	w := dispatchertest.MonthWorld(t, "01")
	for want, req := range map[string]control.BackfillRequest{
		"no job": {Job: "nothing", From: "2024-01-01", To: "2024-01-02"},
		"the first partition, 2024-01-02, comes after the last one, 2024-01-01": {Job: "made", From: "2024-01-02",
			To: "2024-01-01"},
		"not a day": {Job: "made", From: "January", To: "2024-01-02"},
	} {
		_, err := w.D.Control.StartBackfill(t.Context(), w.Caller, "letters", req, time.Now())
		require.ErrorContains(t, err, want)
	}

	// What nobody lists is made by hand.
	w.Serve("name: hand\njobs: [{ name: note, operator: hook, source: { kind: manual }, " +
		"partition_by: { time: day }, config: {} }]\n")
	_, err := w.D.Control.StartBackfill(t.Context(), w.Caller, "hand",
		control.BackfillRequest{Job: "note", From: "2024-01-01", To: "2024-01-02"}, time.Now())
	var f *fault.Error
	require.ErrorAs(t, err, &f)
	require.Contains(t, f.Hint, "a person makes each: `dagctl run hand/note --partition K`")
}
