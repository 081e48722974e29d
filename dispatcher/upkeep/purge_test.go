package upkeep_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

func purge(w *dispatchertest.World, name string, req upkeep.PurgeRequest) (upkeep.Purged, error) {
	w.T.Helper()
	req.Reason = "erasure request 17"
	return w.D.Upkeep.Purge(w.T.Context(), w.Caller, name, req, time.Now())
}

// purgedKeys lists the purged partitions as "dataset partition", with a star if the dataset version is live.
func purgedKeys(p upkeep.Purged) (keys []string) {
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
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Serve(dispatchertest.Tagged("one"))
	w.Serve(dispatchertest.Tagged("two"))
	w.Serve(dispatchertest.WordsDAG)
	require.Len(t, w.Read("words"), 2)

	first := upkeep.PurgeRequest{From: "2024-01-01", To: "2024-01-01", Downstream: true}
	_, err := purge(w, "letters/raw/0", first)
	require.ErrorContains(t, err, "a rollback to letters v1 needs the data that would be purged")
	first.BreakWindow = true
	dry := first
	dry.DryRun = true
	plan, err := purge(w, "letters/raw/0", dry)
	require.NoError(t, err)
	require.Len(t, w.Read("letters_made"), 2, "a dry run deletes nothing")
	require.Equal(t, []registry.PurgedReader{{Dataset: "letters_made", Job: "words/spelled"}}, plan.Readers)
	done, err := purge(w, "letters/raw/0", first)
	require.NoError(t, err)
	require.Equal(t, []string{"*letters/raw/0 2024-01-01", "letters_made 2024-01-01", "*letters_made 2024-01-01",
		"*words 2024-01-01"}, purgedKeys(done))
	require.Equal(t, plan.Tasks, done.Tasks)

	require.Equal(t, map[string][]string{"2024-01-02": {"two(b)"}}, w.Read("letters_made"))
	require.Equal(t, map[string][]string{"2024-01-02": {"w(two(b))"}}, w.Read("words"))
	require.Equal(t, w.Named(), w.Files(), "the bytes are gone")
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE partitions[1] = '2024-01-01' AND (outputs IS NOT NULL
		OR payload IS NOT NULL OR error_message IS NOT NULL)`))
	require.Equal(t, 1, w.Count(`SELECT FROM audit_log WHERE action = 'dataset.purge'
		AND detail ->> 'reason' = 'erasure request 17'`))
	history, err := deploy.New(w.D.Registry).History(t.Context(), w.Caller, "letters", 0, 10)
	require.NoError(t, err)
	require.Equal(t, []any{2, false, 1, false}, []any{history[0].Number, history[0].Purged,
		history[1].Number, history[1].Purged}, "the other partition of each is still there")
	require.NotNil(t, history[1].InstantUntil)

	// It does not come back by itself: not by a sweep, and not because the source still has it.
	w.Poll()
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), time.Now()))
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-02": {"two(b)"}}, w.Read("letters_made"))
	_, err = purge(w, "letters/raw/0", first)
	require.ErrorContains(t, err, "no such partition")

	// Once the source has other content, it does, under a revision number that was never used.
	w.Probe.Put("raw", "2024-01-01", "mended")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"two(mended)"}, "2024-01-02": {"two(b)"}},
		w.Read("letters_made"))
	require.Equal(t, map[string]int64{"2024-01-01": 2, "2024-01-02": 1}, w.Published("made"))
	require.Equal(t, map[string][]string{"2024-01-01": {"w(two(mended))"}, "2024-01-02": {"w(two(b))"}},
		w.Read("words"))
}

func TestPurgeOfAll(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Tagged("one"))
	w.Serve(dispatchertest.Tagged("two"))
	_, err := w.D.Registry.Pin(t.Context(), w.Caller, "letters", 1, nil, "kept")
	require.NoError(t, err)
	_, err = purge(w, "letters_made", upkeep.PurgeRequest{})
	require.ErrorContains(t, err, "letters v1")
	_, err = purge(w, "letters_made", upkeep.PurgeRequest{BreakWindow: true})
	require.NoError(t, err)
	require.Empty(t, w.Read("letters_made"))
	require.Equal(t, w.Named(), w.Files())
	require.Len(t, w.Files(), 1, "the source's")
	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{AllowRemovals: true})
	require.ErrorContains(t, err, "purged", "nobody rolls back to a dataset of which nothing is left")
	history, err := deploy.New(w.D.Registry).History(t.Context(), w.Caller, "letters", 0, 10)
	require.NoError(t, err)
	require.True(t, history[1].Purged)
	require.Nil(t, history[1].InstantUntil, "and the history promises nothing else")

	// When a purged generation is needed again, a new generation has all of its data.
	third := w.Serve(dispatchertest.Tagged("one"))
	require.True(t, third.Created)
	require.Equal(t, map[string][]string{"2024-01-01": {"one(a)"}}, w.Read("letters_made"))
}

func TestPurgeInTables(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Serve(dispatchertest.InTables)
	_, err := purge(w, "letters_made", upkeep.PurgeRequest{From: "2024-01-01", To: "2024-01-01"})
	require.NoError(t, err)
	require.Equal(t, []string{"one(b)"}, dispatchertest.Texts(t, w.Pool, `SELECT content FROM data_acme.letters_made`))
	w.Probe.Put("raw", "2024-01-01", "c")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"one(b)", "one(c)"}, dispatchertest.Texts(t, w.Pool, `SELECT content
		FROM data_acme.letters_made ORDER BY 1`))
	require.NoError(t, w.D.Upkeep.RemoveMarked(t.Context(), w.Caller.OrgID, time.Now()))
	require.Equal(t, map[string][]string{"2024-01-01": {"one(c)"}, "2024-01-02": {"one(b)"}}, w.Read("letters_made"))
}

// A purge also deletes the payloads, results and errors of tasks, and the files that their attempts left.
// A purge that takes effect says so, also while somebody holds a view that a table of an older version is to leave.
func TestPurgeBesideAReaderOfTheView(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Serve(dispatchertest.InTables)
	w.Serve(dispatchertest.Edit(dispatchertest.InTables, "tag: one", "tag: two"))
	tables := func() int {
		return w.Count(`SELECT FROM pg_tables WHERE schemaname = 'data_acme' AND tablename LIKE '\_g\_%'`)
	}
	before := tables()

	reader, err := w.Pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = reader.Exec(t.Context(), `SELECT FROM data_acme.letters_made`)
	require.NoError(t, err)
	done, err := purge(w, "letters_made", upkeep.PurgeRequest{BreakWindow: true})
	require.NoError(t, err)
	require.Len(t, done.Partitions, 4)
	require.Contains(t, done.Left, "view data_acme.letters_made is locked by")
	require.Empty(t, w.Read("letters_made"))
	require.Equal(t, before, tables())
	_, err = purge(w, "letters_made", upkeep.PurgeRequest{BreakWindow: true})
	require.ErrorContains(t, err, "bytes of 2 partitions, purged before, are still there")
	_, err = purge(w, "letters_made", upkeep.PurgeRequest{From: "2024-01-02", To: "2024-01-09", BreakWindow: true})
	require.ErrorContains(t, err, "bytes of 1 partition, purged before, are still there")

	require.NoError(t, reader.Rollback(t.Context()))
	require.NoError(t, w.D.Upkeep.RemoveMarked(t.Context(), w.Caller.OrgID, time.Now()))
	_, err = purge(w, "letters_made", upkeep.PurgeRequest{BreakWindow: true})
	require.ErrorContains(t, err, "there is no such partition")
	require.NotContains(t, err.Error(), "purged before")
	require.Equal(t, before-1, tables(), "gc goes on")
}

func TestPurgeOfTasks(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(`
name: notes
jobs:
  - name: note
    operator: hook
    source: { kind: manual }
publish:
  notes: { from: { job: note } }
`)
	w.Probe.On("note", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{Result: json.RawMessage(`{"name": "Ada"}`)}, w.Probe.Write(ctx, task, "Ada")
	})
	made, err := w.D.Enqueue(t.Context(), w.Caller, "notes", "note",
		[]dispatcher.EnqueueItem{{Payload: json.RawMessage(`{"name": "Ada"}`)}})
	require.NoError(t, err)
	running := w.One(w.D)
	_, err = purge(w, "notes", upkeep.PurgeRequest{})
	require.ErrorContains(t, err, "no such partition")
	require.NoError(t, w.D.CompleteAttempt(t.Context(), running, w.Do(w.D, running), time.Now()))

	second, err := w.D.Enqueue(t.Context(), w.Caller, "notes", "note",
		[]dispatcher.EnqueueItem{{Payload: json.RawMessage(`{"name": "Ada"}`)}})
	require.NoError(t, err)
	busy := w.One(w.D)
	_, err = purge(w, "notes", upkeep.PurgeRequest{})
	require.ErrorContains(t, err, "a task is at work")
	require.NoError(t, w.D.CompleteAttempt(t.Context(), busy, w.Do(w.D, busy), time.Now()))

	purged, err := purge(w, "notes", upkeep.PurgeRequest{})
	require.NoError(t, err)
	require.Equal(t, 2, purged.Tasks)
	for _, id := range []uuid.UUID{made[0].ID, second[0].ID} {
		task, err := w.D.Views.Task(t.Context(), w.Caller, id)
		require.NoError(t, err)
		text, err := json.Marshal(task)
		require.NoError(t, err)
		require.NotContains(t, string(text), "Ada")
	}
	require.Empty(t, w.Files())
}

// What was made of a purged partition and others is made again of the others, also where they alone had been read
// before. Nothing blames the task that read them then.
func TestPurgeOfTheNewestPartition(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Letters)
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"all": {"AB"}}, w.Read("letters_joined"))

	_, err := purge(w, "letters_upper", upkeep.PurgeRequest{From: "2024-01-02", To: "2024-01-02", BreakWindow: true})
	require.NoError(t, err)
	require.NotContains(t, dispatchertest.CodesIn(w.WhyNot("letters_joined", "all").Reasons), "unchanged")
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), time.Now()))
	w.Settle()
	require.Equal(t, map[string][]string{"all": {"A"}}, w.Read("letters_joined"))
	require.Equal(t, []string{"published", "up_to_date"},
		dispatchertest.CodesIn(w.WhyNot("letters_joined", "all").Reasons))
}

// From one range to another are those between them by number: 1000-1100 does not lie between 100-200 and 200-300.
func TestPurgeFromRangeToRange(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.On("parts", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{}, w.Probe.Write(ctx, task, task.Partition.Key)
	})
	w.Serve(`
name: mail
jobs:
  - name: parts
    operator: hook
    source: { kind: manual }
    partition_by: { range: 100, column: id }
publish: { parts: { from: { job: parts } } }
`)
	for _, key := range []string{"0-100", "100-200", "200-300", "1000-1100"} {
		w.Enqueue("parts", dispatcher.EnqueueItem{Partition: key})
	}
	w.Settle()

	made, err := w.D.Invalidate(t.Context(), w.Caller, "parts",
		dispatcher.InvalidateRequest{From: "100-200", To: "1000-1100", DryRun: true}, time.Now())
	require.NoError(t, err)
	require.Len(t, made, 3)
	_, err = purge(w, "parts", upkeep.PurgeRequest{From: "1000-1100", To: "200-300", BreakWindow: true})
	require.ErrorContains(t, err, "comes after the last one")
	done, err := purge(w, "parts", upkeep.PurgeRequest{From: "100-200", To: "200-300", BreakWindow: true})
	require.NoError(t, err)
	require.Equal(t, []string{"*parts 100-200", "*parts 200-300"}, purgedKeys(done))
	require.Equal(t, map[string][]string{"0-100": {"0-100"}, "1000-1100": {"1000-1100"}}, w.Read("parts"))
}
