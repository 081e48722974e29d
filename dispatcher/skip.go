package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Skip gives a failed task up: a build that waited for its partition goes on without it, and says so. The very same work
// is not wanted again; new input makes a task of its own.
func (d *Dispatcher) Skip(ctx context.Context, caller authz.Caller, id uuid.UUID, reason string) (Task, error) {
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		row, err := lockOwn(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		if row.kind == "check" {
			return fault.New(fault.Conflict, "task %s checks a revision, which would stay held without it", id).
				WithHint("decide over the revision instead: `dagctl datasets accept` or `dagctl datasets reject`")
		}
		if row.status != "Failed" {
			return fault.New(fault.Conflict, "task %s is %s: only a failed task can be skipped", id, row.status)
		}
		if err := finish(ctx, tx, row, ending{status: "Canceled", reason: reasonSkipped, message: "skipped: " + reason, actor: caller.Actor}, time.Now()); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "task.skip", id.String(), map[string]any{"reason": reason})
	})
	if err != nil {
		return Task{}, fmt.Errorf("skip task: %w", err)
	}
	d.wake.send(topicClaim, topicBuild)
	detail, err := d.Task(ctx, caller, id)
	return detail.Task, err
}

// skippedPartitions counts, by origin, the partitions whose newest task somebody skipped. Tasks without a partition count as one.
func skippedPartitions(ctx context.Context, tx pgx.Tx, org uuid.UUID, origins []uuid.UUID) (map[uuid.UUID]int64, error) {
	rows, err := tx.Query(ctx, `
		SELECT job_id, count(*) FROM (
			SELECT DISTINCT ON (job_id, slot) job_id, reason FROM tasks
			WHERE org_id = $1 AND job_id = ANY($2) AND kind <> 'check' ORDER BY job_id, slot, id DESC) AS newest
		WHERE reason = $3 GROUP BY job_id`, org, origins, reasonSkipped)
	if err != nil {
		return nil, fmt.Errorf("count skipped tasks: %w", err)
	}
	skipped := map[uuid.UUID]int64{}
	var (
		id uuid.UUID
		n  int64
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &n}, func() error { skipped[id] = n; return nil }); err != nil {
		return nil, fmt.Errorf("count skipped tasks: %w", err)
	}
	return skipped, nil
}

// addSkipped says in a plan how many partitions of what is to be computed somebody has given up.
func addSkipped(ctx context.Context, tx pgx.Tx, org uuid.UUID, p *registry.Plan) error {
	var origins []uuid.UUID
	for _, c := range p.Changes {
		if c.Origin != uuid.Nil {
			origins = append(origins, c.Origin)
		}
	}
	skipped, err := skippedPartitions(ctx, tx, org, origins)
	for i := range p.Changes {
		p.Changes[i].Skipped = skipped[p.Changes[i].Origin]
	}
	return err
}
