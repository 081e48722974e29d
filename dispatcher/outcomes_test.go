package dispatcher

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
)

// answers tells how each (event, consumer) ended: outcome and task.
func (w *world) answers() map[string]string {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(), `SELECT concat_ws(' ', event_id, job_id), concat_ws(' ', outcome, task_id) FROM event_outcomes`)
	require.NoError(w.t, err)
	found := map[string]string{}
	var pair, answer string
	_, err = pgx.ForEachRow(rows, []any{&pair, &answer}, func() error {
		require.NotContains(w.t, found, pair, "one answer")
		found[pair] = answer
		return nil
	})
	require.NoError(w.t, err)
	return found
}

// routeAgain delivers every event once more.
func (w *world) routeAgain() {
	w.t.Helper()
	w.exec(`INSERT INTO outbox (org_id, kind, payload) SELECT org_id, 'route_event', jsonb_build_object('event_ids', jsonb_agg(id)) FROM events GROUP BY org_id`)
	w.route()
}

// keepsAnswers holds that what was answered stays so.
func (w *world) keepsAnswers(before map[string]string) {
	w.t.Helper()
	require.Subset(w.t, w.answers(), before)
}

// newest tells the answers about the event of the newest revisions of raw, as far as made is concerned.
func (w *world) newest(n int) []string {
	w.t.Helper()
	return texts(w.t, w.pool, `
		SELECT concat_ws(' ', '@' || e.revision, o.outcome, o.task_id) FROM (SELECT * FROM events WHERE dataset_uuid = (
			SELECT id FROM datasets WHERE name = 'pair/raw/0') ORDER BY revision DESC LIMIT $1) AS e
		LEFT JOIN event_outcomes o ON o.event_id = e.id ORDER BY e.revision`, n)
}

// That an event triggered a task is told by the task, whatever becomes of it, without a row of its own; and once it is gone by
// a row. Delivered again, the event changes nothing.
func TestWhatATaskWasTriggeredBy(t *testing.T) {
	t.Parallel()
	took := func(w *world) claimed { w.t.Helper(); return w.one(w.d) }
	done := func(w *world) {
		w.t.Helper()
		task := took(w)
		require.NoError(w.t, w.d.complete(w.t.Context(), task, w.do(w.d, task), later(0)))
	}
	cancel := func(w *world) {
		w.t.Helper()
		w.exec(`WITH gone AS (DELETE FROM ready) UPDATE tasks SET status = 'Canceled', reason = 'superseded', completed_at = now() WHERE status = 'Queued'`)
	}
	for name, c := range map[string]struct {
		then func(w *world, id uuid.UUID)
		left string // of the task
		rows int    // of accounts, written for what the task does not tell any more
	}{
		"it is queued": {func(*world, uuid.UUID) {}, "Queued ready", 0},
		"it runs":      {func(w *world, _ uuid.UUID) { took(w) }, "Running leased", 0},
		"it failed": {func(w *world, _ uuid.UUID) {
			require.NoError(w.t, w.d.fail(w.t.Context(), took(w), reasonError, errTimedOut, true, later(0)))
		}, "Failed error waiting:backoff", 0},
		"it is done":           {func(w *world, _ uuid.UUID) { done(w) }, "Completed", 0},
		"it is taken up again": {func(w *world, _ uuid.UUID) { cancel(w) }, "Queued ready", 0},
		"it was canceled by somebody": {func(w *world, id uuid.UUID) {
			_, err := w.d.Cancel(w.t.Context(), w.caller, id)
			require.NoError(w.t, err)
		}, "Canceled canceled", 0},
		"its job keeps no tasks longer": {func(w *world, _ uuid.UUID) {
			done(w)
			require.NoError(w.t, w.d.sweepRetention(w.t.Context(), later(2*time.Hour)))
		}, "", 2},
		"it was purged": {func(w *world, id uuid.UUID) {
			cancel(w)
			_, err := w.d.PurgeTasks(w.t.Context(), w.caller, PurgeTasksRequest{Filter: TaskSelection{IDs: []uuid.UUID{id}}, Reason: "x", BreakWindow: true}, time.Now())
			require.NoError(w.t, err)
		}, "Canceled superseded", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.probe.put("raw", firstDay, "a")
			w.serve(edit(pair, "    config: { tag: m }", "    task_retention: 1h\n    config: { tag: m }"))
			w.change("b")
			require.Zero(t, w.count(`SELECT FROM event_consumers`))
			var id uuid.UUID
			w.row(`SELECT task_id FROM ready`)(&id)
			before := w.answers()
			require.Equal(t, []string{"@2 triggered " + id.String()}, w.newest(1))

			c.then(w, id)
			w.keepsAnswers(before)
			for range 2 {
				w.routeAgain()
				w.keepsAnswers(before)
				require.Equal(t, c.rows, w.count(`SELECT FROM event_consumers`))
				require.Equal(t, []string{"@2 triggered " + id.String()}, w.newest(1))
			}
			if c.left != "" {
				require.Equal(t, c.left, w.task(id))
			}
			w.settle()
			w.keepsAnswers(before)
			require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
			w.keepsAnswers(before)

			require.NoError(t, w.d.sweepRetention(t.Context(), later(2*keepEvents)))
			require.Zero(t, w.count(`SELECT FROM events UNION ALL SELECT FROM event_consumers`), "accounts go with their events")
		})
	}
}

// Of events that are found together, the one that the task is named by triggered it; of those that no single event decides
// over, each did.
func TestEventsThatAreFoundTogether(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	for _, content := range []string{"b", "c"} {
		w.probe.put("raw", firstDay, content)
		w.poll()
		w.work()
	}
	w.route()
	var id uuid.UUID
	w.row(`SELECT task_id FROM ready`)(&id)
	require.Equal(t, []string{"@2 included " + id.String(), "@3 triggered " + id.String()}, w.newest(2))
	before := w.answers()
	w.routeAgain()
	w.keepsAnswers(before)
	require.Equal(t, 1, w.count(`SELECT FROM event_consumers`))

	joined := newWorld(t)
	joined.serve(join)
	joined.probe.put("left", "k", "l")
	joined.probe.put("right", "k", "r")
	joined.poll()
	joined.work()
	joined.route()
	joined.row(`SELECT task_id FROM ready`)(&id)
	require.Len(t, joined.answers(), 2)
	for _, answer := range joined.answers() {
		require.Equal(t, "triggered "+id.String(), answer)
	}
	require.Equal(t, 2, joined.count(`SELECT FROM event_consumers`))
}

// An answer is looked up by event and consumer, and is the org's own.
func TestAnswersOfOneOrg(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	w.change("b")
	var event, job uuid.UUID
	w.row(`SELECT event_id, job_id FROM event_outcomes LIMIT 1`)(&event, &job)
	look := func(org uuid.UUID) (n int) {
		t.Helper()
		require.NoError(t, pg.InOrgTx(t.Context(), w.asked, org, func(ctx context.Context, tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, `SELECT count(*) FROM event_outcomes WHERE event_id = $1 AND job_id = $2`, event, job).Scan(&n); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `SET LOCAL enable_seqscan = off`); err != nil {
				return err
			}
			rows, err := tx.Query(ctx, `EXPLAIN SELECT * FROM event_outcomes WHERE event_id = $1 AND job_id = $2`, pgx.QueryExecModeSimpleProtocol, event, job)
			if err != nil {
				return err
			}
			plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
			for _, index := range []string{"event_consumers_pkey", "events_pkey", "idx_tasks_job_dedupe"} {
				require.Contains(t, strings.Join(plan, "\n"), "using "+index)
			}
			return err
		}))
		return n
	}
	require.Equal(t, 1, look(w.caller.OrgID))
	require.Zero(t, look(w.org("other").caller.OrgID))
}
