package upkeep_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

func TestDeleteDAG(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	w.Serve(dispatchertest.WordsDAG)

	plan, err := w.D.Upkeep.PlanDeletion(t.Context(), w.Caller, "letters", time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"words/spelled"}, plan.Datasets[0].Consumers)
	_, err = w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "letters", nil, time.Now())
	require.ErrorContains(t, err, "dataset letters_made would be removed, but words/spelled reads it")
	require.Equal(t, map[string][]string{"2024-01-01": {"m(a)"}}, w.Read("letters_made"))

	_, err = w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "words", nil, time.Now())
	require.NoError(t, err)
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Poll() // a task is open
	w.Deploy(dispatchertest.Tagged("two"), func(r *registry.DeployRequest) { r.Activate = new(bool) })
	deleted, err := w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "letters", nil, time.Now())
	require.NoError(t, err)
	require.Equal(t, 1, deleted.Version)
	require.Equal(t, 2, deleted.Building)
	require.Equal(t, 1, deleted.OpenTasks)
	w.Settle()
	_, err = w.TryRead("letters_made")
	require.ErrorContains(t, err, "no dataset")
	require.Zero(t, w.Count(`SELECT FROM sources`))
	require.Equal(t, 1, w.Count(`SELECT FROM tasks WHERE status = 'Canceled'`))
	dags, err := w.D.Views.DAGs(t.Context(), w.Caller, "", 10)
	require.NoError(t, err)
	require.Empty(t, dags)
	_, err = w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "letters", nil, time.Now())
	require.ErrorContains(t, err, `no DAG "letters"`)

	// Within the window nothing is lost.
	require.Empty(t, w.GC(time.Now().Add(6*24*time.Hour)).Generations)
	first := 1
	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{To: &first})
	require.NoError(t, err)
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"m(a)"}, "2024-01-02": {"m(b)"}}, w.Read("letters_made"))

	// After it, everything is removed, and any DAG may take the name.
	_, err = w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "letters", nil, time.Now())
	require.NoError(t, err)
	require.NotEmpty(t, w.GC(time.Now().Add(dispatchertest.PastWindow)).Generations)
	require.Empty(t, w.Files())
	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{To: &first})
	require.ErrorContains(t, err, "purged")
	w.Serve(dispatchertest.Upkept)
	require.Len(t, w.Read("letters_made"), 2)
}

// A DAG of many origins has as many open tasks as one of few, and none of them is looked up in the sets of open tasks.
func TestOpenTasksOfManyOriginsAreCountedAtOnce(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Upkept)
	w.Serve(dispatchertest.Pair)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Poll()
	count := func(dag string) (open int, lookups int64) {
		t.Helper()
		require.NoError(t, pg.InTx(t.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
			looked := func() (n int64, err error) {
				err = tx.QueryRow(ctx, `SELECT sum(idx_scan) FROM pg_stat_xact_user_tables
					WHERE relname IN ('ready', 'leases', 'waiting')`).Scan(&n)
				return n, err
			}
			before, err := looked()
			if err != nil {
				return err
			}
			if open, err = upkeep.OpenTasksOf(ctx, tx, w.Caller.OrgID, dag); err != nil {
				return err
			}
			after, err := looked()
			lookups = after - before
			return err
		}))
		return open, lookups
	}
	few, _ := count("letters")
	require.Equal(t, 1, few)
	other, _ := count("pair")
	require.Equal(t, 1, other)

	w.Exec(`
		INSERT INTO jobs (id, org_id, name, dag_name, dag_version_id, origin_job_id, fingerprint, base_fingerprint,
			activation, runtime, operator, operator_version, source, config_hash, update_strategy, effect,
			definition)
		SELECT id, org_id, 'old_' || n, dag_name, dag_version_id, id, 'old_' || n, 'old_' || n, activation, runtime,
			operator, operator_version, source, config_hash, update_strategy, effect, '{}'
		FROM (SELECT gen_random_uuid() AS id, n FROM generate_series(1, 1100) AS n) AS old,
			(SELECT org_id, dag_name, dag_version_id, activation, runtime, operator, operator_version, source,
				config_hash, update_strategy, effect FROM jobs WHERE dag_name = 'letters' AND name = 'raw') AS j`)
	w.Exec(`INSERT INTO ready (task_id, org_id, origin_job_id, slot, runtime, rank)
		SELECT gen_random_uuid(), org_id, id, '', 'elsewhere', 0 FROM jobs WHERE name IN ('old_1', 'old_7')`)
	w.Exec(`INSERT INTO ready (task_id, org_id, origin_job_id, slot, runtime, rank)
		SELECT gen_random_uuid(), org_id, gen_random_uuid(), '', 'elsewhere', 0 FROM jobs, generate_series(1, 20)`)
	w.Exec(`INSERT INTO waiting (task_id, org_id, origin_job_id, slot, reason, rank)
		SELECT gen_random_uuid(), org_id, id, '', 'dead', 0 FROM jobs WHERE name IN ('old_1', 'old_8', 'old_9')`)
	w.Exec(`ANALYZE ready, leases, waiting`)
	many, lookups := count("letters")
	require.Equal(t, few+5, many)
	require.LessOrEqual(t, lookups, int64(3))
	again, _ := count("pair")
	require.Equal(t, other, again, "what other DAGs have open is not counted")
}

// The list of what a deletion removes looks at who reads it in other DAGs, and at no other version of its own.
func TestADeletionIsPlannedWithoutOldVersions(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	w.Serve(dispatchertest.WordsDAG)
	w.Exec(`
		INSERT INTO job_inputs (org_id, job_id, input_index, dataset_uuid, in_dag, triggers, dag_version_id)
		SELECT i.org_id, i.job_id, 10 + n, i.dataset_uuid, true, true, v.id
		FROM job_inputs i JOIN dag_versions v ON v.id = i.dag_version_id AND v.dag_name = 'letters',
			generate_series(1, 500) AS n`)
	w.Exec(`ANALYZE job_inputs`)

	require.NoError(t, pg.InTx(t.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) error {
		plan, err := deploy.PlanDeletion(ctx, tx, w.Caller.OrgID, "letters", time.Now())
		require.NoError(t, err)
		var read int64
		require.NoError(t, tx.QueryRow(ctx, `SELECT idx_tup_fetch FROM pg_stat_xact_user_tables
			WHERE relname = 'job_inputs'`).Scan(&read))
		require.Less(t, read, int64(100))
		consumers := []string{}
		for _, d := range plan.Datasets {
			consumers = append(consumers, d.Consumers...)
		}
		require.Equal(t, []string{"words/spelled"}, consumers)
		return nil
	}))
}

// A pause belongs to the name: nobody sees it while there is no DAG of the name, and it is there when one comes back.
func TestAPauseOutlivesItsDAG(t *testing.T) {
	t.Parallel()
	first := 1
	for name, back := range map[string]func(w *dispatchertest.World){
		"rollback": func(w *dispatchertest.World) {
			_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "pair", builds.RollbackRequest{To: &first})
			require.NoError(t, err)
		},
		"deploy": func(w *dispatchertest.World) { w.Deploy(dispatchertest.Pair) },
	} {
		for job, whole := range map[string]bool{"": true, "raw": false} {
			t.Run(name+" "+job, func(t *testing.T) {
				t.Parallel()
				w := dispatchertest.NewWorld(t)
				w.Probe.Put("raw", dispatchertest.FirstDay, "a")
				w.Serve(dispatchertest.Pair)
				w.Pause("pair", job)
				_, err := w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "pair", nil, time.Now())
				require.NoError(t, err)
				seen, err := w.D.Control.Pauses(t.Context(), w.Caller)
				require.NoError(t, err)
				require.Empty(t, seen, "there is nothing that is paused")

				back(w)
				step := func() {
					w.Poll()
					for range 3 {
						w.Route()
						w.Advance()
						w.Work()
					}
				}
				step()
				seen, err = w.D.Control.Pauses(t.Context(), w.Caller)
				require.NoError(t, err)
				require.Len(t, seen, 1)
				require.Equal(t, "a reason", seen[0].Reason)
				before := w.Runs()
				w.Probe.Put("raw", dispatchertest.FirstDay, "b")
				step()
				require.Equal(t, before, w.Runs(), "nothing runs")

				require.NoError(t, w.D.Control.Resume(t.Context(), w.Caller, "pair", job, time.Now()))
				w.Poll()
				w.Settle()
				require.Greater(t, w.Runs(), before)
				require.Equal(t, whole, seen[0].Job == "")
			})
		}
	}
}

// A DAG whose versions all failed or were abandoned holds names, and the list of DAGs shows it.
func TestDeleteADAGThatNeverServed(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *dispatchertest.World){
		"failed": func(w *dispatchertest.World) {
			w.Probe.Put("raw", "2024-01-01", "toolong")
			failed := w.Deploy(dispatchertest.Checked)
			w.Settle()
			status, _ := w.Status(failed.Version.ID)
			require.Equal(t, registry.Failed, status)
		},
		"abandoned": func(w *dispatchertest.World) {
			w.Deploy(dispatchertest.Checked, func(r *registry.DeployRequest) { r.Activate = new(bool) })
			_, err := w.D.Builds.Abandon(t.Context(), w.Caller, "checked")
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			end(w)
			_, err := w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "checked", nil, time.Now())
			require.NoError(t, err)
			dags, err := w.D.Views.DAGs(t.Context(), w.Caller, "", 10)
			require.NoError(t, err)
			require.Empty(t, dags)
			require.Zero(t, w.Count(`SELECT FROM datasets WHERE deleted_at IS NULL`))
			require.Zero(t, w.Count(`SELECT FROM datasets WHERE name = 'checked_good'`), "the name is anybody's")
			_, err = w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "checked", nil, time.Now())
			require.ErrorContains(t, err, `no DAG "checked"`)

			// The same document can be deployed again.
			w.Probe.Put("raw", "2024-01-01", "ab")
			w.Serve(dispatchertest.Checked)
			require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}}, w.Read("checked_good"))
		})
	}
}
