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
// transaction that a snapshot did not see. The marker of a split is none. It relies on idx_partition_versions_changed:
// a transaction before the oldest that ran at the snapshot is one that it saw, so the index is read from there.
func ChangedSince(ctx context.Context, tx pgx.Tx, s Snapshot, generations []uuid.UUID) ([]Ref, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT w.version, p.partition_key
		FROM unnest($1::uuid[]) AS w(version)
		CROSS JOIN LATERAL (SELECT p.partition_key FROM partition_versions p
			WHERE p.dataset_version = w.version AND p.changed_in >= pg_snapshot_xmin($2::pg_snapshot)
			  AND NOT pg_visible_in_snapshot(p.changed_in, $2::pg_snapshot) AND p.state <> 'Split' OFFSET 0) AS p`,
		generations, string(s))
	if err != nil {
		return nil, fmt.Errorf("partitions that have changed: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Ref])
}

// DatasetsChangedSince returns those of some datasets of which ChangedSince would find a partition.
func DatasetsChangedSince(ctx context.Context, tx pgx.Tx, s Snapshot, datasets []uuid.UUID) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT g.dataset_uuid FROM dataset_versions g
		WHERE g.dataset_uuid = ANY($1) AND EXISTS (
			SELECT FROM partition_versions p
			WHERE p.dataset_version = g.id AND p.changed_in >= pg_snapshot_xmin($2::pg_snapshot)
			  AND NOT pg_visible_in_snapshot(p.changed_in, $2::pg_snapshot) AND p.state <> 'Split' OFFSET 0)`,
		datasets, string(s))
	if err != nil {
		return nil, fmt.Errorf("datasets that have changed: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// DAGMark is a DAG with a text that differs whenever the versions that serve it or are on their way do.
type DAGMark struct {
	Org  uuid.UUID
	DAG  string
	Mark string
}

// DAGMarks returns the marks of all DAGs of some orgs. It relies on idx_dag_versions_open.
func DAGMarks(ctx context.Context, tx pgx.Tx, orgs []uuid.UUID) ([]DAGMark, error) {
	rows, err := tx.Query(ctx, `
		SELECT org_id, dag_name, sum(hashtextextended(id::text || status || coalesce(error, ''), 0))::text
		FROM dag_versions WHERE org_id = ANY($1) AND status IN ('Building', 'Ready', 'Active')
		GROUP BY org_id, dag_name`, orgs)
	if err != nil {
		return nil, fmt.Errorf("marks of DAGs: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[DAGMark])
}
