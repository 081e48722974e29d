package dispatcher_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/pg"
)

// answers returns the outcome and the task of each (event, consumer).
func answers(w *dispatchertest.World) map[string]string {
	w.T.Helper()
	rows, err := w.Pool.Query(w.T.Context(), `SELECT concat_ws(' ', event_id, job_id), concat_ws(' ', outcome, task_id)
		FROM event_outcomes`)
	require.NoError(w.T, err)
	found := map[string]string{}
	var pair, answer string
	_, err = pgx.ForEachRow(rows, []any{&pair, &answer}, func() error {
		require.NotContains(w.T, found, pair, "one answer")
		found[pair] = answer
		return nil
	})
	require.NoError(w.T, err)
	return found
}

// routeAgain delivers every event once more.
func routeAgain(w *dispatchertest.World) {
	w.T.Helper()
	w.Exec(`INSERT INTO outbox (org_id, kind, payload)
		SELECT org_id, 'route_event', jsonb_build_object('event_ids', jsonb_agg(id)) FROM events GROUP BY org_id`)
	w.Route()
}

// keepsAnswers checks that existing answers do not change.
func keepsAnswers(w *dispatchertest.World, before map[string]string) {
	w.T.Helper()
	require.Subset(w.T, answers(w), before)
}

// newest returns the answers of made to the events of the newest revisions of raw.
func newest(w *dispatchertest.World, n int) []string {
	w.T.Helper()
	return dispatchertest.Texts(w.T, w.Pool, `
		SELECT concat_ws(' ', '@' || e.revision, o.outcome, o.task_id) FROM (SELECT * FROM events WHERE dataset_uuid = (
			SELECT id FROM datasets WHERE name = 'pair/raw/0') ORDER BY revision DESC LIMIT $1) AS e
		LEFT JOIN event_outcomes o ON o.event_id = e.id ORDER BY e.revision`, n)
}

// The task itself records that an event triggered it, whatever happens to the task; only when the task is removed does
// the answer get a row of its own. Delivering the event again changes nothing.
func TestWhatATaskWasTriggeredBy(t *testing.T) {
	t.Parallel()
	took := func(w *dispatchertest.World) dispatcher.Claimed { w.T.Helper(); return w.One(w.D) }
	done := func(w *dispatchertest.World) {
		w.T.Helper()
		task := took(w)
		require.NoError(w.T, w.D.CompleteAttempt(w.T.Context(), task, w.Do(w.D, task), dispatchertest.Later(0)))
	}
	cancel := func(w *dispatchertest.World) {
		w.T.Helper()
		w.Exec(`WITH gone AS (DELETE FROM ready) UPDATE tasks
			SET status = 'Canceled', reason = 'superseded', completed_at = now() WHERE status = 'Queued'`)
	}
	for name, c := range map[string]struct {
		then func(w *dispatchertest.World, id uuid.UUID)
		left string // status and set of the task
		rows int    // rows of accounts, for answers that the task no longer records
	}{
		"it is queued": {func(*dispatchertest.World, uuid.UUID) {}, "Queued ready", 0},
		"it runs":      {func(w *dispatchertest.World, _ uuid.UUID) { took(w) }, "Running leased", 0},
		"it failed": {func(w *dispatchertest.World, _ uuid.UUID) {
			require.NoError(w.T, w.D.Fail(w.T.Context(), took(w), tasks.ReasonError, dispatcher.ErrTimedOut, true,
				dispatchertest.Later(0)))
		}, "Failed error waiting:backoff", 0},
		"it is done":           {func(w *dispatchertest.World, _ uuid.UUID) { done(w) }, "Completed", 0},
		"it is taken up again": {func(w *dispatchertest.World, _ uuid.UUID) { cancel(w) }, "Queued ready", 0},
		"it was canceled by somebody": {func(w *dispatchertest.World, id uuid.UUID) {
			_, err := w.D.Control.Cancel(w.T.Context(), w.Caller, id)
			require.NoError(w.T, err)
		}, "Canceled canceled", 0},
		"its job keeps no tasks longer": {func(w *dispatchertest.World, _ uuid.UUID) {
			done(w)
			require.NoError(w.T, w.D.Upkeep.SweepRetention(w.T.Context(), dispatchertest.Later(2*time.Hour)))
		}, "", 2},
		"it was purged": {func(w *dispatchertest.World, id uuid.UUID) {
			cancel(w)
			_, err := w.D.Upkeep.PurgeTasks(w.T.Context(), w.Caller,
				upkeep.PurgeTasksRequest{Filter: views.TaskSelection{IDs: []uuid.UUID{id}}, Reason: "x",
					BreakWindow: true}, time.Now())
			require.NoError(w.T, err)
		}, "Canceled superseded", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", dispatchertest.FirstDay, "a")
			w.Serve(dispatchertest.Edit(dispatchertest.Pair, "    config: { tag: m }",
				"    task_retention: 1h\n    config: { tag: m }"))
			w.Change("b")
			require.Zero(t, w.Count(`SELECT FROM event_consumers`))
			var id uuid.UUID
			w.Row(`SELECT task_id FROM ready`)(&id)
			before := answers(w)
			require.Equal(t, []string{"@2 triggered " + id.String()}, newest(w, 1))

			c.then(w, id)
			keepsAnswers(w, before)
			for range 2 {
				routeAgain(w)
				keepsAnswers(w, before)
				require.Equal(t, c.rows, w.Count(`SELECT FROM event_consumers`))
				require.Equal(t, []string{"@2 triggered " + id.String()}, newest(w, 1))
			}
			if c.left != "" {
				require.Equal(t, c.left, w.Task(id))
			}
			w.Settle()
			keepsAnswers(w, before)
			require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
			keepsAnswers(w, before)

			require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), dispatchertest.Later(2*upkeep.KeepEvents)))
			require.Zero(t, w.Count(`SELECT FROM events UNION ALL SELECT FROM event_consumers`),
				"accounts go with their events")
		})
	}
}

// If several events are found together, the event that names the task triggered it; if no single event is decisive,
// each of them triggered it.
func TestEventsThatAreFoundTogether(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	for _, content := range []string{"b", "c"} {
		w.Probe.Put("raw", dispatchertest.FirstDay, content)
		w.Poll()
		w.Work()
	}
	w.Route()
	var id uuid.UUID
	w.Row(`SELECT task_id FROM ready`)(&id)
	require.Equal(t, []string{"@2 included " + id.String(), "@3 triggered " + id.String()}, newest(w, 2))
	before := answers(w)
	routeAgain(w)
	keepsAnswers(w, before)
	require.Equal(t, 1, w.Count(`SELECT FROM event_consumers`))

	joined := dispatchertest.NewWorld(t)
	joined.Serve(join)
	joined.Probe.Put("left", "k", "l")
	joined.Probe.Put("right", "k", "r")
	joined.Poll()
	joined.Work()
	joined.Route()
	joined.Row(`SELECT task_id FROM ready`)(&id)
	require.Len(t, answers(joined), 2)
	for _, answer := range answers(joined) {
		require.Equal(t, "triggered "+id.String(), answer)
	}
	require.Equal(t, 2, joined.Count(`SELECT FROM event_consumers`))
}

// An answer is looked up by event and consumer, and visible only to its org.
func TestAnswersOfOneOrg(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Change("b")
	var event, job uuid.UUID
	w.Row(`SELECT event_id, job_id FROM event_outcomes LIMIT 1`)(&event, &job)
	look := func(org uuid.UUID) (n int) {
		t.Helper()
		require.NoError(t, pg.InOrgTx(t.Context(), w.Requests, org, func(ctx context.Context, tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, `SELECT count(*) FROM event_outcomes WHERE event_id = $1 AND job_id = $2`, event,
				job).Scan(&n); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `SET LOCAL enable_seqscan = off`); err != nil {
				return err
			}
			rows, err := tx.Query(ctx, `EXPLAIN SELECT * FROM event_outcomes WHERE event_id = $1 AND job_id = $2`,
				pgx.QueryExecModeSimpleProtocol, event, job)
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
	require.Equal(t, 1, look(w.Caller.OrgID))
	require.Zero(t, look(w.Org("other").Caller.OrgID))
}
