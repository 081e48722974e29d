package tasks

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Unserved is queued tasks of an org that need the same and that no live worker can run.
type Unserved struct {
	Runtime string
	Needs   string // as in the table ready
	Queued  int64  // at most MostUnserved are counted
	Oldest  time.Time
}

// MostUnserved bounds how many tasks are counted.
const MostUnserved = 10_000

// UnservedOf lists the queued tasks of an org that no live worker can run. It touches one place of idx_ready_queue for
// each runtime and need that is queued in any org, and those tasks that it counts. It is for the owner's transactions:
// behind row-level security it would pass over the tasks of other orgs one by one.
func UnservedOf(ctx context.Context, tx pgx.Tx, org uuid.UUID, now time.Time) ([]Unserved, error) {
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE q AS (
			(SELECT runtime, needs FROM ready ORDER BY runtime, needs LIMIT 1)
			UNION ALL
			SELECT n.* FROM q CROSS JOIN LATERAL (
				SELECT f.runtime, f.needs FROM ready f WHERE (f.runtime, f.needs) > (q.runtime, q.needs)
				ORDER BY f.runtime, f.needs LIMIT 1) AS n)
		SELECT q.runtime, q.needs, c.n, c.oldest FROM q CROSS JOIN LATERAL (
			SELECT count(*) AS n, min(task_id::text)::uuid AS oldest FROM (
				SELECT r.task_id FROM ready r WHERE r.runtime = q.runtime AND r.needs = q.needs AND r.org_id = $1
				LIMIT $3) AS r) AS c
		WHERE c.n > 0 AND NOT EXISTS (
			SELECT FROM workers w
			WHERE q.runtime = ANY(w.runtimes) AND w.last_heartbeat > $2 AND w.drained_at IS NULL AND w.unfit IS NULL
				AND (w.orgs IS NULL OR $1 = ANY(w.orgs))
				AND (q.needs = '`+NeedCheck+`' OR w.operators = '{}' OR q.needs = ANY(w.operators)
					OR `+OperatorColumn+` = ANY(w.operators)))
		ORDER BY q.runtime, q.needs`, org, now.Add(-WorkerDeadAfter), MostUnserved)
	if err != nil {
		return nil, fmt.Errorf("look for tasks without a worker: %w", err)
	}

	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (u Unserved, err error) {
		var oldest uuid.UUID
		err = row.Scan(&u.Runtime, &u.Needs, &u.Queued, &oldest)
		u.Oldest = MadeAt(oldest)
		return u, err
	})
}

// MadeAt returns when a task was made: its id begins with the time in milliseconds.
func MadeAt(id uuid.UUID) time.Time {
	seconds, nanos := id.Time().UnixTime()
	return time.Unix(seconds, nanos)
}
