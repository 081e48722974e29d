package registry

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// DAGOf names a DAG of an org.
type DAGOf struct {
	Org  uuid.UUID
	Name string
}

// DAGsUsing returns the DAGs that serve or are built with jobs of some runtimes. An org and its runtime are at the same
// place.
func DAGsUsing(ctx context.Context, tx pgx.Tx, orgs []uuid.UUID, runtimes []string) ([]DAGOf, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT v.org_id, v.dag_name FROM dag_versions v
		JOIN jobs j ON j.dag_version_id = v.id
		JOIN unnest($1::uuid[], $2::text[]) AS p(org, runtime) ON p.org = v.org_id AND p.runtime = j.runtime
		WHERE v.status IN ('Active', 'Building', 'Ready')`, orgs, runtimes)
	if err != nil {
		return nil, fmt.Errorf("find the DAGs of runtimes: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[DAGOf])
}

// RuntimesOf returns the runtimes of jobs, by the ids of their rows.
func RuntimesOf(ctx context.Context, tx pgx.Tx, jobs []uuid.UUID) (map[uuid.UUID]string, error) {
	rows, err := tx.Query(ctx, `SELECT id, runtime FROM jobs WHERE id = ANY($1)`, jobs)
	if err != nil {
		return nil, fmt.Errorf("find the runtimes of jobs: %w", err)
	}
	runtimes := make(map[uuid.UUID]string, len(jobs))
	var (
		id      uuid.UUID
		runtime string
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &runtime}, func() error { runtimes[id] = runtime; return nil })
	return runtimes, err
}
