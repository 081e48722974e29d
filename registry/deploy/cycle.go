package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// refuseCycle refuses a version that would close a cycle over DAGs: each would wait for the other, or they would follow
// each other without end.
func (d *deploy) refuseCycle(ctx context.Context, tx pgx.Tx) error {
	path, err := cycleOver(ctx, tx, d.caller.OrgID, d.doc.Name, d.version)
	if err != nil || path == nil {
		return err
	}
	return fault.New(fault.Conflict, "the deploy would close a cycle over DAGs: %s", strings.Join(path, " reads ")).
		WithHint("change one of them to read something else, or make them one DAG")
}

// cycleOver returns the path from a DAG, through what its version reads, back to the DAG; nil if there is none.
// Versions with inputs from other DAGs are checked one after the other, so that two deploys cannot close a cycle
// together.
func cycleOver(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, version uuid.UUID) ([]string, error) {
	var reading bool
	if err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM job_inputs i JOIN jobs j ON j.id = i.job_id WHERE j.dag_version_id = $1 AND NOT i.in_dag)`,
		version).Scan(&reading); err != nil {
		return nil, fmt.Errorf("inputs of other DAGs: %w", err)
	}
	if reading {
		if err := lockGraph(ctx, tx, org); err != nil {
			return nil, err
		}
	}

	rows, err := tx.Query(ctx, `
		SELECT DISTINCT j.dag_name, s.producer_dag_name
		FROM job_inputs i
		JOIN jobs j ON j.id = i.job_id
		JOIN dag_versions v ON v.id = j.dag_version_id
		JOIN datasets s ON s.id = i.dataset_uuid
		WHERE i.org_id = $1 AND NOT i.in_dag
		  AND (v.id = $2 OR v.dag_name <> $3 AND v.status IN ('Active', 'Building', 'Ready'))
		ORDER BY 1, 2`, org, version, dagName)
	if err != nil {
		return nil, fmt.Errorf("read the graph of DAGs: %w", err)
	}

	reads := map[string][]string{}
	var consumer, producer string
	if _, err := pgx.ForEachRow(rows, []any{&consumer, &producer}, func() error {
		reads[consumer] = append(reads[consumer], producer)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the graph of DAGs: %w", err)
	}
	return pathBack(reads, dagName), nil
}

// lockGraph locks which DAGs of an org read which datasets of others, and how these are partitioned. The caller holds
// the lock of its DAG.
func lockGraph(ctx context.Context, tx pgx.Tx, org uuid.UUID) error {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`,
		registry.DagKey(org, "/inputs of other DAGs")); err != nil {
		return fmt.Errorf("lock the graph of DAGs: %w", err)
	}
	return nil
}

// pathBack returns the path from a DAG, through what it reads, back to the DAG; nil if there is none. It is pure.
func pathBack(reads map[string][]string, start string) []string {
	seen := map[string]bool{}
	var visit func(at string) []string
	visit = func(at string) []string {
		for _, next := range reads[at] {
			if next == start {
				return []string{at, start}
			}
			if seen[next] {
				continue
			}
			seen[next] = true
			if path := visit(next); path != nil {
				return slices.Concat([]string{at}, path)
			}
		}
		return nil
	}

	return visit(start)
}
