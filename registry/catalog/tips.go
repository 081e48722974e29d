package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Tip is the newest revision of a partition.
type Tip struct {
	Key          string
	Revision     int64  // 0: the partition has none
	State        string // Held, Published, Rejected or Purged; empty: it has none
	Materialized *time.Time
	Rows         int64
	Bytes        int64
	Task         *uuid.UUID // that made it
}

// Tips returns the partitions of a generation from the last key down, beginning before a key (empty: with the last).
// Those of besides that have no revision are among them. It relies on the primary key of partition_versions.
func Tips(
	ctx context.Context, tx pgx.Tx, org, generation uuid.UUID, before string, besides []string, limit int,
) ([]Tip, error) {
	rows, err := tx.Query(ctx, `
		WITH tips AS (
			SELECT DISTINCT ON (partition_key) partition_key, revision, state, materialized_at, row_count, bytes, task_id
			FROM partition_versions
			WHERE org_id = $1 AND dataset_version = $2 AND state <> 'Split' AND ($3 = '' OR partition_key < $3)
			ORDER BY partition_key DESC, revision DESC LIMIT $5),
		besides AS (
			SELECT DISTINCT b.key FROM unnest($4::text[]) AS b(key) WHERE $3 = '' OR b.key < $3)
		SELECT coalesce(t.partition_key, b.key) AS key, coalesce(t.revision, 0), coalesce(t.state, ''), t.materialized_at,
		       coalesce(t.row_count, 0), coalesce(t.bytes, 0), t.task_id
		FROM tips t FULL JOIN besides b ON b.key = t.partition_key
		ORDER BY key DESC LIMIT $5`, org, generation, before, besides, limit)
	if err != nil {
		return nil, fmt.Errorf("newest revisions of generation %s: %w", generation, err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Tip])
}

// Span is from where to where a generation has partitions.
type Span struct {
	First, Last string // empty: it has none
	Due         bool   // its dataset says when a partition is due, so that those up to now are expected
}

// SpanOf returns the span of a generation of a dataset.
func SpanOf(ctx context.Context, tx pgx.Tx, org, dataset, generation uuid.UUID) (s Span, err error) {
	err = tx.QueryRow(ctx, `
		SELECT coalesce(min(partition_key), ''), coalesce(max(partition_key), ''),
			coalesce((SELECT due_within_seconds > 0 FROM datasets WHERE org_id = $1 AND id = $2), false)
		FROM partition_versions WHERE org_id = $1 AND dataset_version = $3 AND state <> 'Split'`,
		org, dataset, generation).
		Scan(&s.First, &s.Last, &s.Due)
	if err != nil {
		return s, fmt.Errorf("partitions of generation %s: %w", generation, err)
	}
	return s, nil
}
