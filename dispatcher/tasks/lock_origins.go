package tasks

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/registry"
)

// LockOrigins keeps others from creating tasks of the same origins until the transaction ends. Every decision about an
// output partition therefore sees what the decision before it committed: two inputs that arrive at the same moment make
// exactly one task.
func LockOrigins(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) error {
	return lockOriginsBy(ctx, tx, "pg_advisory_xact_lock", origins)
}

// ShareOrigins excludes those who lock the origins, but not others who share them. It is for creating tasks with slots
// of their own, which cannot get in each other's way.
func ShareOrigins(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) error {
	return lockOriginsBy(ctx, tx, "pg_advisory_xact_lock_shared", origins)
}

func lockOriginsBy(ctx context.Context, tx pgx.Tx, lock string, origins []uuid.UUID) error {
	sorted := SortedIDs(slices.Clone(origins))
	_, err := tx.Exec(ctx, `SELECT `+lock+`(hashtextextended(o::text, 1)) FROM unnest($1::uuid[]) AS o`, sorted)
	if err != nil {
		return fmt.Errorf("lock %d origins: %w", len(sorted), err)
	}
	return nil
}

// LockDAGBriefly takes the DAG's lock, or gives up after five seconds, before routers and completions pile up behind
// the wait.
func LockDAGBriefly(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string) error {
	if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '5s'`); err != nil {
		return err
	}
	return registry.LockDAG(ctx, tx, org, dagName)
}
