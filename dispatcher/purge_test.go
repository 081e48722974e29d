package dispatcher

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators"
)

func (w *world) purge(name string, req PurgeRequest) (Purged, error) {
	w.t.Helper()
	req.Reason = "erasure request 17"
	return w.d.Purge(w.t.Context(), w.caller, name, req, time.Now())
}

// purgedKeys tells what was purged as "dataset partition", live dataset versions with a star.
func purgedKeys(p Purged) (keys []string) {
	for _, gone := range p.Partitions {
		mark := ""
		if gone.Live {
			mark = "*"
		}
		keys = append(keys, mark+gone.Dataset+" "+gone.Key)
	}
	return keys
}

func TestPurge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.probe.put("raw", "2024-01-02", "b")
	w.serve(tagged("one"))
	w.serve(tagged("two"))
	w.serve(wordsDAG)
	require.Len(t, w.read("words"), 2)

	first := PurgeRequest{From: "2024-01-01", To: "2024-01-01", Downstream: true}
	_, err := w.purge("letters/raw/0", first)
	require.ErrorContains(t, err, "rolling back to letters v1 would not be possible")
	first.BreakWindow = true
	dry := first
	dry.DryRun = true
	plan, err := w.purge("letters/raw/0", dry)
	require.NoError(t, err)
	require.Len(t, w.read("letters_made"), 2, "a dry run deletes nothing")
	done, err := w.purge("letters/raw/0", first)
	require.NoError(t, err)
	require.Equal(t, []string{"*letters/raw/0 2024-01-01", "letters_made 2024-01-01", "*letters_made 2024-01-01", "*words 2024-01-01"}, purgedKeys(done))
	require.Equal(t, plan.Tasks, done.Tasks)

	require.Equal(t, map[string][]string{"2024-01-02": {"two(b)"}}, w.read("letters_made"))
	require.Equal(t, map[string][]string{"2024-01-02": {"w(two(b))"}}, w.read("words"))
	require.Equal(t, w.named(), w.files(), "the bytes are gone")
	require.Zero(t, w.count(`SELECT FROM tasks WHERE partitions[1] = '2024-01-01' AND (outputs IS NOT NULL OR payload IS NOT NULL OR error_message IS NOT NULL)`))
	require.Equal(t, 1, w.count(`SELECT FROM audit_log WHERE action = 'dataset.purge' AND detail ->> 'reason' = 'erasure request 17'`))
	_, err = w.d.Rollback(t.Context(), w.caller, "letters", RollbackRequest{})
	require.ErrorContains(t, err, "purged", "nobody rolls back to what is gone")

	// It does not come back by itself: not by a sweep, not because the source has it still.
	w.poll()
	require.NoError(t, w.d.Reconcile(t.Context(), time.Now()))
	w.settle()
	require.Equal(t, map[string][]string{"2024-01-02": {"two(b)"}}, w.read("letters_made"))
	_, err = w.purge("letters/raw/0", first)
	require.ErrorContains(t, err, "no such partition")

	// Once the source has something else, it does; under a number that was never given.
	w.probe.put("raw", "2024-01-01", "mended")
	w.poll()
	w.settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"two(mended)"}, "2024-01-02": {"two(b)"}}, w.read("letters_made"))
	require.Equal(t, map[string]int64{"2024-01-01": 2, "2024-01-02": 1}, w.published("made"))
	require.Equal(t, map[string][]string{"2024-01-01": {"w(two(mended))"}, "2024-01-02": {"w(two(b))"}}, w.read("words"))
}

func TestPurgeOfAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(tagged("one"))
	w.serve(tagged("two"))
	_, err := w.d.Registry.Pin(t.Context(), w.caller, "letters", 1, nil, "kept")
	require.NoError(t, err)
	_, err = w.purge("letters_made", PurgeRequest{})
	require.ErrorContains(t, err, "letters v1")
	_, err = w.purge("letters_made", PurgeRequest{BreakWindow: true})
	require.NoError(t, err)
	require.Empty(t, w.read("letters_made"))
	require.Equal(t, w.named(), w.files())
	require.Len(t, w.files(), 1, "the source's")

	// Purged, then wanted again: a new generation has it all.
	third := w.serve(tagged("one"))
	require.True(t, third.Created)
	require.Equal(t, map[string][]string{"2024-01-01": {"one(a)"}}, w.read("letters_made"))
}

func TestPurgeInTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.probe.put("raw", "2024-01-02", "b")
	w.serve(inTables)
	_, err := w.purge("letters_made", PurgeRequest{From: "2024-01-01", To: "2024-01-01"})
	require.NoError(t, err)
	require.Equal(t, []string{"one(b)"}, texts(t, w.pool, `SELECT content FROM data_acme.letters_made`))
	w.probe.put("raw", "2024-01-01", "c")
	w.poll()
	w.settle()
	require.Equal(t, []string{"one(b)", "one(c)"}, texts(t, w.pool, `SELECT content FROM data_acme.letters_made ORDER BY 1`))
	require.NoError(t, w.d.removeMarked(t.Context(), w.caller.OrgID, time.Now()))
	require.Equal(t, map[string][]string{"2024-01-01": {"one(c)"}, "2024-01-02": {"one(b)"}}, w.read("letters_made"))
}

// What a task was given, returned and failed with goes too, and what its attempts left.
func TestPurgeOfTasks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(`
name: notes
jobs:
  - name: note
    operator: hook
    source: { kind: manual }
publish:
  notes: { from: { job: note } }
`)
	w.probe.on("note", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{Result: json.RawMessage(`{"name": "Ada"}`)}, w.probe.write(ctx, task, "Ada")
	})
	made, err := w.d.Enqueue(t.Context(), w.caller, "notes", "note", []EnqueueItem{{Payload: json.RawMessage(`{"name": "Ada"}`)}})
	require.NoError(t, err)
	running := w.one(w.d)
	_, err = w.purge("notes", PurgeRequest{})
	require.ErrorContains(t, err, "no such partition")
	require.NoError(t, w.d.complete(t.Context(), running, w.do(w.d, running), time.Now()))

	second, err := w.d.Enqueue(t.Context(), w.caller, "notes", "note", []EnqueueItem{{Payload: json.RawMessage(`{"name": "Ada"}`)}})
	require.NoError(t, err)
	busy := w.one(w.d)
	_, err = w.purge("notes", PurgeRequest{})
	require.ErrorContains(t, err, "a task is at work")
	require.NoError(t, w.d.complete(t.Context(), busy, w.do(w.d, busy), time.Now()))

	purged, err := w.purge("notes", PurgeRequest{})
	require.NoError(t, err)
	require.Equal(t, 2, purged.Tasks)
	for _, id := range []uuid.UUID{made[0].ID, second[0].ID} {
		task, err := w.d.Task(t.Context(), w.caller, id)
		require.NoError(t, err)
		text, err := json.Marshal(task)
		require.NoError(t, err)
		require.NotContains(t, string(text), "Ada")
	}
	require.Empty(t, w.files())
}
