package catalog

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
)

// Deploy is a cutover that changed which generation of a dataset readers see.
type Deploy struct {
	At      time.Time `json:"at"`
	Version int       `json:"dag_version" doc:"The DAG version that served from then on"`
	From    *int      `json:"from_version,omitempty" doc:"The DAG version that served before"`
	Reason  string    `json:"reason" enum:"deploy,promote,rollback"`
	Actor   string    `json:"actor"`

	Generation uuid.UUID `json:"dataset_version"`
}

// deploys lists the last cutovers that moved a dataset's pointer. Versions of which only the record is left have no
// pointers any more, so what they moved shows at the next cutover of which more is left. Generations that the caller
// may not read are left out. It relies on idx_dag_activations_dag.
func deploys(ctx context.Context, tx pgx.Tx, caller authz.Caller, d registry.Dataset) ([]Deploy, error) {
	args := []any{caller.OrgID, d.DAG, d.ID}
	rows, err := tx.Query(ctx, `
		SELECT m.at, m.number, m.from_number, m.reason, m.actor, m.dataset_version
		FROM (SELECT a.id, a.at, v.number, f.number AS from_number, a.reason, a.actor, p.dataset_version,
		          lag(p.dataset_version) OVER (ORDER BY a.at, a.id) AS last
		      FROM dag_activations a
		      JOIN dag_versions v ON v.id = a.dag_version_id
		      LEFT JOIN dag_versions f ON f.id = a.from_version_id
		      JOIN dag_version_datasets p ON p.dag_version_id = a.dag_version_id AND p.dataset_uuid = $3
		      WHERE a.org_id = $1 AND a.dag_name = $2) AS m
		JOIN dataset_versions g ON g.id = m.dataset_version
		WHERE m.dataset_version IS DISTINCT FROM m.last AND `+registry.GenerationVisibleTo(caller, &args)+`
		ORDER BY m.at DESC, m.id DESC LIMIT 50`, args...)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Deploy])
	return append([]Deploy{}, found...), err
}
