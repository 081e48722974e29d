package registry

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Snapshot says which transactions a look at the database saw. Each row of partition_versions names the transaction
// that wrote it or changed its state, so what a snapshot did not see can be found again by an index, whatever order the
// transactions were committed in.
type Snapshot string

// CurrentSnapshot returns the snapshot of this statement. Later statements of a transaction see at least as much.
func CurrentSnapshot(ctx context.Context, tx pgx.Tx) (s Snapshot, err error) {
	if err := tx.QueryRow(ctx, `SELECT pg_current_snapshot()::text`).Scan(&s); err != nil {
		return s, fmt.Errorf("take a snapshot: %w", err)
	}
	return s, nil
}

// ChangedSince returns the partitions of generations of which a revision was written, or changed its state, in a
// transaction that a snapshot did not see. It relies on idx_partition_versions_changed: a transaction before the oldest
// that ran at the snapshot is one that it saw, so the index is read from there.
func ChangedSince(ctx context.Context, tx pgx.Tx, s Snapshot, generations []uuid.UUID) ([]Ref, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT w.version, p.partition_key
		FROM unnest($1::uuid[]) AS w(version)
		CROSS JOIN LATERAL (SELECT p.partition_key FROM partition_versions p
			WHERE p.dataset_version = w.version AND p.changed_in >= pg_snapshot_xmin($2::pg_snapshot)
			  AND NOT pg_visible_in_snapshot(p.changed_in, $2::pg_snapshot) OFFSET 0) AS p`, generations, string(s))
	if err != nil {
		return nil, fmt.Errorf("partitions that have changed: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Ref])
}
