package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// UncheckedRevision is the revision of one partition that readers of a generation see, with the checks that it has not
// passed.
type UncheckedRevision struct {
	Generation   uuid.UUID
	Key          string
	Revision     int64
	Materialized time.Time
	Checks       []string // hashes, sorted
}

// Demand is the checks, by their hashes, that the revisions of a generation must have passed.
type Demand struct {
	Generation uuid.UUID `json:"generation"`
	Checks     []string  `json:"checks"`
}

// Unchecked returns the published revisions that have not passed all that is demanded of their generations, by
// generation and key. Revisions that were taken over from another generation count only once their own has served.
func Unchecked(ctx context.Context, tx pgx.Tx, demands []Demand) ([]UncheckedRevision, error) {
	rows, err := tx.Query(ctx, `
		SELECT r.dataset_version, r.partition_key, r.revision, r.materialized_at,
			ARRAY(SELECT unnest(w.checks) EXCEPT SELECT unnest(r.passed_checks) ORDER BY 1)
		FROM jsonb_to_recordset($1) AS w(generation uuid, checks text[])
		JOIN partition_versions r ON r.dataset_version = w.generation AND r.state = 'Published'
		  AND NOT r.passed_checks @> w.checks
		WHERE r.inherited_from IS NULL OR EXISTS (
			SELECT FROM dag_version_datasets p
			JOIN dag_versions v ON v.id = p.dag_version_id AND v.activated_at IS NOT NULL
			WHERE p.dataset_version = w.generation)
		ORDER BY r.dataset_version, r.partition_key`, demands)
	if err != nil {
		return nil, fmt.Errorf("unchecked revisions: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[UncheckedRevision])
}
