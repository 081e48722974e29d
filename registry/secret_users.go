package registry

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// SecretUsers returns what uses a secret in versions that are active, being built or ready: DAG/JOB, or DAG for a DAG's
// notifications, sorted.
func SecretUsers(ctx context.Context, tx pgx.Tx, org uuid.UUID, name string) ([]string, error) {
	rows, err := tx.Query(ctx, `
		WITH open AS (
			SELECT id, dag_name, notify FROM dag_versions
			WHERE org_id = $1 AND status IN ('Active', 'Building', 'Ready'))
		SELECT v.dag_name || '/' || j.name FROM open v JOIN jobs j ON j.dag_version_id = v.id
		WHERE $2 = ANY(j.secrets) OR j.source->>'secret' = $2
		UNION
		SELECT v.dag_name FROM open v, jsonb_array_elements(v.notify) AS n WHERE n->>'webhook_secret' = $2
		ORDER BY 1`, org, name)
	if err != nil {
		return nil, fmt.Errorf("users of secret %s: %w", name, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
