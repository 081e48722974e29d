package dispatcher

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestInvalidate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for day, content := range map[string]string{"2024-01-01": "a", "2024-01-02": "b", "2024-01-03": "c"} {
		w.probe.put("raw", day, content)
	}
	w.serve(upkept)
	w.serve(wordsDAG)
	before := w.read("words")
	require.Equal(t, 3, w.attempts("made"))

	made, err := w.d.Invalidate(t.Context(), w.caller, "letters/raw/0", InvalidateRequest{From: "2024-01-02", To: "2024-01-03", Reason: "correction"}, time.Now())
	require.NoError(t, err)
	require.Len(t, made, 2)
	require.Equal(t, int64(2), made[0].Revision)
	w.settle()
	require.Equal(t, 3, w.attempts("raw"), "the partitions themselves stay as they are")
	require.Equal(t, 5, w.attempts("made"))
	require.Equal(t, 5, w.attempts("spelled"), "it cascades, into other DAGs too")
	require.Equal(t, before, w.read("words"))
	require.Equal(t, map[string]int64{"2024-01-01": 1, "2024-01-02": 2, "2024-01-03": 2}, w.published("spelled"))
	require.Equal(t, 2, w.count(`SELECT FROM event_outcomes c JOIN events e ON e.id = c.event_id
		JOIN data_invalidations i ON i.id = e.invalidation_id AND i.reason = 'correction' WHERE e.scope = 'invalidation' AND c.outcome = 'triggered'`))

	// The new revision has the files of the one before: gc knows.
	require.NoError(t, w.d.Reconcile(t.Context(), time.Now()))
	w.settle()
	require.Equal(t, 5, w.attempts("made"), "once is enough")
	w.gc(time.Now().Add(pastGrace))
	require.Empty(t, w.lost())
	require.Equal(t, w.named(), w.files())
	require.Len(t, w.read("letters_made"), 3)
	w.probe.put("raw", "2024-01-02", "d")
	w.poll()
	w.settle()
	w.gc(time.Now().Add(pastGrace))
	require.Empty(t, w.lost())
	require.Equal(t, w.named(), w.files())

	_, err = w.d.Invalidate(t.Context(), w.caller, "letters_made", InvalidateRequest{From: "2025", To: "2026"}, time.Now())
	require.ErrorContains(t, err, "no such partition")
}

// The event may be lost: what something was made from tells.
func TestInvalidationWithoutItsEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(upkept)
	_, err := w.d.Invalidate(t.Context(), w.caller, "letters/raw/0", InvalidateRequest{}, time.Now())
	require.NoError(t, err)
	w.exec(`DELETE FROM outbox`)
	require.NoError(t, w.d.Reconcile(t.Context(), time.Now()))
	w.settle()
	require.Equal(t, map[string]int64{"2024-01-01": 2}, w.published("made"))
}

func TestInvalidateInTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(inTables)
	_, err := w.d.Invalidate(t.Context(), w.caller, "letters_made", InvalidateRequest{From: "2024-01-01", To: "2024-01-01"}, time.Now())
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"2024-01-01": {"one(a)"}}, w.read("letters_made"))
	require.Empty(t, w.lost())
	w.gc(time.Now().Add(pastGrace))
	require.Equal(t, map[string][]string{"2024-01-01": {"one(a)"}}, w.read("letters_made"))
	w.probe.put("raw", "2024-01-01", "b")
	w.poll()
	w.settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"one(b)"}}, w.read("letters_made"))
	require.Equal(t, map[string]int64{"2024-01-01": 3}, w.published("made"))
}
