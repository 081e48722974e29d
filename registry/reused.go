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
	Key          string
	Revision     int64
	Materialized time.Time
	Checks       []string // hashes, sorted
}

// Unchecked returns the published revisions of a generation that have not passed all of some checks, by key. Checks are
// named by their hashes. Revisions that were taken over from another generation count only once their own has served.
func Unchecked(
	ctx context.Context, tx pgx.Tx, generation uuid.UUID, hashes []string,
) ([]UncheckedRevision, error) {
	rows, err := tx.Query(ctx, `
		SELECT r.partition_key, r.revision, r.materialized_at, 
			ARRAY(SELECT unnest($2::text[]) EXCEPT SELECT unnest(r.passed_checks) ORDER BY 1)
		FROM partition_versions r
		WHERE r.dataset_version = $1 AND r.state = 'Published' AND NOT r.passed_checks @> $2
		  AND (r.inherited_from IS NULL OR EXISTS (
		      SELECT FROM dag_version_datasets p JOIN dag_versions v ON v.id = p.dag_version_id AND v.activated_at IS NOT NULL
		      WHERE p.dataset_version = $1))
		ORDER BY r.partition_key`, generation, hashes)
	if err != nil {
		return nil, fmt.Errorf("unchecked revisions: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[UncheckedRevision])
}
