package dispatcher

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

const upkept = `
name: letters
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: raw }
  - name: made
    operator: hook
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { tag: m }
publish:
  letters_made: { from: { job: made } }
`

// tagged is upkept with another definition of its second job.
func tagged(tag string) string { return strings.ReplaceAll(upkept, "tag: m", "tag: "+tag) }

const (
	pastGrace  = time.Hour
	pastWindow = 8 * 24 * time.Hour
)

// gc collects at a time.
func (w *world) gc(now time.Time) Garbage {
	w.t.Helper()
	dry, err := w.d.CollectGarbage(w.t.Context(), w.caller, true, now)
	require.NoError(w.t, err)
	found, err := w.d.CollectGarbage(w.t.Context(), w.caller, false, now)
	require.NoError(w.t, err)
	require.Equal(w.t, dry.Generations, found.Generations, "what a dry run lists is what goes")
	require.Equal(w.t, dry.Revisions, found.Revisions)
	again, err := w.d.CollectGarbage(w.t.Context(), w.caller, false, now)
	require.NoError(w.t, err)
	require.Empty(w.t, again.Generations)
	require.Zero(w.t, again.Revisions)
	return found
}

// files are the data files on disk, without the folders of attempts that never became a revision.
func (w *world) files() (names []string) {
	w.t.Helper()
	require.NoError(w.t, filepath.WalkDir(w.data, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			names = append(names, strings.TrimPrefix(path, w.data+"/"))
		}
		return err
	}))
	return names
}

// named are the files that rows name.
func (w *world) named() []string {
	w.t.Helper()
	return texts(w.t, w.pool, `SELECT DISTINCT f ->> 'path' FROM partition_versions p, jsonb_array_elements(p.files) AS f
		WHERE jsonb_typeof(p.files) = 'array' ORDER BY 1`)
}

// purged tells which versions of a job's dataset were purged, by the tag of each row, oldest first.
func (w *world) purged(job string) (marks []bool) {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(), `
		SELECT g.purged_at IS NOT NULL FROM dataset_versions g JOIN jobs j ON j.id = g.origin_job_id WHERE j.name = $1 ORDER BY g.created_at`, job)
	require.NoError(w.t, err)
	marks, err = pgx.CollectRows(rows, pgx.RowTo[bool])
	require.NoError(w.t, err)
	return marks
}

func TestGCKeepsTheWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	one := w.serve(tagged("one"))
	w.serve(tagged("two"))
	now := time.Now()

	require.Empty(t, w.gc(now.Add(6*24*time.Hour)).Generations, "the window guarantees the version before")
	require.Equal(t, []bool{false, false}, w.purged("made"))
	_, err := w.d.Rollback(t.Context(), w.caller, "letters", RollbackRequest{})
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"2024-01-01": {"one(a)"}}, w.read("letters_made"))
	require.Empty(t, w.gc(now.Add(6*24*time.Hour)).Generations)
	_, err = w.d.Rollback(t.Context(), w.caller, "letters", RollbackRequest{})
	require.NoError(t, err)

	found := w.gc(time.Now().Add(pastWindow))
	require.Len(t, found.Generations, 1)
	require.Equal(t, w.generation(one.Version.ID, "made"), found.Generations[0].Version)
	require.Equal(t, []bool{true, false}, w.purged("made"), "the source's generation is the same in both versions")
	require.Equal(t, w.named(), w.files())
	require.Equal(t, map[string][]string{"2024-01-01": {"two(a)"}}, w.read("letters_made"))
	_, err = w.d.Rollback(t.Context(), w.caller, "letters", RollbackRequest{})
	require.ErrorContains(t, err, "were purged")
}

func TestGCKeepsWhatIsPinned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(tagged("one"))
	w.serve(tagged("two"))
	until := time.Now().Add(3 * pastWindow)
	_, err := w.d.Registry.Pin(t.Context(), w.caller, "letters", 1, &until, "quarterly figures")
	require.NoError(t, err)
	require.Empty(t, w.gc(time.Now().Add(2*pastWindow)).Generations)
	require.NoError(t, w.d.Registry.Unpin(t.Context(), w.caller, "letters", 1))
	require.ErrorContains(t, w.d.Registry.Unpin(t.Context(), w.caller, "letters", 1), "not pinned")
	_, err = w.d.Registry.Pin(t.Context(), w.caller, "letters", 1, &until, "quarterly figures")
	require.NoError(t, err)
	require.Len(t, w.gc(until.Add(time.Second)).Generations, 1, "a pin that ran out holds nothing")
	_, err = w.d.Registry.Pin(t.Context(), w.caller, "letters", 1, nil, "too late")
	require.ErrorContains(t, err, "purged")
	require.Equal(t, 3, w.count(`SELECT FROM audit_log WHERE action IN ('dag.pin', 'dag.unpin')`))
}

func TestGCKeepsWhatAQueryReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	one := w.serve(tagged("one"))
	held := w.generation(one.Version.ID, "made")
	w.serve(tagged("two"))
	now := time.Now()
	var hold uuid.UUID
	inOrg := func(f func(ctx context.Context, tx pgx.Tx) error) {
		require.NoError(t, pg.InOrgTx(t.Context(), w.asked, w.caller.OrgID, f))
	}
	inOrg(func(ctx context.Context, tx pgx.Tx) (err error) {
		hold, err = registry.HoldForRead(ctx, tx, w.caller.OrgID, []uuid.UUID{held, held}, "query:1", now, 2*pastWindow)
		return err
	})
	require.Empty(t, w.gc(now.Add(pastWindow)).Generations)
	inOrg(func(ctx context.Context, tx pgx.Tx) error { return registry.ReleaseRead(ctx, tx, w.caller.OrgID, hold) })
	require.Len(t, w.gc(now.Add(pastWindow)).Generations, 1)
}

// A build that is going on, one that failed, and one that was abandoned keep what they built for as long as a window.
func TestGCKeepsBuilds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(tagged("one"))
	w.deploy(tagged("two"), func(r *registry.DeployRequest) { r.Activate = new(bool) })
	w.settle()
	require.Len(t, w.purged("made"), 2)
	require.Empty(t, w.gc(time.Now().Add(3*pastWindow)).Generations, "a version that is ready is on its way")
	_, err := w.d.Abandon(t.Context(), w.caller, "letters")
	require.NoError(t, err)
	require.Empty(t, w.gc(time.Now().Add(6*24*time.Hour)).Generations)
	require.Len(t, w.gc(time.Now().Add(pastWindow)).Generations, 1)
}

// What a running task has pinned stays, however long ago it was replaced; the same for one whose lease ran out, because its
// completion may still come.
func TestGCKeepsWhatTasksRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(upkept)
	w.probe.put("raw", "2024-01-01", "b")
	w.poll()
	w.work() // the source's
	w.route()
	reader := w.one(w.d) // of b
	w.probe.put("raw", "2024-01-01", "c")
	w.poll()
	w.d.execute(t.Context(), w.one(w.d)) // c replaces b
	require.Equal(t, 1, w.gc(time.Now().Add(pastGrace)).Revisions, "only the first, which nobody reads any more")
	require.Equal(t, 2, w.count(`SELECT FROM partition_versions p JOIN dataset_versions g ON g.id = p.dataset_version
		JOIN jobs j ON j.id = g.origin_job_id WHERE j.name = 'raw'`))

	w.reap(time.Now().Add(time.Minute))
	require.Contains(t, w.task(reader.TaskID), "lease_expired")
	require.Zero(t, w.gc(time.Now().Add(pastGrace)).Revisions)
	require.NoError(t, w.d.complete(t.Context(), reader, w.do(w.d, reader), time.Now()))
	w.settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"m(c)"}}, w.read("letters_made"))
	require.Positive(t, w.gc(time.Now().Add(pastGrace)).Revisions)
	require.Equal(t, w.named(), w.files())
	require.Zero(t, w.count(`SELECT FROM partition_versions WHERE state = 'Replaced'`))
}

// Whoever resolved a revision just before it was replaced has the grace to read it.
func TestGCReaderGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, content := range []string{"a", "b", "c"} {
		w.probe.put("raw", "2024-01-01", content)
		if content == "a" {
			w.serve(upkept)
		}
		w.poll()
		w.settle()
	}
	require.Zero(t, w.gc(time.Now().Add(14*time.Minute)).Revisions)
	found := w.gc(time.Now().Add(16 * time.Minute))
	require.Equal(t, 4, found.Revisions)
	require.Positive(t, found.RevisionBytes)
	require.Equal(t, w.named(), w.files())
	require.Equal(t, map[string]int64{"2024-01-01": 3}, w.published("made"), "revisions are never numbered anew")
	w.probe.put("raw", "2024-01-01", "d")
	w.poll()
	w.settle()
	require.Equal(t, map[string]int64{"2024-01-01": 4}, w.published("made"))
}

const appending = `
name: letters
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: raw }
  - name: log
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerUpdate
    update_strategy: append
    unique_key: [content]
    config: { query: "SELECT content FROM raw" }
publish:
  log: { from: { job: log } }
`

// An appended revision shares the files of those before it: they stay as long as one that is kept names them, and what was
// read once is not read again.
func TestGCOfAppendedRevisions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var all []string
	for day := 1; day <= 4; day++ {
		content := fmt.Sprintf("day %d", day)
		all = append(all, content)
		w.probe.put("raw", fmt.Sprintf("2024-01-%02d", day), content)
		if day == 1 {
			w.serve(appending)
		}
		w.poll()
		w.settle()
	}
	require.Equal(t, map[string][]string{"all": all}, w.read("log"))
	attempts := w.attempts("log")
	require.Zero(t, w.gc(time.Now().Add(pastGrace)).Revisions, "the last revision names the files of all of them")
	require.Equal(t, map[string][]string{"all": all}, w.read("log"))

	w.probe.put("raw", "2024-01-05", "day 1") // a key that is there: everything is rewritten as one file
	w.poll()
	w.settle()
	require.Equal(t, 4, w.gc(time.Now().Add(pastGrace)).Revisions)
	require.Equal(t, w.named(), w.files())
	slices.Sort(all)
	require.Equal(t, map[string][]string{"all": all}, w.read("log"))
	require.NoError(t, w.d.Reconcile(t.Context(), time.Now()))
	w.settle()
	require.Equal(t, attempts+1, w.attempts("log"), "it is still known what was read")
}

// A crash between marking and removing leaves the marks; whoever collects next goes by them.
func TestGCAfterACrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(tagged("one"))
	w.probe.put("raw", "2024-01-01", "b")
	w.poll()
	w.settle()
	w.serve(tagged("two"))
	before := w.files()
	later := time.Now().Add(pastWindow)
	var found Garbage
	require.NoError(t, w.d.markGarbage(t.Context(), w.caller.OrgID, &found, later))
	require.Len(t, found.Generations, 1)
	require.Equal(t, 1, found.Revisions)
	require.Equal(t, before, w.files())
	require.Equal(t, map[string][]string{"2024-01-01": {"two(b)"}}, w.read("letters_made"))

	// And another between removing bytes and rows.
	locations := texts(t, w.pool, `SELECT location FROM partition_versions WHERE purged_at IS NOT NULL`)
	require.NotEmpty(t, locations)
	require.NoError(t, w.storage.Discard(t.Context(), locations[0]))

	again, err := w.d.CollectGarbage(t.Context(), w.caller, false, later)
	require.NoError(t, err)
	require.Empty(t, again.Generations, "they were marked before")
	require.Equal(t, w.named(), w.files())
	require.Less(t, len(w.files()), len(before))
	require.Equal(t, 1, w.count(`SELECT FROM dataset_versions WHERE cleared_at IS NOT NULL`))
	require.Equal(t, map[string][]string{"2024-01-01": {"two(b)"}}, w.read("letters_made"))
}

// What an attempt left behind goes by its record, once its completion cannot come any more.
func TestGCOfStaging(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.deploy(upkept)
	w.advance()
	lost := w.one(w.d)
	w.do(w.d, lost) // sealed, and never reported
	require.Len(t, w.files(), 1)
	w.reap(time.Now().Add(time.Minute))
	require.Zero(t, w.gc(time.Now().Add(pastWindow)).Staging, "a late completion still counts")
	w.promote(time.Now().Add(2 * time.Hour))
	w.settle()
	require.Len(t, w.files(), 3)
	require.Equal(t, 1, w.gc(time.Now().Add(pastWindow)).Staging)
	require.Equal(t, w.named(), w.files())
	require.Zero(t, w.gc(time.Now().Add(pastWindow)).Staging)
}

// So does what an attempt wrote that ended well and published nothing; of one that published all there is no record.
func TestGCOfWhatWasNotPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.deploy(upkept)
	w.advance()
	first := w.one(w.d)
	done := w.do(w.d, first)
	require.Zero(t, w.count(`SELECT FROM task_attempts`))
	done.outcome.Unchanged = true // it says so after all
	require.NoError(t, w.d.complete(t.Context(), first, done, later(0)))
	require.Equal(t, []string{"1 Completed 1"}, texts(t, w.pool, `SELECT concat_ws(' ', attempt, outcome, cardinality(staging)) FROM task_attempts`))
	w.settle()
	require.Equal(t, 1, w.count(`SELECT FROM task_attempts`))
	require.Equal(t, 1, w.gc(time.Now().Add(pastWindow)).Staging)
	require.Empty(t, w.files())
}

// A generation that was purged is never found again: deploying its document once more builds it anew, under a raised epoch.
func TestPurgedGenerationIsWantedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	one := w.serve(tagged("one"))
	w.serve(tagged("two"))
	require.Len(t, w.gc(time.Now().Add(pastWindow)).Generations, 1)

	third := w.serve(tagged("one"))
	require.True(t, third.Created)
	require.Equal(t, 3, third.Version.Number)
	require.NotEqual(t, one.Version.Hash, third.Version.Hash)
	require.NotEqual(t, w.generation(one.Version.ID, "made"), w.generation(third.Version.ID, "made"))
	require.Equal(t, w.generation(one.Version.ID, "raw"), w.generation(third.Version.ID, "raw"))
	require.Equal(t, map[string][]string{"2024-01-01": {"one(a)"}}, w.read("letters_made"))
	again := w.deploy(tagged("one"))
	require.False(t, again.Created, "the epoch is part of the version")
	require.Equal(t, third.Version.ID, again.Version.ID)
}

// A completion that comes after its generation was purged commits nothing.
func TestCompletionIntoAPurgedGeneration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(tagged("one"))
	w.probe.on("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{}, w.probe.write(ctx, task, "late")
	})
	w.probe.put("raw", "2024-01-01", "b")
	w.poll()
	w.work()
	w.exec(`UPDATE dataset_versions SET purged_at = now() WHERE id IN (SELECT p.dataset_version FROM dag_version_datasets p WHERE p.job_name = 'made')`)
	w.route()
	late := w.one(w.d)
	require.ErrorContains(t, w.d.complete(t.Context(), late, w.do(w.d, late), time.Now()), "was purged")
}

const inTables = `
name: letters
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: raw }
  - name: made
    operator: hook
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    storage: postgres
    config: { tag: one }
publish:
  letters_made: { from: { job: made } }
`

// In Postgres storage a generation is a table that a view reads: the view is narrowed, and never stops showing what serves.
func TestGCOfTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(inTables)
	w.serve(strings.ReplaceAll(inTables, "tag: one", "tag: two"))
	tables := `SELECT FROM pg_class WHERE relname LIKE '\_g\_%' AND relkind = 'r'`
	require.Equal(t, 2, w.count(tables))
	require.Len(t, w.gc(time.Now().Add(pastWindow)).Generations, 1)
	require.Equal(t, 1, w.count(tables))
	require.Equal(t, []string{"two(a)"}, texts(t, w.pool, `SELECT content FROM data_acme.letters_made`))
	require.Equal(t, map[string][]string{"2024-01-01": {"two(a)"}}, w.read("letters_made"))
}

func TestGCSeesOneOrg(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := w.org("umbrella")
	w.probe.put("raw", "2024-01-01", "a")
	for _, tn := range []*tenant{w.tenant, other} {
		tn.serve(tagged("one"))
		tn.serve(tagged("two"))
	}
	require.Len(t, w.gc(time.Now().Add(pastWindow)).Generations, 1)
	require.Equal(t, 1, w.count(`SELECT FROM dataset_versions WHERE purged_at IS NOT NULL`))
	require.NoError(t, w.d.collectAll(t.Context(), time.Now().Add(pastWindow)))
	require.Equal(t, 2, w.count(`SELECT FROM dataset_versions WHERE cleared_at IS NOT NULL`))
	require.Equal(t, w.named(), w.files())
}
