package views

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
)

// queue adds what may be claimed, and what of it nobody claims: no worker of the org and no server serves the runtime.
// What workers of other orgs say of themselves does not count. Functions are called, and who reads a queue need not say
// that they live.
func (r *reading) queue(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		SELECT q.*, EXISTS (SELECT FROM workers w
			WHERE q.runtime = ANY(w.runtimes) AND w.last_heartbeat > $2 AND w.drained_at IS NULL
			  AND w.unfit IS NULL AND w.replaced_at IS NULL AND (w.orgs IS NULL OR q.org_id = ANY(w.orgs)))
		FROM (SELECT org_id, runtime, count(*), min(task_id::text)
			FROM (SELECT org_id, runtime, task_id FROM ready LIMIT $1) AS looked GROUP BY org_id, runtime) AS q`,
		gaugeRows, r.now.Add(-tasks.WorkerDeadAfter))
	if err != nil {
		return fmt.Errorf("measure the queue: %w", err)
	}

	var (
		org             uuid.UUID
		runtime, oldest string
		n               int64
		served          bool
	)
	_, err = pgx.ForEachRow(rows, []any{&org, &runtime, &n, &oldest, &served}, func() error {
		id, err := uuid.Parse(oldest)
		r.add(descQueue, float64(n), org.String(), runtime)
		r.add(descQueueAge, r.since(tasks.MadeAt(id)), org.String(), runtime)
		unserved := n
		if served || slices.Contains(r.views.functions, runtime) || slices.Contains(r.views.queued, runtime) {
			unserved = 0
		}
		r.add(descUnserved, float64(unserved), org.String(), runtime)
		return err
	})
	return err
}

// workers adds the processes that run tasks, by the org of their token: what workers say of themselves is theirs to
// answer for.
func (r *reading) workers(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		SELECT split_part(token, '/', 1),
		       count(*) FILTER (WHERE last_heartbeat > $1 AND drained_at IS NULL),
		       count(*) FILTER (WHERE last_heartbeat > $1 AND drained_at IS NOT NULL),
		       count(*) FILTER (WHERE last_heartbeat <= $1 AND replaced_at IS NULL),
		       coalesce(sum(pool_size) FILTER (WHERE last_heartbeat > $1 AND drained_at IS NULL), 0),
		       coalesce(bool_or(id = $2 AND token = '' AND is_leader AND leader_until > $3), false)
		FROM (SELECT '' AS token, '' AS id, NULL::timestamptz AS last_heartbeat, NULL::timestamptz AS drained_at,
				NULL::timestamptz AS replaced_at, 0 AS pool_size, false AS is_leader, NULL::timestamptz AS leader_until
			UNION ALL
			SELECT token, id, last_heartbeat, drained_at, replaced_at, pool_size, is_leader, leader_until
			FROM workers) AS w
		GROUP BY 1`, r.now.Add(-tasks.WorkerDeadAfter), r.views.workerID, r.now)
	if err != nil {
		return fmt.Errorf("measure the workers: %w", err)
	}

	var (
		org                        string
		live, drained, dead, slots int64
		leads                      bool
		leader, held               float64
	)
	_, err = pgx.ForEachRow(rows, []any{&org, &live, &drained, &dead, &slots, &leads}, func() error {
		r.add(descWorkers, float64(live), org, "live")
		r.add(descWorkers, float64(drained), org, "drained")
		r.add(descWorkers, float64(dead), org, "dead")
		r.add(descSlots, float64(slots), org)
		if leads {
			leader = 1
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("measure the workers: %w", err)
	}

	if r.views.pressure.High() {
		held = 1
	}
	r.add(descPressure, held)
	r.add(descLeader, leader)
	return nil
}
