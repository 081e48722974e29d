package why_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
)

// What is said of a purged partition brings it back.
func TestWhyNotOfPurgedPartitionsSaysHowTheyComeBack(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Upkept)
	purge := func(dataset string) {
		_, err := w.D.Upkeep.Purge(t.Context(), w.Caller, dataset, upkeep.PurgeRequest{From: dispatchertest.FirstDay,
			To: dispatchertest.FirstDay, Reason: "a mistake"}, time.Now())
		require.NoError(t, err)
	}

	purge("letters_made")
	reasons := w.WhyNot("letters_made", dispatchertest.FirstDay).Reasons
	require.Equal(t, []string{"purged"}, dispatchertest.CodesIn(reasons))
	require.Equal(t, "letters/made "+dispatchertest.FirstDay+": it was purged, and comes back when its inputs or its "+
		"definition change; at once: dagctl run letters/made --partition "+dispatchertest.FirstDay, reasons[0].Text)
	again := control.BackfillRequest{Job: "made", From: dispatchertest.FirstDay, To: dispatchertest.FirstDay,
		Existing: "all"} // what the command does
	require.Equal(t, "Completed", w.Follow(w.Backfill(again)).Status)
	require.Len(t, w.Read("letters_made"), 1)

	purge("letters/raw/0")
	reasons = w.WhyNot("letters/raw/0", dispatchertest.FirstDay).Reasons
	require.Equal(t, "letters/raw "+dispatchertest.FirstDay+": it was purged, and comes back when its source has "+
		"other content for it; at once: dagctl backfill letters/raw --from "+dispatchertest.FirstDay+" --to "+
		dispatchertest.FirstDay+" --existing all", reasons[0].Text)
	again.Job = "raw"
	require.Equal(t, "Completed", w.Follow(w.Backfill(again)).Status)
	require.Len(t, w.Read("letters/raw/0"), 1)
}
