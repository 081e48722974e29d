package pressure

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
)

// ReviewQuotas measures what orgs have queued and store, as far as that is due, and reads the quotas of all orgs.
func (g *Gauge) ReviewQuotas(ctx context.Context, now time.Time) (more bool, err error) {
	if g.quotas == nil {
		return false, nil
	}
	if err := g.quotas.Measure(ctx, authz.QueuedTasks, now, queuedOf); err != nil {
		return false, err
	}
	if err := g.quotas.Measure(ctx, authz.StorageBytes, now, g.stored); err != nil {
		return false, err
	}

	held := len(g.quotas.Held())
	if err := g.quotas.Review(ctx, now); err != nil {
		return false, err
	}
	if len(g.quotas.Held()) < held {
		g.wake.Send(wakeup.Sources, wakeup.Build)
	}
	return false, nil
}

// queuedOf counts the tasks of orgs that are ready or wait. It relies on idx_ready_queue, where it goes from runtime to
// runtime and from need to need, and on idx_waiting_org.
func queuedOf(ctx context.Context, tx pgx.Tx, orgs []uuid.UUID) (map[uuid.UUID]int64, error) {
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE runtimes AS (
			(SELECT min(runtime) AS name FROM ready)
			UNION ALL
			SELECT (SELECT min(runtime) FROM ready WHERE runtime > r.name) FROM runtimes r WHERE r.name IS NOT NULL),
		needed AS (
			SELECT r.name AS runtime, (SELECT min(needs) FROM ready WHERE runtime = r.name) AS needs
			FROM runtimes r WHERE r.name IS NOT NULL
			UNION ALL
			SELECT n.runtime, (SELECT min(needs) FROM ready WHERE runtime = n.runtime AND needs > n.needs)
			FROM needed n WHERE n.needs IS NOT NULL)
		SELECT o.org,
			coalesce((SELECT sum((
					SELECT count(*) FROM ready q WHERE q.runtime = n.runtime AND q.needs = n.needs AND q.org_id = o.org))
				FROM needed n WHERE n.needs IS NOT NULL), 0)::bigint
			+ (SELECT count(*) FROM waiting w WHERE w.org_id = o.org AND w.reason <> 'dead')
		FROM unnest($1::uuid[]) AS o(org)`, orgs)
	if err != nil {
		return nil, fmt.Errorf("count queued tasks: %w", err)
	}

	counts := make(map[uuid.UUID]int64, len(orgs))
	var org uuid.UUID
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&org, &n}, func() error { counts[org] = n; return nil }); err != nil {
		return nil, fmt.Errorf("count queued tasks: %w", err)
	}
	return counts, nil
}
