package builds_test

import (
	"context"
	"errors"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"golang.org/x/sync/errgroup"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

func TestFirstDeployBuildsAndCutsOver(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	deployed := w.Deploy(dispatchertest.Letters)
	require.True(t, deployed.Created)
	require.Equal(t, 1, deployed.Version.Number)
	for _, c := range deployed.Changes {
		require.Equal(t, deploy.Create, c.Action)
	}
	// Readers see nothing at any step until everything is there.
	for range 3 {
		w.Route()
		w.Advance()
		for _, name := range []string{"letters_upper", "letters_joined"} {
			rows, err := w.TryRead(name)
			require.True(t, err != nil && fault.Is(err, fault.NotFound) || len(rows) == 0, "%s is seen: %v", name, rows)
		}
		for _, task := range w.Claim(w.D) {
			dispatchertest.Execute(t.Context(), w.D, task)
		}
		w.Check()
	}
	w.Settle()
	status, _ := w.Status(deployed.Version.ID)
	require.Equal(t, registry.Active, status)
	require.Equal(t, map[string][]string{"2024-01-01": {"A"}, "2024-01-02": {"B"}}, w.Read("letters_upper"))
	require.Equal(t, map[string][]string{"all": {"AB"}}, w.Read("letters_joined"))
	require.Equal(t, 1, w.Count(`SELECT FROM dag_activations`))
	settled, err := w.D.Views.Settled(t.Context(), w.Caller.OrgID)
	require.NoError(t, err)
	require.True(t, settled)
}

func TestTheSameDocumentIsTheSameVersion(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	first := w.Serve(dispatchertest.Letters)
	made := `SELECT FROM datasets UNION ALL SELECT FROM dataset_versions UNION ALL SELECT FROM tasks
		UNION ALL SELECT FROM (SELECT DISTINCT origin_job_id FROM jobs) AS o`
	before := w.Count(made)
	for _, yaml := range []string{dispatchertest.Letters, "# about letters\n" + dispatchertest.Letters,
		dispatchertest.Edit(dispatchertest.Letters, "operator: listed", "operator: listed\n    max_attempts: 5")} {
		again := w.Deploy(yaml)
		require.False(t, again.Created)
		require.Equal(t, first.Version.ID, again.Version.ID)
		require.Equal(t, registry.Active, again.Version.Status)
		require.Equal(t, 1, w.Count(`SELECT FROM dag_versions`))
	}
	// The same query in other words may be another version, but rebuilds nothing.
	for _, yaml := range []string{
		dispatchertest.Edit(dispatchertest.Letters, `"SELECT upper(content)`, `"SELECT /* loud */ upper(content)`),
		dispatchertest.Edit(dispatchertest.Letters, `upper(content) AS content FROM raw`,
			`UPPER( content )   as content from raw`),
	} {
		for _, c := range w.Serve(yaml).Changes {
			require.Equal(t, deploy.Reuse, c.Action, "%s/%d: %s", c.Job, c.Output, c.Reason)
		}
	}
	require.Equal(t, before, w.Count(made), "something was made")
}

func TestOperationalEditsRebuildNothing(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	w.Serve(dispatchertest.Letters)
	runs := w.Runs()
	second := w.Serve(dispatchertest.Edit(dispatchertest.Letters, "operator: listed",
		"operator: listed\n    max_attempts: 7\n    priority: 5", "every: 1h", "every: 2h"))
	require.True(t, second.Created)
	require.Equal(t, 2, second.Version.Number)
	require.Equal(t, runs, w.Runs())
	// The new settings apply to the same origin.
	w.Probe.Put("raw", "2024-01-03", "c")
	w.Poll()
	w.Settle()
	require.Equal(t, 1, w.Count(`SELECT FROM tasks WHERE max_attempts = 7 AND priority = 5`))
	require.Equal(t, map[string][]string{"all": {"ABC"}}, w.Read("letters_joined"))
}

func TestOneChangedQueryRebuildsItsDownstreamAlone(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	first := w.Serve(dispatchertest.Letters)
	attempts := map[string]int{"raw": w.Attempts("raw"), "other": w.Attempts("other")}

	second := w.Deploy(dispatchertest.Edit(dispatchertest.Letters, "upper(content) AS content",
		"upper(content) || upper(content) AS content"))
	actions := map[string]string{}
	for _, c := range second.Changes {
		actions[c.Job] = c.Action + ": " + c.Reason
	}
	require.Equal(t, map[string]string{"raw": "reuse: same definition", "other": "reuse: same definition",
		"upper": "rebuild: definition changed", "joined": "rebuild: upstream changed"}, actions)
	for job, same := range map[string]bool{"raw": true, "other": true, "upper": false, "joined": false} {
		require.Equal(t, same, w.Generation(first.Version.ID, job) == w.Generation(second.Version.ID, job), job)
		require.Equal(t, same, origin(w.Tenant, first.Version.ID, job) == origin(w.Tenant, second.Version.ID, job), job)
	}
	for range 2 { // the old numbers are served until everything is new
		w.Advance()
		require.Equal(t, map[string][]string{"2024-01-01": {"A"}, "2024-01-02": {"B"}}, w.Read("letters_upper"))
		require.Equal(t, map[string][]string{"all": {"AB"}}, w.Read("letters_joined"))
		for _, task := range w.Claim(w.D) {
			dispatchertest.Execute(t.Context(), w.D, task)
		}
		w.Route()
	}
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"AA"}, "2024-01-02": {"BB"}}, w.Read("letters_upper"))
	require.Equal(t, map[string][]string{"all": {"AABB"}}, w.Read("letters_joined"))
	for job, n := range attempts {
		require.Equal(t, n, w.Attempts(job), "%s was computed again", job)
	}

	// Deploy the first document again: its generations still exist, so nothing is computed.
	runs := w.Runs()
	third := w.Serve(dispatchertest.Letters)
	require.False(t, third.Created)
	require.Equal(t, first.Version.ID, third.Version.ID)
	require.Equal(t, runs, w.Runs())
	require.Equal(t, map[string][]string{"all": {"AB"}}, w.Read("letters_joined"))
}

// Data that arrives during a build reaches both the live generation and the candidate.
func TestWhatArrivesDuringABuildReachesBoth(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	w.Serve(dispatchertest.Letters)
	w.Deploy(dispatchertest.Edit(dispatchertest.Letters, "upper(content) AS content",
		"upper(content) || '2' AS content"))
	w.Advance()
	w.Probe.Put("raw", "2024-01-03", "c")
	w.Poll()
	for _, task := range w.Claim(w.D) {
		dispatchertest.Execute(t.Context(), w.D, task)
	}
	w.Route()
	require.Equal(t, 2, w.Count(`SELECT FROM ready r JOIN jobs j ON j.id = r.origin_job_id WHERE j.name = 'upper'
		AND r.slot = '2024-01-03'`))
	w.Settle()
	require.Equal(t, map[string][]string{"all": {"A2B2C2"}}, w.Read("letters_joined"))
}

func origin(tn *dispatchertest.Tenant, version uuid.UUID, job string) (id uuid.UUID) {
	tn.W.T.Helper()
	tn.W.Row(`SELECT origin_job_id FROM jobs WHERE dag_version_id = $1 AND name = $2`, version, job)(&id)
	return id
}

func TestADeployDuringABuild(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	w.Serve(dispatchertest.Letters)
	slow := dispatchertest.Edit(dispatchertest.Letters, "upper(content) AS content", "upper(content) || '2' AS content")
	first := w.Deploy(slow)
	w.Advance()
	running := w.Claim(w.D) // its two tasks run
	require.Len(t, running, 2)
	dispatchertest.Execute(t.Context(), w.D, running[0])
	w.Check()

	hotfix := dispatchertest.Edit(dispatchertest.Letters, "content || '!' AS content", "content || '?' AS content")
	_, err := w.TryDeploy(hotfix)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	var f *fault.Error
	require.True(t, errors.As(err, &f))
	require.Contains(t, f.Hint, "--supersede")

	second := w.Deploy(hotfix, dispatchertest.Supersede)
	status, _ := w.Status(first.Version.ID)
	require.Equal(t, registry.Abandoned, status)
	w.Settle()
	status, _ = w.Status(second.Version.ID)
	require.Equal(t, registry.Active, status)
	// The task that runs for nobody any more is asked to stop, and queued ones are canceled.
	require.Equal(t, 1, w.Count(`SELECT FROM leases WHERE task_id = $1 AND cancel_requested`, running[1].TaskID))
	require.NoError(t, w.D.CancelRunning(t.Context(), running[1], running[1].TimeoutAt))
	require.Zero(t, w.Count(`SELECT FROM ready`))
	w.Check()

	// Deployed again, the build continues with what it had.
	again := w.Serve(slow)
	require.False(t, again.Created)
	require.Equal(t, map[string][]string{"all": {"A2B2"}}, w.Read("letters_joined"))
	require.Equal(t, 3, w.AttemptsOf(`SELECT * FROM tasks WHERE job_id = $1`, origin(w.Tenant, first.Version.ID,
		"upper")),
		"one was done and stays, one was canceled and is done again")
}

func TestADatasetOfAnotherDAG(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	_, err := w.TryDeploy(dispatchertest.Consumer)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.Len(t, dispatchertest.ProblemsOf(err), 1)
	require.Regexp(t, `^dag.yaml:6:\d+: job shout reads dataset "letters_upper", which no DAG publishes$`,
		dispatchertest.ProblemsOf(err)[0])

	w.Serve(dispatchertest.Letters)
	w.Serve(dispatchertest.Consumer)
	require.Equal(t, map[string][]string{"2024-01-01": {"A!!"}, "2024-01-02": {"B!!"}}, w.Read("shouts"))
	w.Probe.Put("raw", "2024-01-03", "c")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"C!!"}, w.Read("shouts")["2024-01-03"])

	// Consumers follow the producer's new generation in place.
	w.Serve(dispatchertest.Edit(dispatchertest.Letters, "upper(content) AS content",
		"upper(content) || '2' AS content"))
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"A2!!"}, "2024-01-02": {"B2!!"}, "2024-01-03": {"C2!!"}},
		w.Read("shouts"))
	// They follow the rollback, too.
	w.Serve(dispatchertest.Letters)
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"A!!"}, "2024-01-02": {"B!!"}, "2024-01-03": {"C!!"}},
		w.Read("shouts"))
}

func TestANameBelongsToOneDAG(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	w.Serve(dispatchertest.Letters)
	thief := dispatchertest.Edit(dispatchertest.Letters, "name: letters\n", "name: thief\n")
	_, err := w.TryDeploy(thief)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.Contains(t, dispatchertest.ProblemsOf(err)[0], `dataset name "letters_`)
	require.Zero(t, w.Count(`SELECT FROM dag_versions WHERE dag_name = 'thief'`))

	// Two versions are built at the same moment: the second one to finish fails, and says why.
	a, b := dispatchertest.Edit(dispatchertest.Letters, "name: letters\n", "name: a\n", "letters_", "mine_"),
		dispatchertest.Edit(dispatchertest.Letters, "name: letters\n", "name: b\n", "letters_", "mine_")
	first := w.Deploy(a)
	// as if it had come later
	w.Exec(`UPDATE dag_version_datasets SET published_name = NULL WHERE dag_version_id = $1`, first.Version.ID)
	second := w.Deploy(b)
	w.Exec(`UPDATE dag_version_datasets SET published_name = name WHERE dag_version_id = $1 AND name LIKE 'mine_%'`,
		first.Version.ID)
	w.Settle()
	statuses := map[registry.Status]string{}
	for _, id := range []uuid.UUID{first.Version.ID, second.Version.ID} {
		status, reason := w.Status(id)
		statuses[status] = reason
	}
	require.Contains(t, statuses, registry.Active)
	require.Contains(t, statuses[registry.Failed], "belongs to DAG ")
}

// Deploying the live version during a build ends the build, and the live version stays.
func TestTheActiveVersionOverABuild(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	first := w.Serve(dispatchertest.Letters)
	second := w.Deploy(dispatchertest.Edit(dispatchertest.Letters, "upper(content) AS content",
		"upper(content) || '2' AS content"))
	w.Advance()
	again := w.Deploy(dispatchertest.Letters, dispatchertest.Supersede)
	require.Equal(t, first.Version.ID, again.Version.ID)
	w.Settle()
	status, _ := w.Status(second.Version.ID)
	require.Equal(t, registry.Abandoned, status)
	status, _ = w.Status(first.Version.ID)
	require.Equal(t, registry.Active, status)
	require.Equal(t, map[string][]string{"all": {"AB"}}, w.Read("letters_joined"))
}

// A build has come as far as what is live: both lack one new day. While its cutover waits for the DAG's lock somebody
// abandons it, and the cutover must not take up again the tasks that this canceled.
func TestABuildThatIsAbandonedBeforeItsCutoverMakesNoTasks(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	w.Serve(dispatchertest.Letters)
	next := w.Deploy(dispatchertest.Edit(dispatchertest.Letters, "upper(content) AS content",
		"upper(content) || '2' AS content"))
	w.Advance()
	for range 2 {
		w.Work()
		w.Route()
	}
	w.Probe.Put("raw", "2024-01-03", "c")
	w.Poll()
	dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
	w.Route()

	var g errgroup.Group
	require.NoError(t, pg.InTx(t.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := registry.LockDAGShared(ctx, tx, w.Caller.OrgID, "letters"); err != nil {
			return err
		}
		g.Go(func() error {
			_, err := w.D.Builds.AdvanceBuilds(t.Context(), time.Now())
			return err
		})
		w.Eventually("the cutover to wait for the lock", func() bool {
			return w.Count(`SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND mode = 'ExclusiveLock'
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) > 0
		})
		_, _, err := deploy.AbandonBuild(ctx, tx, w.Caller.OrgID, "letters", "for the test")
		if err != nil {
			return err
		}
		return w.D.Builds.CancelUnused(ctx, tx, w.Caller.OrgID, "letters", tasks.ReasonAbandoned, time.Now())
	}))
	require.NoError(t, g.Wait())

	status, _ := w.Status(next.Version.ID)
	require.Equal(t, registry.Abandoned, status)
	require.Equal(t, []string{"2024-01-03 Canceled"}, dispatchertest.Texts(t, w.Pool, `
		SELECT concat_ws(' ', t.partitions[1], t.status) FROM tasks t JOIN jobs j ON j.id = t.job_id
		WHERE j.dag_version_id = $1 AND t.status <> 'Completed'`, next.Version.ID))
}

// Jobs of other DAGs read a published name; a rename or a swap of names would bind them to something else.
func TestANameThatOthersReadIsNotGivenAway(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	renamed := dispatchertest.Edit(dispatchertest.Upkept, "letters_made:", "letters_renamed:")
	w.Serve(renamed)
	w.Serve(dispatchertest.Upkept)

	w.Serve(dispatchertest.WordsDAG)
	_, err := w.TryDeploy(renamed)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err,
		"dataset letters_made would be renamed to letters_renamed, but words/spelled reads it by its name")
	require.Len(t, w.Read("letters_made"), 1)
}

// What was tried with a document since it served takes nothing away from it.
func TestRollbackToAVersionWhoseDocumentWasTriedAgain(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	w.Serve(dispatchertest.Tagged("two"))
	w.Deploy(dispatchertest.Upkept, func(r *registry.DeployRequest) { r.Activate = new(bool) })

	first := 1
	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{To: &first})
	require.ErrorContains(t, err, "version 1 of letters is being built again")
	second := 2
	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{To: &second})
	require.ErrorContains(t, err, "version 2 of letters is already active: it serves")
	require.ErrorContains(t, fault.Hinted(err), "`dagctl abandon letters` gives up version 1, which does not serve yet")
	_, err = w.D.Builds.Abandon(t.Context(), w.Caller, "letters")
	require.NoError(t, err)
	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{To: &first})
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"2024-01-01": {"m(a)"}}, w.Read("letters_made"))
}

// A swap looks at the origins of the version that it replaces, and not at those of all versions there ever were.
func TestASwapLooksAtWhatItReplaces(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	left := func() (origins []uuid.UUID) {
		require.NoError(t, pgx.BeginFunc(t.Context(), w.Pool, func(tx pgx.Tx) (err error) {
			origins, err = deploy.EndTasks(t.Context(), tx, w.Caller.OrgID, "letters")
			return err
		}))
		return origins
	}
	for _, tag := range []string{"a", "b", "c"} {
		w.Serve(dispatchertest.Tagged(tag))
	}
	require.Empty(t, left(), "the swaps have canceled what they replaced")

	// A build that another deploy supersedes leaves its tasks to the next swap.
	w.Deploy(dispatchertest.Tagged("d"))
	w.Advance()
	require.NotEmpty(t, w.Count(`SELECT FROM ready`))
	w.Deploy(dispatchertest.Tagged("e"), dispatchertest.Supersede)
	w.Deploy(dispatchertest.Tagged("c"), dispatchertest.Supersede)
	w.Settle()
	require.Zero(t, w.Count(`SELECT FROM ready`))
	w.Serve(dispatchertest.Tagged("f"))
	require.Empty(t, left())

	// A version that serves again and is replaced again ends again.
	w.Serve(dispatchertest.Tagged("b"))
	w.Change("other")
	w.Serve(dispatchertest.Tagged("g"))
	require.Empty(t, left())
	w.Check()
}

const diamond = `
name: diamond
jobs:
` + dispatchertest.Raw + `  - name: daily
    operator: sql
    inputs: [{ from: { job: raw } }]
    config: { query: "SELECT content, 1 AS definition FROM raw" }
  - name: summary
    operator: sql
    partition_by: none
    inputs:
      - { from: { job: daily }, map: latest, refresh: true }
      - { from: { job: raw }, as: r }
    config: { query: "SELECT string_agg(content, '' ORDER BY content) AS content, 1 AS n FROM daily" }
publish: { summary: { from: { job: summary } } }
`

// A build whose open tasks bring no new source data is not as good as what is live: summary was made from all files,
// but from one of them only directly, and from the rest of its inputs not at all.
func TestAnOpenTaskBringsWhatCameByAnotherWay(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	w.Serve(diamond)
	before := w.Read("summary")
	next := w.Deploy(dispatchertest.Edit(diamond, "1 AS definition", "2 AS definition"))
	w.Advance()

	// One partition of daily is made, summary from it, then the other partition; summary is to be made again.
	days := w.Claim(w.D)
	require.Len(t, days, 2)
	for _, task := range []func() dispatcher.Claimed{
		func() dispatcher.Claimed { return days[0] }, func() dispatcher.Claimed { return w.One(w.D) },
		func() dispatcher.Claimed { return days[1] },
	} {
		dispatchertest.Execute(t.Context(), w.D, task())
		w.Route()
		w.Advance()
		status, _ := w.Status(next.Version.ID)
		require.Equal(t, registry.Building, status)
		require.Equal(t, before, w.Read("summary"))
	}
	w.Settle()
	status, _ := w.Status(next.Version.ID)
	require.Equal(t, registry.Active, status)
	require.Equal(t, before, w.Read("summary"))
}
