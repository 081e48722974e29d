package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// PlanDeletion says what deleting a DAG takes away, and who reads it.
func (d *Dispatcher) PlanDeletion(ctx context.Context, caller authz.Caller, dagName string, now time.Time) (plan registry.Deletion, err error) {
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		plan, err = planDeletion(ctx, tx, caller, dagName, now)
		return err
	})
	if err != nil {
		return plan, fmt.Errorf("delete %s: %w", dagName, err)
	}
	return plan, nil
}

func planDeletion(ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName string, now time.Time) (registry.Deletion, error) {
	plan, err := registry.PlanDeletion(ctx, tx, caller.OrgID, dagName, now)
	if err != nil {
		return plan, err
	}
	origins, err := registry.OriginsOf(ctx, tx, caller.OrgID, dagName)
	if err != nil {
		return plan, err
	}
	err = tx.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM ready WHERE job_id = ANY($1)) + (SELECT count(*) FROM leases WHERE job_id = ANY($1))
		     + (SELECT count(*) FROM waiting WHERE job_id = ANY($1))`, origins).Scan(&plan.OpenTasks)
	return plan, err
}

// DeleteDAG takes a DAG out of service with its datasets, sources and timers, and cancels what is open of it. It is refused
// while another DAG reads one of its datasets.
func (d *Dispatcher) DeleteDAG(ctx context.Context, caller authz.Caller, dagName string, now time.Time) (deleted registry.Deletion, err error) {
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := lockDAGBriefly(ctx, tx, caller.OrgID, dagName); err != nil {
			return err
		}
		if deleted, err = planDeletion(ctx, tx, caller, dagName, now); err != nil {
			return err
		}
		if err := registry.DeleteDAG(ctx, tx, caller.OrgID, deleted, now); err != nil {
			return err
		}
		for _, sql := range []string{
			`DELETE FROM sources WHERE org_id = $1 AND dag_name = $2`,
			`DELETE FROM pauses WHERE org_id = $1 AND dag_name = $2`,
			`DELETE FROM scheduled_events WHERE org_id = $1 AND dag_name = $2`,
		} {
			if _, err := tx.Exec(ctx, sql, caller.OrgID, dagName); err != nil {
				return err
			}
		}
		if err := d.cancelUnused(ctx, tx, caller.OrgID, dagName, reasonSuperseded, now); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "dag.delete", dagName, map[string]any{"version": deleted.Version, "datasets": len(deleted.Datasets)})
	})
	if err != nil {
		return deleted, fmt.Errorf("delete %s: %w", dagName, err)
	}
	d.Log.Info("deleted", "dag", dagName, "actor", caller.Actor)
	d.wake.send(topicClaim)
	return deleted, nil
}
