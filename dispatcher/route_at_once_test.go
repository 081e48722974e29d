package dispatcher

import (
	"testing"

	"github.com/stretchr/testify/require"
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
			w.exec(`CREATE TRIGGER refuse BEFORE INSERT ON event_consumers FOR EACH ROW EXECUTE FUNCTION refuse()`)
			w.runRaw()
			w.exec(`DROP TRIGGER refuse ON event_consumers`)
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
			require.Zero(t, w.count(`SELECT FROM events e WHERE NOT EXISTS (SELECT FROM event_consumers c WHERE c.event_id = e.id)
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
