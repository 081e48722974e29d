package dispatcher_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

func TestInvalidate(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	for day, content := range map[string]string{"2024-01-01": "a", "2024-01-02": "b", "2024-01-03": "c"} {
		w.Probe.Put("raw", day, content)
	}
	w.Serve(dispatchertest.Upkept)
	w.Serve(dispatchertest.WordsDAG)
	before := w.Read("words")
	require.Equal(t, 3, w.Attempts("made"))

	made, err := w.D.Invalidate(t.Context(), w.Caller, "letters/raw/0", dispatcher.InvalidateRequest{From: "2024-01-02",
		To: "2024-01-03", Reason: "correction"}, time.Now())
	require.NoError(t, err)
	require.Len(t, made, 2)
	require.Equal(t, int64(2), made[0].Revision)
	w.Settle()
	require.Equal(t, 3, w.Attempts("raw"), "the partitions themselves stay as they are")
	require.Equal(t, 5, w.Attempts("made"))
	require.Equal(t, 5, w.Attempts("spelled"), "it cascades, into other DAGs too")
	require.Equal(t, before, w.Read("words"))
	require.Equal(t, map[string]int64{"2024-01-01": 1, "2024-01-02": 2, "2024-01-03": 2}, w.Published("spelled"))
	require.Equal(t, 2, w.Count(`SELECT FROM event_outcomes c JOIN events e ON e.id = c.event_id
		JOIN data_invalidations i ON i.id = e.invalidation_id AND i.reason = 'correction' WHERE e.scope = 'invalidation'
		AND c.outcome = 'triggered'`))

	// The new revision shares the files of the one before, which gc takes into account.
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), time.Now()))
	w.Settle()
	require.Equal(t, 5, w.Attempts("made"), "once is enough")
	w.GC(time.Now().Add(dispatchertest.PastGrace))
	require.Empty(t, w.Lost())
	require.Equal(t, w.Named(), w.Files())
	require.Len(t, w.Read("letters_made"), 3)
	w.Probe.Put("raw", "2024-01-02", "d")
	w.Poll()
	w.Settle()
	w.GC(time.Now().Add(dispatchertest.PastGrace))
	require.Empty(t, w.Lost())
	require.Equal(t, w.Named(), w.Files())

	_, err = w.D.Invalidate(t.Context(), w.Caller, "letters_made", dispatcher.InvalidateRequest{From: "2025",
		To: "2026"}, time.Now())
	require.ErrorContains(t, err, "no such partition")
}

// The event may be lost: the recorded inputs of a revision are enough to find that it is stale.
func TestInvalidationWithoutItsEvent(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	_, err := w.D.Invalidate(t.Context(), w.Caller, "letters/raw/0", dispatcher.InvalidateRequest{}, time.Now())
	require.NoError(t, err)
	w.Exec(`DELETE FROM outbox`)
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), time.Now()))
	w.Settle()
	require.Equal(t, map[string]int64{"2024-01-01": 2}, w.Published("made"))
}

func TestInvalidateInTables(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.InTables)
	_, err := w.D.Invalidate(t.Context(), w.Caller, "letters_made", dispatcher.InvalidateRequest{From: "2024-01-01",
		To: "2024-01-01"}, time.Now())
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"2024-01-01": {"one(a)"}}, w.Read("letters_made"))
	require.Empty(t, w.Lost())
	w.GC(time.Now().Add(dispatchertest.PastGrace))
	require.Equal(t, map[string][]string{"2024-01-01": {"one(a)"}}, w.Read("letters_made"))
	w.Probe.Put("raw", "2024-01-01", "b")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"one(b)"}}, w.Read("letters_made"))
	require.Equal(t, map[string]int64{"2024-01-01": 3}, w.Published("made"))
}
