package dispatcher

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// A completion that commits alone routes its events, unless it would have to wait or cannot: then the router does. What comes
// of them is the same.
func TestALoneCompletionRoutesItsEventsIfNothingStandsInTheWay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		work func(w *world) // runs the task that publishes
		left int            // rows of the outbox after it
	}{
		"nothing does":         {func(w *world) { w.runRaw() }, 0},
		"a consumer is locked": {func(w *world) { w.unrouted(w.runRaw) }, 1},
		"they cannot be routed": {func(w *world) {
			w.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END'`)
			w.exec(`CREATE TRIGGER refuse BEFORE INSERT ON tasks FOR EACH ROW EXECUTE FUNCTION refuse()`)
			w.runRaw()
			w.exec(`DROP TRIGGER refuse ON tasks`)
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := pairWorld(t)
			w.d.stepped = false
			events := w.count(`SELECT FROM events`)
			w.probe.put("raw", firstDay, "b")
			w.poll()
			c.work(w)
			require.Equal(t, events+1, w.count(`SELECT FROM events`), "the completion is committed")
			require.Equal(t, c.left, w.count(`SELECT FROM outbox WHERE kind = 'route_event'`))
			w.route()
			require.Equal(t, 1, w.count(`SELECT FROM ready`))
			require.Zero(t, w.count(`SELECT FROM events e WHERE NOT EXISTS (SELECT FROM event_outcomes o WHERE o.event_id = e.id)
				AND e.dataset_version IN (SELECT g.id FROM dataset_versions g JOIN job_inputs i ON i.dataset_uuid = g.dataset_uuid)`))
			w.settle()
			require.Equal(t, []string{"m(b)"}, w.read("pair_made")[firstDay])
			w.check()
		})
	}
}

func (w *world) runRaw() {
	w.t.Helper()
	task := w.one(w.d)
	require.Equal(w.t, "raw", task.job.Name)
	w.d.execute(w.t.Context(), task)
	require.Equal(w.t, "Completed", w.task(task.TaskID))
}

// A runner whose completion made a task gets that with it, under a lease, if it would be the next anyway.
func TestARunnerGoesOnWithWhatItsCompletionMade(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(w *world, running claimed)
		goesOn bool
	}{
		"nothing else is ready": {func(*world, claimed) {}, true},
		"another task was ready before": {func(w *world, running claimed) {
			w.probe.put("raw", "2024-01-02", "other")
			w.poll()
			require.Equal(w.t, 1, w.count(`SELECT FROM ready`))
		}, false},
		"the job is paused": {func(w *world, running claimed) {
			w.exec(`INSERT INTO pauses (org_id, dag_name, job_name, actor) VALUES ($1, $2, $3, 'test')`, running.job.OrgID, running.job.DAG, "made")
		}, false},
		"the process runs no such operator": {func(w *world, running claimed) {
			w.d.elsewhere = map[string][]string{running.job.Def.Runtime: {"hook"}}
		}, false},
		"the process is drained": {func(w *world, _ claimed) { w.d.drained.Store(true) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := pairWorld(t)
			w.d.stepped = false
			w.probe.put("raw", firstDay, "b")
			w.poll()
			task := w.one(w.d)
			c.before(w, task)
			var next []claimed
			w.d.attempt(t.Context(), task, func(c claimed) { next = append(next, c) })
			require.Equal(t, "Completed", w.task(task.TaskID))
			w.check()
			if !c.goesOn {
				require.Empty(t, next)
				require.Zero(t, w.count(`SELECT FROM leases`))
				return
			}
			require.Len(t, next, 1)
			require.Equal(t, "made", next[0].job.Name)
			require.Equal(t, "Running leased", w.task(next[0].TaskID))
			require.Zero(t, w.count(`SELECT FROM ready`))
			w.d.attempt(t.Context(), next[0], func(claimed) { t.Error("nothing reads what made makes") })
			w.settle()
			require.Equal(t, []string{"m(b)"}, w.read("pair_made")[firstDay])
		})
	}
}

// A canceled task whose work is wanted again is ready once, under its old id, though its round trip asked for another; what is
// new goes on beside it.
func TestARunnerGoesOnBesideWhatIsTakenUpAgain(t *testing.T) {
	t.Parallel()
	const (
		nextDay    = "2024-01-02"
		doneOfMade = `SELECT FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'made' AND t.kind <> 'check' AND t.status = 'Completed'`
	)
	for name, c := range map[string]struct{ again, fresh []string }{
		"alone":                {[]string{firstDay}, nil},
		"two":                  {[]string{firstDay, nextDay}, nil},
		"with a new one after": {[]string{firstDay}, []string{nextDay}},
		"with one before":      {[]string{nextDay}, []string{firstDay}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := pairWorld(t)
			w.probe.put("raw", nextDay, "b")
			w.change("b")
			days := slices.Sorted(slices.Values(slices.Concat(c.again, c.fresh)))
			w.exec(`DELETE FROM ready`)
			w.exec(`UPDATE tasks SET status = 'Canceled', reason = 'superseded', completed_at = now() WHERE status = 'Queued'`)
			w.exec(`UPDATE tasks SET reason = 'skipped', dedupe_key = 'another' WHERE reason = 'superseded' AND slot <> ALL($1)`, c.again)
			old := texts(t, w.pool, `SELECT id::text FROM tasks WHERE reason = 'superseded' ORDER BY id`)
			require.Len(t, old, len(c.again))
			var origin uuid.UUID
			w.row(`SELECT DISTINCT job_id FROM tasks WHERE id = ANY($1)`, old)(&origin)

			by := &completing{completion: completion{then: func(claimed) {}}}
			require.NoError(t, pg.InTx(t.Context(), w.pool, func(ctx context.Context, tx pgx.Tx) error {
				acting, err := w.d.Registry.ActingJobs(ctx, tx, []uuid.UUID{origin})
				require.NoError(t, err)
				var targets []target
				for _, day := range days {
					targets = append(targets, target{acting[origin].Job, day})
				}
				findings, err := w.d.examine(ctx, tx, targets)
				require.NoError(t, err)
				next := &nextClaim{wants: true}
				made, err := w.d.createFound(context.WithValue(ctx, nextClaimKey{}, next), tx, findings, map[uuid.UUID]bool{origin: true}, time.Now())
				require.NoError(t, err)
				require.Len(t, made.by, len(days))
				require.NotNil(t, next.early, "it was tried in the round trip that inserts")
				require.Len(t, next.ready, len(days))
				return next.give(ctx, tx, w.d, []*completing{by}, []*registry.Job{acting[origin].Job}, time.Now())
			}))
			w.check()
			for _, id := range old {
				require.Equal(t, 1, w.count(`SELECT FROM ready WHERE task_id = $1`, id))
				require.Equal(t, "Queued ready", w.task(uuid.MustParse(id)))
			}
			require.Equal(t, len(days), w.count(`SELECT task_id FROM ready UNION ALL SELECT task_id FROM leases`))
			done := w.count(doneOfMade)
			if by.next != nil {
				require.Equal(t, c.fresh, []string{by.next.slot})
				w.d.execute(t.Context(), *by.next)
			}
			w.settle()
			require.Equal(t, done+len(days), w.count(doneOfMade))
			for _, day := range days {
				require.Equal(t, []string{"m(b)"}, w.read("pair_made")[day])
			}
		})
	}
}
