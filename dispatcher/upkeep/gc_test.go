package upkeep_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// purged returns the purged versions of a job's dataset by the tag of each row, oldest first.
func purged(w *dispatchertest.World, job string) (marks []bool) {
	w.T.Helper()
	rows, err := w.Pool.Query(w.T.Context(), `
		SELECT g.purged_at IS NOT NULL FROM dataset_versions g JOIN jobs j ON j.id = g.origin_job_id WHERE j.name = $1
		ORDER BY g.created_at`, job)
	require.NoError(w.T, err)
	marks, err = pgx.CollectRows(rows, pgx.RowTo[bool])
	require.NoError(w.T, err)
	return marks
}

func TestGCKeepsTheWindow(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	one := w.Serve(dispatchertest.Tagged("one"))
	w.Serve(dispatchertest.Tagged("two"))
	now := time.Now()

	require.Empty(t, w.GC(now.Add(6*24*time.Hour)).Generations, "the window guarantees the version before")
	require.Equal(t, []bool{false, false}, purged(w, "made"))
	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{})
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"2024-01-01": {"one(a)"}}, w.Read("letters_made"))
	require.Empty(t, w.GC(now.Add(6*24*time.Hour)).Generations)
	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{})
	require.NoError(t, err)

	found := w.GC(time.Now().Add(dispatchertest.PastWindow))
	require.Len(t, found.Generations, 1)
	require.Equal(t, w.Generation(one.Version.ID, "made"), found.Generations[0].Version)
	require.Equal(t, []bool{true, false}, purged(w, "made"), "the source's generation is the same in both versions")
	require.Equal(t, w.Named(), w.Files())
	require.Equal(t, map[string][]string{"2024-01-01": {"two(a)"}}, w.Read("letters_made"))
	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{})
	require.ErrorContains(t, err, "cannot serve again: ")
}

// A dry run counts the replaced revisions of a generation that goes as a whole with the generation, as the run does.
func TestADryRunOfGCCountsRevisionsOnce(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	for _, content := range []string{"b", "c"} {
		w.Probe.Put("raw", dispatchertest.FirstDay, content)
		w.Poll()
		w.Settle()
	}
	w.Serve(dispatchertest.Edit(dispatchertest.Pair, "tag: m", "tag: n"))
	w.Serve(dispatchertest.Edit(dispatchertest.Pair, "tag: m", "tag: o"))
	found := w.GC(dispatchertest.Later(2 * dispatchertest.PastWindow)) // it compares the two
	require.NotEmpty(t, found.Generations)
	require.Equal(t, 2, found.Revisions, "those of the source")
}

// What only a generation that goes still needed goes with it: here the input of a revision that was rejected.
func TestOneGCFindsAll(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	next := func(content string) {
		w.Probe.Put("raw", dispatchertest.FirstDay, content)
		w.Poll()
		w.Settle()
	}
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Checked)
	next("toolong")
	w.Serve(dispatchertest.Edit(dispatchertest.Checked, "length(content)", "0 * length(content)"))
	next("b")
	found := w.GC(dispatchertest.Later(2 * dispatchertest.PastWindow)) // it collects once more
	require.Len(t, found.Generations, 2)
	require.Equal(t, 4, found.Revisions, "a and toolong of raw, and what was made of the latter")
	require.Equal(t, w.Named(), w.Files())
}

func TestGCKeepsWhatIsPinned(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Tagged("one"))
	w.Serve(dispatchertest.Tagged("two"))
	until := time.Now().Add(3 * dispatchertest.PastWindow)
	_, err := w.D.Registry.Pin(t.Context(), w.Caller, "letters", 1, &until, "quarterly figures")
	require.NoError(t, err)
	require.Empty(t, w.GC(time.Now().Add(2*dispatchertest.PastWindow)).Generations)
	require.NoError(t, w.D.Registry.Unpin(t.Context(), w.Caller, "letters", 1))
	require.ErrorContains(t, w.D.Registry.Unpin(t.Context(), w.Caller, "letters", 1), "not pinned")
	_, err = w.D.Registry.Pin(t.Context(), w.Caller, "letters", 1, &until, "quarterly figures")
	require.NoError(t, err)
	require.Len(t, w.GC(until.Add(time.Second)).Generations, 1, "a pin that ran out holds nothing")
	_, err = w.D.Registry.Pin(t.Context(), w.Caller, "letters", 1, nil, "too late")
	require.ErrorContains(t, err, "purged")
	require.Equal(t, 3, w.Count(`SELECT FROM audit_log WHERE action IN ('dag.pin', 'dag.unpin')`))
}

func TestGCKeepsWhatAQueryReads(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	one := w.Serve(dispatchertest.Tagged("one"))
	held := w.Generation(one.Version.ID, "made")
	w.Serve(dispatchertest.Tagged("two"))
	now := time.Now()
	var hold uuid.UUID
	inOrg := func(f func(ctx context.Context, tx pgx.Tx) error) {
		require.NoError(t, pg.InOrgTx(t.Context(), w.Requests, w.Caller.OrgID, f))
	}
	inOrg(func(ctx context.Context, tx pgx.Tx) (err error) {
		hold, err = registry.HoldForRead(ctx, tx, w.Caller.OrgID, []uuid.UUID{held, held}, "query:1", now,
			2*dispatchertest.PastWindow)
		return err
	})
	require.Empty(t, w.GC(now.Add(dispatchertest.PastWindow)).Generations)
	inOrg(func(ctx context.Context, tx pgx.Tx) error { return registry.ReleaseRead(ctx, tx, w.Caller.OrgID, hold) })
	require.Len(t, w.GC(now.Add(dispatchertest.PastWindow)).Generations, 1)
}

// A running build, a failed one and an abandoned one keep what they built for one window.
func TestGCKeepsBuilds(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Tagged("one"))
	w.Deploy(dispatchertest.Tagged("two"), func(r *registry.DeployRequest) { r.Activate = new(bool) })
	w.Settle()
	require.Len(t, purged(w, "made"), 2)
	require.Empty(t, w.GC(time.Now().Add(3*dispatchertest.PastWindow)).Generations,
		"a version that is ready is on its way")
	_, err := w.D.Builds.Abandon(t.Context(), w.Caller, "letters")
	require.NoError(t, err)
	require.Empty(t, w.GC(time.Now().Add(6*24*time.Hour)).Generations)
	require.Len(t, w.GC(time.Now().Add(dispatchertest.PastWindow)).Generations, 1)
}

// Revisions that a running task has pinned stay, however long ago they were replaced. So do those of a task whose
// lease has expired, because its completion may still come.
func TestGCKeepsWhatTasksRead(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	w.Probe.Put("raw", "2024-01-01", "b")
	w.Poll()
	w.Work() // the source's
	w.Route()
	reader := w.One(w.D) // of b
	w.Probe.Put("raw", "2024-01-01", "c")
	w.Poll()
	dispatchertest.Execute(t.Context(), w.D, w.One(w.D)) // c replaces b
	require.Equal(t, 1, w.GC(time.Now().Add(dispatchertest.PastGrace)).Revisions,
		"only the first, which nobody reads any more")
	require.Equal(t, 2, w.Count(`SELECT FROM partition_versions p JOIN dataset_versions g ON g.id = p.dataset_version
		JOIN jobs j ON j.id = g.origin_job_id WHERE j.name = 'raw'`))

	w.Reap(time.Now().Add(time.Minute))
	require.Contains(t, w.Task(reader.TaskID), "lease_expired")
	require.Zero(t, w.GC(time.Now().Add(dispatchertest.PastGrace)).Revisions)
	require.NoError(t, w.D.CompleteAttempt(t.Context(), reader, w.Do(w.D, reader), time.Now()))
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"m(c)"}}, w.Read("letters_made"))
	require.Positive(t, w.GC(time.Now().Add(dispatchertest.PastGrace)).Revisions)
	require.Equal(t, w.Named(), w.Files())
	require.Zero(t, w.Count(`SELECT FROM partition_versions WHERE state = 'Replaced'`))
}

// What tasks hold is found by reading the open ones, however many have ended.
func TestGCReadsOpenTasksOnly(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	w.Probe.Put("raw", "2024-01-01", "b")
	w.Poll()
	w.Work()
	w.Route()
	running := w.One(w.D)
	w.Exec(`INSERT INTO tasks (id, org_id, job_id, kind, slot, status, runtime)
		SELECT gen_random_uuid(), org_id, job_id, 'reactive', 'old-' || n, 'Completed', 'dispatcher'
		FROM generate_series(1, 5000) AS n, tasks WHERE tasks.id = $1`, running.TaskID)
	w.Exec(`ANALYZE tasks`)

	var scanned, looked int64
	require.NoError(t, pg.InTx(t.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) error {
		read := func() (scanned, looked int64) {
			require.NoError(t, tx.QueryRow(ctx, `SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables
				WHERE relname = 'tasks'`).Scan(&scanned, &looked))
			return scanned, looked
		}
		scannedBefore, lookedBefore := read() // the connection may not have reported yet what it did before
		use, err := upkeep.InUse(ctx, tx, w.Caller.OrgID)
		require.Len(t, use.Origins, 1)
		require.Len(t, use.Pins, 1)
		scanned, looked = read()
		scanned, looked = scanned-scannedBefore, looked-lookedBefore
		return err
	}))
	require.Zero(t, scanned)
	require.LessOrEqual(t, looked, int64(1))
}

// A reader that resolved a revision just before it was replaced can read it during the grace period.
func TestGCReaderGrace(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	for _, content := range []string{"a", "b", "c"} {
		w.Probe.Put("raw", "2024-01-01", content)
		if content == "a" {
			w.Serve(dispatchertest.Upkept)
		}
		w.Poll()
		w.Settle()
	}
	require.Zero(t, w.GC(time.Now().Add(14*time.Minute)).Revisions)
	found := w.GC(time.Now().Add(16 * time.Minute))
	require.Equal(t, 4, found.Revisions)
	require.Positive(t, found.RevisionBytes)
	require.Equal(t, w.Named(), w.Files())
	require.Equal(t, map[string]int64{"2024-01-01": 3}, w.Published("made"), "revisions are never numbered anew")
	w.Probe.Put("raw", "2024-01-01", "d")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string]int64{"2024-01-01": 4}, w.Published("made"))
}

const appending = `
name: letters
jobs:
` + dispatchertest.Raw + `  - name: log
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerUpdate
    update_strategy: append
    unique_key: [content]
    config: { query: "SELECT content FROM raw" }
publish:
  log: { from: { job: log } }
`

// An appended revision shares the files of the revisions before it: files stay as long as a kept revision names them,
// and rows that were read once are not read again.
func TestGCOfAppendedRevisions(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	var all []string
	for day := 1; day <= 4; day++ {
		content := fmt.Sprintf("day %d", day)
		all = append(all, content)
		w.Probe.Put("raw", fmt.Sprintf("2024-01-%02d", day), content)
		if day == 1 {
			w.Serve(appending)
		}
		w.Poll()
		w.Settle()
	}
	require.Equal(t, map[string][]string{"all": all}, w.Read("log"))
	attempts := w.Attempts("log")
	require.Zero(t, w.GC(time.Now().Add(dispatchertest.PastGrace)).Revisions,
		"the last revision names the files of all of them")
	require.Equal(t, map[string][]string{"all": all}, w.Read("log"))

	w.Probe.Put("raw", "2024-01-05", "day 1") // an existing key: everything is rewritten as one file
	w.Poll()
	w.Settle()
	require.Equal(t, 4, w.GC(time.Now().Add(dispatchertest.PastGrace)).Revisions)
	require.Equal(t, w.Named(), w.Files())
	slices.Sort(all)
	require.Equal(t, map[string][]string{"all": all}, w.Read("log"))
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), time.Now()))
	w.Settle()
	require.Equal(t, attempts+1, w.Attempts("log"), "it is still known what was read")
}

// A crash between marking and removing leaves the marks, and the next collection removes what is marked.
func TestGCAfterACrash(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Tagged("one"))
	w.Probe.Put("raw", "2024-01-01", "b")
	w.Poll()
	w.Settle()
	w.Serve(dispatchertest.Tagged("two"))
	before := w.Files()
	later := time.Now().Add(dispatchertest.PastWindow)
	found, err := w.D.Upkeep.MarkGarbage(t.Context(), w.Caller.OrgID, later)
	require.NoError(t, err)
	require.Len(t, found.Generations, 1)
	require.Equal(t, 1, found.Revisions)
	require.Equal(t, before, w.Files())
	require.Equal(t, map[string][]string{"2024-01-01": {"two(b)"}}, w.Read("letters_made"))

	// Another crash, between removing bytes and removing rows.
	locations := dispatchertest.Texts(t, w.Pool, `SELECT location FROM partition_versions WHERE purged_at IS NOT NULL`)
	require.NotEmpty(t, locations)
	require.NoError(t, w.Storage.Discard(t.Context(), locations[0]))

	again, err := w.D.Upkeep.CollectGarbage(t.Context(), w.Caller, false, later)
	require.NoError(t, err)
	require.Empty(t, again.Generations, "they were marked before")
	require.Equal(t, w.Named(), w.Files())
	require.Less(t, len(w.Files()), len(before))
	require.Equal(t, 1, w.Count(`SELECT FROM dataset_versions WHERE cleared_at IS NOT NULL`))
	require.Equal(t, map[string][]string{"2024-01-01": {"two(b)"}}, w.Read("letters_made"))
}

// Files that an attempt left behind are removed by its record, once its completion cannot come any more.
func TestGCOfStaging(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Deploy(dispatchertest.Upkept)
	w.Advance()
	lost := w.One(w.D)
	w.Do(w.D, lost) // sealed, and never reported
	require.Len(t, w.Files(), 1)
	w.Reap(time.Now().Add(time.Minute))
	require.Zero(t, w.GC(time.Now().Add(dispatchertest.PastWindow)).Staging, "a late completion still counts")
	w.Promote(time.Now().Add(2 * time.Hour))
	w.Settle()
	require.Len(t, w.Files(), 3)
	require.Equal(t, 1, w.GC(time.Now().Add(dispatchertest.PastWindow)).Staging)
	require.Equal(t, w.Named(), w.Files())
	require.Zero(t, w.GC(time.Now().Add(dispatchertest.PastWindow)).Staging)
}

// The same holds for files of an attempt that ended well and published nothing. An attempt that published all of its
// files has no record.
func TestGCOfWhatWasNotPublished(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Deploy(dispatchertest.Upkept)
	w.Advance()
	first := w.One(w.D)
	done := w.Do(w.D, first)
	require.Zero(t, w.Count(`SELECT FROM task_attempts`))
	done.Outcome.Unchanged = true // its completion reports Unchanged
	require.NoError(t, w.D.CompleteAttempt(t.Context(), first, done, dispatchertest.Later(0)))
	require.Equal(t, []string{"1 Completed 1"}, dispatchertest.Texts(t, w.Pool, `SELECT concat_ws(' ', attempt, outcome,
		cardinality(staging)) FROM task_attempts`))
	w.Settle()
	require.Equal(t, 1, w.Count(`SELECT FROM task_attempts`))
	require.Equal(t, 1, w.GC(time.Now().Add(dispatchertest.PastWindow)).Staging)
	require.Empty(t, w.Files())
}

// What cannot be removed is told, and keeps nothing else from being so.
func TestGCOfWhatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Deploy(dispatchertest.Upkept)
	w.Advance()
	claimed := w.Claim(w.D)
	require.Len(t, claimed, 2)
	done := w.Do(w.D, claimed[0])
	done.Outcome.Unchanged = true // its completion reports Unchanged
	require.NoError(t, w.D.CompleteAttempt(t.Context(), claimed[0], done, dispatchertest.Later(0)))
	dispatchertest.Execute(t.Context(), w.D, claimed[1])
	w.Settle()
	require.Equal(t, 1, w.Count(`SELECT FROM task_attempts`))
	_, err := w.Pool.Exec(t.Context(), `
		INSERT INTO task_attempts (task_id, attempt, org_id, worker_id, started_at, ended_at, outcome, staging)
		SELECT task_id, 0, org_id, worker_id, started_at, ended_at, 'lease_expired', '{s3://gone/of/an-attempt}'
		FROM task_attempts`)
	require.NoError(t, err)
	w.Serve(dispatchertest.Tagged("two"))

	found, err := w.D.Upkeep.CollectGarbage(t.Context(), w.Caller, false, time.Now().Add(dispatchertest.PastWindow))
	require.ErrorContains(t, err, "what attempt 0 of task")
	require.Equal(t, 1, found.Staging)
	require.NotEmpty(t, found.Generations)
	require.NotEmpty(t, w.Files())
	require.Equal(t, w.Named(), w.Files(), "all else is gone")
	require.Equal(t, 1, w.Count(`SELECT FROM task_attempts WHERE staging <> '{}'`), "and it is tried again")
}

// A purged generation is never reused: deploying its document again builds it anew, in the next epoch.
func TestPurgedGenerationIsWantedAgain(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	one := w.Serve(dispatchertest.Tagged("one"))
	w.Serve(dispatchertest.Tagged("two"))
	require.Len(t, w.GC(time.Now().Add(dispatchertest.PastWindow)).Generations, 1)

	third := w.Serve(dispatchertest.Tagged("one"))
	require.True(t, third.Created)
	require.Equal(t, 3, third.Version.Number)
	require.NotEqual(t, one.Version.Hash, third.Version.Hash)
	require.NotEqual(t, w.Generation(one.Version.ID, "made"), w.Generation(third.Version.ID, "made"))
	require.Equal(t, w.Generation(one.Version.ID, "raw"), w.Generation(third.Version.ID, "raw"))
	require.Equal(t, map[string][]string{"2024-01-01": {"one(a)"}}, w.Read("letters_made"))
	again := w.Deploy(dispatchertest.Tagged("one"))
	require.False(t, again.Created, "the epoch is part of the version")
	require.Equal(t, third.Version.ID, again.Version.ID)
}

// A completion that arrives after its generation was purged commits nothing.
func TestCompletionIntoAPurgedGeneration(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Tagged("one"))
	w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{}, w.Probe.Write(ctx, task, "late")
	})
	w.Probe.Put("raw", "2024-01-01", "b")
	w.Poll()
	w.Work()
	w.Exec(`UPDATE dataset_versions SET purged_at = now() WHERE id IN (SELECT p.dataset_version
		FROM dag_version_datasets p WHERE p.job_name = 'made')`)
	w.Route()
	late := w.One(w.D)
	require.ErrorContains(t, w.D.CompleteAttempt(t.Context(), late, w.Do(w.D, late), time.Now()), "was purged")
}

// In Postgres storage, a generation is a table that a view reads: gc narrows the view, which never stops showing the
// live data.
func TestGCOfTables(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.InTables)
	w.Serve(strings.ReplaceAll(dispatchertest.InTables, "tag: one", "tag: two"))
	tables := `SELECT FROM pg_class WHERE relname LIKE '\_g\_%' AND relkind = 'r'`
	require.Equal(t, 2, w.Count(tables))
	require.Len(t, w.GC(time.Now().Add(dispatchertest.PastWindow)).Generations, 1)
	require.Equal(t, 1, w.Count(tables))
	require.Equal(t, []string{"two(a)"}, dispatchertest.Texts(t, w.Pool, `SELECT content FROM data_acme.letters_made`))
	require.Equal(t, map[string][]string{"2024-01-01": {"two(a)"}}, w.Read("letters_made"))
}

func TestGCSeesOneOrg(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	other := w.Org("umbrella")
	w.Probe.Put("raw", "2024-01-01", "a")
	for _, tn := range []*dispatchertest.Tenant{w.Tenant, other} {
		tn.Serve(dispatchertest.Tagged("one"))
		tn.Serve(dispatchertest.Tagged("two"))
	}
	require.Len(t, w.GC(time.Now().Add(dispatchertest.PastWindow)).Generations, 1)
	require.Equal(t, 1, w.Count(`SELECT FROM dataset_versions WHERE purged_at IS NOT NULL`))
	require.NoError(t, w.D.Upkeep.RemoveAll(t.Context(), time.Now().Add(dispatchertest.PastWindow)))
	require.Equal(t, 2, w.Count(`SELECT FROM dataset_versions WHERE cleared_at IS NOT NULL`))
	require.Equal(t, w.Named(), w.Files())
}

// What is let go by hundreds of versions is found in one pass over their datasets, and not by one for each generation.
func TestGCReadsDatasetsOfVersionsOnce(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Tagged("one"))
	w.Exec(`
		WITH old AS (
			INSERT INTO dag_versions (org_id, dag_name, number, yaml_hash, source_hash, yaml, status, created_by,
				activated_at, ended_at)
			SELECT org_id, dag_name, 100 + n, 'old' || n, '', '', 'Superseded', created_by, now() - interval '90 days',
				now() - interval '60 days'
			FROM dag_versions, generate_series(1, 300) AS n RETURNING *),
		made AS (
			INSERT INTO dataset_versions (org_id, dataset_uuid, origin_job_id, storage_location, config_hash,
				created_by_dag_version)
			SELECT g.org_id, g.dataset_uuid, g.origin_job_id, '', old.yaml_hash, old.id FROM old, dataset_versions g
			RETURNING *)
		INSERT INTO dag_version_datasets (org_id, dag_version_id, dataset_uuid, dataset_version, job_name, output_index,
			name)
		SELECT m.org_id, m.created_by_dag_version, m.dataset_uuid, m.id, p.job_name, p.output_index, p.name
		FROM made m JOIN dag_version_datasets p ON p.dataset_uuid = m.dataset_uuid`)
	w.Exec(`ANALYZE dag_versions, dataset_versions, dag_version_datasets`)

	var datasets, read int64
	require.NoError(t, pg.InTx(t.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) error {
		rows := func() (read int64) {
			require.NoError(t, tx.QueryRow(ctx, `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables
				WHERE relname = 'dag_version_datasets'`).Scan(&read))
			return read
		}
		require.NoError(t, tx.QueryRow(ctx, `SELECT count(*) FROM dag_version_datasets`).Scan(&datasets))
		before := rows()
		found, err := registry.UnreachableGenerations(ctx, tx, w.Caller.OrgID, "", registry.InUse{}, time.Now())
		require.Len(t, found, int(datasets)*300/301)
		read = rows() - before
		return err
	}))
	require.LessOrEqual(t, read, 3*datasets)
}
