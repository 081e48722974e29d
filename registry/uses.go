package registry

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
)

// What jobs use: programs and secrets.

// Programs returns the hash of the program that each job of a DAG runs, by DAG/JOB, as the active version has it, or
// else the newest. For a job that runs none it is empty.
func Programs(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string) (map[string]string, error) {
	rows, err := tx.Query(ctx, `
		SELECT j.name, j.definition FROM jobs j
		WHERE j.dag_version_id = (
			SELECT id FROM dag_versions WHERE org_id = $1 AND dag_name = $2
			ORDER BY status = 'Active' DESC, number DESC LIMIT 1)`, org, dagName)
	if err != nil {
		return nil, fmt.Errorf("programs of DAG %s: %w", dagName, err)
	}

	programs := map[string]string{}
	var name string
	var definition []byte
	_, err = pgx.ForEachRow(rows, []any{&name, &definition}, func() error {
		var job dag.Job
		if err := json.Unmarshal(definition, &job); err != nil {
			return err
		}
		programs[dagName+"/"+name] = ""
		if job.RunsProgram() {
			programs[dagName+"/"+name] = job.Program()
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("programs of DAG %s: %w", dagName, err)
	}
	return programs, nil
}

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
