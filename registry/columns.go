package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/storage"
)

// KnownColumns returns the columns that a generation has, or those of the dataset's newest generation that has any. It
// returns none if nothing was ever published. It reads the generations of one dataset by their unique index.
func KnownColumns(ctx context.Context, tx pgx.Tx, g storage.Generation) (columns []storage.Column, err error) {
	var schema []byte
	err = tx.QueryRow(ctx, `
		SELECT schema FROM dataset_versions
		WHERE dataset_uuid = $1 AND org_id = $2 AND jsonb_array_length(schema) > 0
		ORDER BY id = $3 DESC, created_at DESC LIMIT 1`, g.Dataset, g.OrgID, g.Version).Scan(&schema)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(schema, &columns)
	}
	if err != nil {
		return nil, fmt.Errorf("columns of dataset %s: %w", g.Dataset, err)
	}
	return columns, nil
}

// StandingColumns returns the columns of a generation that has rows in other partitions than one; none otherwise.
func StandingColumns(
	ctx context.Context, tx pgx.Tx, g storage.Generation, partition string,
) (columns []storage.Column, err error) {
	err = tx.QueryRow(ctx, `
		SELECT g.schema FROM dataset_versions g
		WHERE g.id = $1 AND g.org_id = $2 AND jsonb_array_length(g.schema) > 0 AND EXISTS (
			SELECT FROM partition_versions p
			WHERE p.dataset_version = g.id AND p.state = 'Published' AND p.partition_key <> $3 AND p.row_count > 0)`,
		g.Version, g.OrgID, partition).Scan(&columns)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("columns of dataset %s: %w", g.Dataset, err)
	}
	return columns, nil
}

// LockSchemas locks the schemas of generations until the transaction ends, so that no other publishes a first one.
func LockSchemas(ctx context.Context, tx pgx.Tx, generations []uuid.UUID) error {
	_, err := tx.Exec(ctx, `
		SELECT FROM dataset_versions WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE`, generations)
	if err != nil {
		return fmt.Errorf("lock the schemas of %d generations: %w", len(generations), err)
	}
	return nil
}

// HeldOtherwise reports whether a revision with rows of another partition, and with another schema, waits for its
// checks.
func HeldOtherwise(ctx context.Context, tx pgx.Tx, ref Ref, schemaHash string) (held bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM partition_versions
			WHERE dataset_version = $1 AND state = 'Held' AND partition_key <> $2 AND row_count > 0
			  AND schema_hash <> $3)`, ref.Version, ref.Key, schemaHash).Scan(&held)
	if err != nil {
		return false, fmt.Errorf("held revisions of %s: %w", ref.Version, err)
	}
	return held, nil
}

// ColumnsOf returns the columns of generations, as their newest revision has them. Those without any are absent.
func ColumnsOf(ctx context.Context, tx pgx.Tx, generations []uuid.UUID) (map[uuid.UUID][]storage.Column, error) {
	rows, err := tx.Query(ctx, `SELECT id, schema FROM dataset_versions WHERE id = ANY($1) AND schema IS NOT NULL`, generations)
	if err != nil {
		return nil, fmt.Errorf("columns of %d generations: %w", len(generations), err)
	}

	all := make(map[uuid.UUID][]storage.Column, len(generations))
	var id uuid.UUID
	var columns []storage.Column
	_, err = pgx.ForEachRow(rows, []any{&id, &columns}, func() error {
		all[id], columns = columns, nil
		return nil
	})
	return all, err
}

// MadeBy returns the task that made the newest revision of a partition; uuid.Nil if there is no revision.
func MadeBy(ctx context.Context, tx pgx.Tx, ref Ref) (task uuid.UUID, err error) {
	err = tx.QueryRow(ctx, `
		SELECT coalesce(task_id, '00000000-0000-0000-0000-000000000000') FROM partition_versions
		WHERE dataset_version = $1 AND partition_key = $2 ORDER BY revision DESC LIMIT 1`, ref.Version, ref.Key).Scan(&task)
	if errors.Is(err, pgx.ErrNoRows) {
		return uuid.Nil, nil
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("task that made partition %q of %s: %w", ref.Key, ref.Version, err)
	}
	return task, nil
}
