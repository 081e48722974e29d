package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// refuseCycle refuses a version that would close a cycle over DAGs: each would wait for the other, or they would follow
// each other without end. It locks the graph, so that two versions cannot close a cycle together; a plan changes
// nothing, and holds nobody up.
func (d *deploy) refuseCycle(ctx context.Context, tx pgx.Tx) error {
	if len(d.bindings) == 0 {
		return nil
	}
	if !d.planning {
		if err := LockGraph(ctx, tx, d.caller.OrgID); err != nil {
			return err
		}
	}
	path, err := cycleOver(ctx, tx, d.caller.OrgID, d.doc.Name, d.version)
	if err != nil || path == nil {
		return err
	}
	return fault.New(fault.Conflict, "the deploy would close a cycle over DAGs: %s", strings.Join(path, " reads ")).
		WithHint("change one of them to read something else, or make them one DAG")
}

// refuseCycleBack refuses to go back to a version that would close a cycle over DAGs.
func refuseCycleBack(ctx context.Context, tx pgx.Tx, b registry.Build) error {
	path, err := cycleOver(ctx, tx, b.OrgID, b.DAG, b.ID)
	if err != nil || path == nil {
		return err
	}
	return fault.New(fault.Conflict, "a rollback to version %d would close a cycle over DAGs: %s", b.Number,
		strings.Join(path, " reads ")).
		WithHint("change one of them to read something else first")
}

// cycleOver returns the path from a DAG, through what its version reads, back to the DAG; nil if there is none.
func cycleOver(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, version uuid.UUID) ([]string, error) {
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

// LockGraph locks which DAGs of an org read which datasets of others, and what these promise: names, columns and
// partitionings. Whoever changes that, or decides by it, holds the lock until the transaction ends: deploys with inputs
// from other DAGs, cutovers, promotions, rollbacks and deletions. What they decide by is read after the lock. The
// caller holds the lock of its DAG, and takes none of another DAG after this one.
func LockGraph(ctx context.Context, tx pgx.Tx, org uuid.UUID) error {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`,
		registry.DagKey(org, "/inputs of other DAGs")); err != nil {
		return fmt.Errorf("lock the graph of DAGs: %w", pg.Busy(err, "another DAG of the org is being changed"))
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
