package registry

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
)

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
