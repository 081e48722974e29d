package dispatcher_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// A completion that commits alone routes its own events, unless it cannot or would have to wait: then the router
// routes them. The result is the same.
func TestALoneCompletionRoutesItsEventsIfNothingStandsInTheWay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		work func(w *dispatchertest.World) // runs the task that publishes
		left int                           // rows of the outbox after it
	}{
		"nothing does":         {runRaw, 0},
		"a consumer is locked": {func(w *dispatchertest.World) { w.Unrouted(func() { runRaw(w) }) }, 1},
		"they cannot be routed": {func(w *dispatchertest.World) {
			w.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END'`)
			w.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON tasks FOR EACH ROW EXECUTE FUNCTION refuse()`)
			runRaw(w)
			w.Exec(`DROP TRIGGER refuse ON tasks`)
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.PairWorld(t)
			w.D.Stepped = false
			events := w.Count(`SELECT FROM events`)
			w.Probe.Put("raw", dispatchertest.FirstDay, "b")
			w.Poll()
			c.work(w)
			require.Equal(t, events+1, w.Count(`SELECT FROM events`), "the completion is committed")
			require.Equal(t, c.left, w.Count(`SELECT FROM outbox WHERE kind = 'route_event'`))
			w.Route()
			require.Equal(t, 1, w.Count(`SELECT FROM ready`))
			require.Zero(t, w.Count(`SELECT FROM events e WHERE NOT EXISTS (SELECT FROM event_outcomes o
				WHERE o.event_id = e.id)
				AND e.dataset_version IN (SELECT g.id FROM dataset_versions g
				JOIN job_inputs i ON i.dataset_uuid = g.dataset_uuid)`))
			w.Settle()
			require.Equal(t, []string{"m(b)"}, w.Read("pair_made")[dispatchertest.FirstDay])
			w.Check()
		})
	}
}

func runRaw(w *dispatchertest.World) {
	w.T.Helper()
	task := w.One(w.D)
	require.Equal(w.T, "raw", task.Job.Name)
	dispatchertest.Execute(w.T.Context(), w.D, task)
	require.Equal(w.T, "Completed", w.Task(task.TaskID))
}

// If a completion creates a task that would be the next one anyway, its runner gets that task at once, under a lease.
func TestARunnerGoesOnWithWhatItsCompletionMade(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(w *dispatchertest.World, running dispatcher.Claimed)
		goesOn bool
	}{
		"nothing else is ready": {func(*dispatchertest.World, dispatcher.Claimed) {}, true},
		"another task was ready before": {func(w *dispatchertest.World, running dispatcher.Claimed) {
			w.Probe.Put("raw", "2024-01-02", "other")
			w.Poll()
			require.Equal(w.T, 1, w.Count(`SELECT FROM ready`))
		}, false},
		"the job is paused": {func(w *dispatchertest.World, running dispatcher.Claimed) {
			w.Exec(`INSERT INTO pauses (org_id, dag_name, job_name, actor) VALUES ($1, $2, $3, 'test')`,
				running.Job.OrgID, running.Job.DAG, "made")
		}, false},
		"the process runs no such operator": {func(w *dispatchertest.World, running dispatcher.Claimed) {
			w.D.Elsewhere = map[string][]string{running.Job.Def.Runtime: {"hook"}}
		}, false},
		"the process is drained": {func(w *dispatchertest.World, _ dispatcher.Claimed) { w.D.StopClaiming() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.PairWorld(t)
			w.D.Stepped = false
			w.Probe.Put("raw", dispatchertest.FirstDay, "b")
			w.Poll()
			task := w.One(w.D)
			c.before(w, task)
			var next []dispatcher.Claimed
			w.D.Attempt(t.Context(), &task, func(c dispatcher.Claimed) { next = append(next, c) })
			require.Equal(t, "Completed", w.Task(task.TaskID))
			w.Check()
			if !c.goesOn {
				require.Empty(t, next)
				require.Zero(t, w.Count(`SELECT FROM leases`))
				return
			}
			require.Len(t, next, 1)
			require.Equal(t, "made", next[0].Job.Name)
			require.Equal(t, "Running leased", w.Task(next[0].TaskID))
			require.Zero(t, w.Count(`SELECT FROM ready`))
			w.D.Attempt(t.Context(), &next[0], func(dispatcher.Claimed) { t.Error("nothing reads what made makes") })
			w.Settle()
			require.Equal(t, []string{"m(b)"}, w.Read("pair_made")[dispatchertest.FirstDay])
		})
	}
}

// A canceled task whose work is needed again becomes ready once, under its old id; new work gets tasks of its own.
func TestARunnerGoesOnBesideWhatIsTakenUpAgain(t *testing.T) {
	t.Parallel()
	const (
		nextDay    = "2024-01-02"
		doneOfMade = `SELECT FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'made' AND t.kind <> 'check'
			AND t.status = 'Completed'`
	)
	for name, c := range map[string]struct{ again, fresh []string }{
		"alone":                {[]string{dispatchertest.FirstDay}, nil},
		"two":                  {[]string{dispatchertest.FirstDay, nextDay}, nil},
		"with a new one after": {[]string{dispatchertest.FirstDay}, []string{nextDay}},
		"with one before":      {[]string{nextDay}, []string{dispatchertest.FirstDay}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.PairWorld(t)
			w.Probe.Put("raw", nextDay, "b")
			w.Change("b")
			days := slices.Sorted(slices.Values(slices.Concat(c.again, c.fresh)))
			w.Exec(`DELETE FROM ready`)
			w.Exec(`UPDATE tasks SET status = 'Canceled', reason = 'superseded', completed_at = now()
				WHERE status = 'Queued'`)
			w.Exec(`UPDATE tasks SET reason = 'skipped', dedupe_key = 'another' WHERE reason = 'superseded'
				AND slot <> ALL($1)`, c.again)
			old := dispatchertest.Texts(t, w.Pool, `SELECT id::text FROM tasks WHERE reason = 'superseded' ORDER BY id`)
			require.Len(t, old, len(c.again))
			var origin uuid.UUID
			w.Row(`SELECT DISTINCT job_id FROM tasks WHERE id = ANY($1)`, old)(&origin)

			by := &dispatcher.Completing{Completion: dispatcher.Completion{Then: func(dispatcher.Claimed) {}}}
			require.NoError(t, pg.InTx(t.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) error {
				acting, err := w.D.Registry.ActingJobs(ctx, tx, []uuid.UUID{origin})
				require.NoError(t, err)
				var targets []stale.Target
				for _, day := range days {
					targets = append(targets, stale.Target{Job: acting[origin].Job, Key: day})
				}
				findings, err := w.D.Stale.Examine(ctx, tx, targets)
				require.NoError(t, err)
				next := w.D.NewNextClaim(true)
				around := dispatcher.NewSurroundings(findings, map[uuid.UUID]bool{origin: true})
				around.Next = &next.Collector
				made, err := w.D.CreateFound(ctx, tx, findings, around, time.Now())
				require.NoError(t, err)
				require.Len(t, made.By, len(days))
				require.NotNil(t, next.Early, "it was tried in the round trip that inserts")
				require.Len(t, next.Ready, len(days))
				return next.Give(ctx, tx, w.D.Dispatcher, []*dispatcher.Completing{by},
					[]*registry.Job{acting[origin].Job}, time.Now())
			}))
			w.Check()
			for _, id := range old {
				require.Equal(t, 1, w.Count(`SELECT FROM ready WHERE task_id = $1`, id))
				require.Equal(t, "Queued ready", w.Task(uuid.MustParse(id)))
			}
			require.Equal(t, len(days), w.Count(`SELECT task_id FROM ready UNION ALL SELECT task_id FROM leases`))
			done := w.Count(doneOfMade)
			if by.Next != nil {
				require.Equal(t, c.fresh, []string{by.Next.Slot})
				dispatchertest.Execute(t.Context(), w.D, *by.Next)
			}
			w.Settle()
			require.Equal(t, done+len(days), w.Count(doneOfMade))
			for _, day := range days {
				require.Equal(t, []string{"m(b)"}, w.Read("pair_made")[day])
			}
		})
	}
}
