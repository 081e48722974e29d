package views

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/registry"
)

// skippedPartitions counts, by origin, the partitions whose newest task somebody skipped. Tasks without a partition
// count as one. It relies on idx_tasks_skipped, and reads no other history.
func skippedPartitions(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, origins []uuid.UUID,
) (map[uuid.UUID]int64, error) {
	rows, err := tx.Query(ctx, `
		SELECT s.job_id, count(*) FROM tasks s
		WHERE s.org_id = $1 AND s.job_id = ANY($2) AND s.reason = 'skipped' AND s.kind <> 'check'
		  AND NOT EXISTS (
			SELECT FROM tasks n WHERE n.job_id = s.job_id AND n.slot = s.slot AND n.id > s.id AND n.kind <> 'check')
		GROUP BY s.job_id`, org, origins)
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

// addSkipped adds to each change of a plan how many of its partitions somebody has given up.
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
