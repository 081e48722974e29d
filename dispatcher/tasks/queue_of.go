package tasks

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// OrgQueue is the tasks of an org that may be claimed now, of one runtime and need.
type OrgQueue struct {
	Runtime string
	Needs   string    // as in the table ready
	Count   int64     // as many as were to be counted
	First   uuid.UUID // the first of them
	Served  bool      // a live worker can run them
}

// Oldest returns when the first of the tasks was made.
func (q OrgQueue) Oldest() time.Time { return MadeAt(q.First).UTC() }

// QueuesOf lists the queued tasks of an org by what they need, and counts at most so many of each. It touches one place
// of idx_ready_queue for each runtime and need that is queued in any org, and those tasks that it counts. It is for the
// owner's transactions: behind row-level security it would pass over the tasks of other orgs one by one.
func QueuesOf(ctx context.Context, tx pgx.Tx, org uuid.UUID, slug string, most int, now time.Time) ([]OrgQueue, error) {
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE q AS (
			(SELECT runtime, needs FROM ready ORDER BY runtime, needs LIMIT 1)
			UNION ALL
			SELECT n.* FROM q CROSS JOIN LATERAL (
				SELECT f.runtime, f.needs FROM ready f WHERE (f.runtime, f.needs) > (q.runtime, q.needs)
				ORDER BY f.runtime, f.needs LIMIT 1) AS n)
		SELECT q.runtime, q.needs, c.n, c.first, EXISTS (
			SELECT FROM workers w
			WHERE q.runtime = ANY(w.runtimes) AND w.last_heartbeat > $2 AND w.drained_at IS NULL AND w.unfit IS NULL
				AND (w.orgs IS NULL OR $1 = ANY(w.orgs))
				AND coalesce(w.only_for -> (`+RunsAsColumn+`) ? $4, true)
				AND (q.needs = '`+NeedCheck+`' OR w.operators = '{}' OR q.needs = ANY(w.operators)
					OR `+OperatorColumn+` = ANY(w.operators)))
		FROM q CROSS JOIN LATERAL (
			SELECT count(*) AS n, min(task_id::text)::uuid AS first FROM (
				SELECT r.task_id FROM ready r WHERE r.runtime = q.runtime AND r.needs = q.needs AND r.org_id = $1
				LIMIT $3) AS r) AS c
		WHERE c.n > 0
		ORDER BY q.runtime, q.needs`, org, now.Add(-WorkerDeadAfter), most, slug)
	if err != nil {
		return nil, fmt.Errorf("look at the queued tasks of org %s: %w", org, err)
	}

	return pgx.CollectRows(rows, pgx.RowToStructByPos[OrgQueue])
}

// MadeAt returns when a task was made: its id begins with the time in milliseconds.
func MadeAt(id uuid.UUID) time.Time {
	seconds, nanos := id.Time().UnixTime()
	return time.Unix(seconds, nanos)
}
