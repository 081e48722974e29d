package registry

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
)

// Acts reports whether tasks of the job may change something outside the platform. Such a job is never built, shadowed
// or caught up, so that no deploy and no rollback makes it act again.
func (j *Job) Acts() bool {
	return j.Def.Activation == dag.ActivationReactive && (j.Def.Effect == dag.EffectExternal || len(j.Outputs) == 0)
}

// FirstInput is a partition that existed before a job that reads it.
type FirstInput struct {
	Job      string    `json:"job"`
	Dataset  uuid.UUID `json:"dataset"`
	Key      string    `json:"key"`
	Version  uuid.UUID `json:"version"`
	Revision int64     `json:"revision"`
}

// FirstInputs lists the published input partitions of jobs that act and that the previous version did not have, after a
// cutover in this transaction.
func FirstInputs(ctx context.Context, tx pgx.Tx, b Build) ([]FirstInput, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT j.name, i.dataset_uuid, p.partition_key, p.dataset_version, p.revision
		FROM dag_current_versions c
		JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.activation = 'reactive'
		  AND (j.effect = 'external' OR j.output_datasets = '{}')
		JOIN job_inputs i ON i.job_id = j.id
		JOIN dataset_pointers d ON d.org_id = $1 AND d.dataset_uuid = i.dataset_uuid
		JOIN partition_versions p ON p.dataset_version = d.dataset_version AND p.state = 'Published'
		WHERE c.org_id = $1 AND c.dag_name = $2
		  AND NOT EXISTS (SELECT FROM jobs o WHERE o.dag_version_id = c.previous_version_id AND o.identity = j.identity)`,
		b.OrgID, b.DAG)
	if err != nil {
		return nil, fmt.Errorf("first inputs of jobs with effects: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[FirstInput])
}
