package views

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
)

// Queue is what an org has ready for a runtime, and who takes it.
type Queue struct {
	Runtime  string     `json:"runtime"`
	Ready    int64      `json:"ready" doc:"Tasks of the org that may be claimed now; at most 20,000 are counted"`
	Oldest   *time.Time `json:"oldest_at,omitempty" doc:"When the first of them was made"`
	Workers  int        `json:"workers" doc:"Live processes that serve the runtime, and are not drained"`
	Slots    int        `json:"slots" doc:"Tasks that they run at once"`
	Running  int        `json:"running" doc:"Tasks of all orgs that they run"`
	Function bool       `json:"function,omitempty" doc:"A Lambda function runs its tasks, and needs no worker"`
	Unserved bool       `json:"unserved,omitempty" doc:"Tasks are ready, and nobody runs them"`
}

// mostQueued is how many ready tasks Queues counts.
const mostQueued = 20_000

// Queues lists the runtimes of which the org has ready tasks or whose workers serve it.
func (vs *Views) Queues(ctx context.Context, caller authz.Caller, now time.Time) (queues []Queue, err error) {
	err = pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			WITH queued AS (
				SELECT r.runtime, count(*) AS n, min(r.task_id::text)::uuid AS first
				FROM (SELECT runtime, task_id FROM ready WHERE org_id = $1 LIMIT $3) AS r GROUP BY r.runtime),
			served AS (
				SELECT u.runtime, count(*) AS workers, sum(w.pool_size) AS slots, sum(w.current_tasks) AS running
				FROM workers w, unnest(w.runtimes) AS u(runtime)
				WHERE w.last_heartbeat > $2 AND w.drained_at IS NULL AND w.unfit IS NULL AND w.replaced_at IS NULL
				  AND (w.orgs IS NULL OR $1 = ANY(w.orgs))
				GROUP BY u.runtime)
			SELECT coalesce(q.runtime, s.runtime), coalesce(q.n, 0), t.created_at, coalesce(s.workers, 0)::int, coalesce(s.slots, 0)::int,
				coalesce(s.running, 0)::int
			FROM queued q FULL JOIN served s ON s.runtime = q.runtime
			LEFT JOIN task_outlines t ON t.id = q.first AND t.org_id = $1
			ORDER BY 1`, caller.OrgID, now.Add(-tasks.WorkerDeadAfter), mostQueued)
		if err != nil {
			return err
		}
		queues, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (q Queue, err error) {
			return q, row.Scan(&q.Runtime, &q.Ready, &q.Oldest, &q.Workers, &q.Slots, &q.Running)
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}

	for i := range queues {
		queues[i].Function = slices.Contains(vs.functions, queues[i].Runtime)
		queues[i].Unserved = queues[i].Ready > 0 && queues[i].Workers == 0 && !queues[i].Function
	}
	return queues, nil
}
