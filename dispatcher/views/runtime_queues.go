package views

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// mostQueued is how many ready tasks of a runtime Queues counts.
const mostQueued = 20_000

// Queues lists the runtimes of which the org has ready tasks or whose workers serve it.
func (vs *Views) Queues(ctx context.Context, caller authz.Caller, now time.Time) ([]Queue, error) {
	var ready []tasks.OrgQueue
	err := pg.InTx(ctx, vs.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		ready, err = tasks.QueuesOf(ctx, tx, caller.OrgID, caller.OrgSlug, mostQueued, now)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	queues, err := vs.served(ctx, caller, now)
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}

	for _, r := range ready {
		i := slices.IndexFunc(queues, func(q Queue) bool { return q.Runtime == r.Runtime })
		if i < 0 {
			i, queues = len(queues), append(queues, Queue{Runtime: r.Runtime})
		}
		q, oldest := &queues[i], r.Oldest()
		q.Ready = min(q.Ready+r.Count, mostQueued)
		if q.Oldest == nil || oldest.Before(*q.Oldest) {
			q.Oldest = &oldest
		}
	}

	for i := range queues {
		queues[i].Function = slices.Contains(vs.functions, queues[i].Runtime)
		queues[i].Unserved = queues[i].Ready > 0 && queues[i].Workers == 0 && !queues[i].Function
	}
	slices.SortFunc(queues, func(a, b Queue) int { return strings.Compare(a.Runtime, b.Runtime) })
	return queues, nil
}

// served returns the runtimes that live workers serve for the caller's org.
func (vs *Views) served(ctx context.Context, caller authz.Caller, now time.Time) (queues []Queue, err error) {
	err = pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT u.runtime, count(*)::int, sum(w.pool_size)::int, sum(w.current_tasks)::int
			FROM workers w, unnest(w.runtimes) AS u(runtime)
			WHERE w.last_heartbeat > $2 AND w.drained_at IS NULL AND w.unfit IS NULL AND w.replaced_at IS NULL
			  AND (w.orgs IS NULL OR $1 = ANY(w.orgs))
			GROUP BY u.runtime`, caller.OrgID, now.Add(-tasks.WorkerDeadAfter))
		if err != nil {
			return err
		}
		queues, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (q Queue, err error) {
			return q, row.Scan(&q.Runtime, &q.Workers, &q.Slots, &q.Running)
		})
		return err
	})
	return queues, err
}
