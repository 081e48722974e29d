package upkeep

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/atonce"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// PlanDeletion returns what deleting a DAG would remove, and who reads that.
func (u *Upkeep) PlanDeletion(
	ctx context.Context, caller authz.Caller, dagName string, now time.Time,
) (plan deploy.Deletion, err error) {
	open := 0
	err = atonce.Do(ctx, 2, pg.OrgTx(u.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		plan, err = u.planDeletion(ctx, tx, caller, dagName, now)
		return err
	}), pg.OrgTx(u.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		open, err = openTasksOf(ctx, tx, caller.OrgID, dagName)
		return err
	}))
	if err != nil {
		return plan, fmt.Errorf("delete %s: %w", dagName, err)
	}
	plan.OpenTasks = open
	return plan, nil
}

// planDeletion refuses whoever may not read all that goes. It does not count open tasks.
func (u *Upkeep) planDeletion(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName string, now time.Time,
) (deploy.Deletion, error) {
	plan, err := deploy.PlanDeletion(ctx, tx, caller.OrgID, dagName, now)
	if err != nil {
		return plan, err
	}
	datasets := make([]uuid.UUID, len(plan.Datasets))
	for i, d := range plan.Datasets {
		datasets[i] = d.ID
	}
	names, err := u.registry.ReadableNames(ctx, tx, caller, datasets)
	if err != nil {
		return deploy.Deletion{}, err
	}
	if len(names) < len(datasets) {
		return deploy.Deletion{}, fault.New(fault.Forbidden, "%s has datasets that %s may not read",
			dagName, caller.Actor).WithHint("an admin of the org %s can delete it", caller.OrgSlug)
	}

	return plan, nil
}

// many is how many origins are looked for among all open tasks of their org: to look up each takes longer.
const many = 1000

// openTasksOf counts the open tasks of a DAG. Every open task is in one of three small sets, so it reads no history.
func openTasksOf(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string) (n int, err error) {
	origins, err := deploy.OriginsOf(ctx, tx, org, dagName)
	if err != nil {
		return 0, err
	}

	sql := `
		SELECT (SELECT count(*) FROM ready WHERE org_id = $1 AND origin_job_id = ANY($2))
		     + (SELECT count(*) FROM leases WHERE org_id = $1 AND origin_job_id = ANY($2))
		     + (SELECT count(*) FROM waiting WHERE org_id = $1 AND origin_job_id = ANY($2))`
	if len(origins) > many {
		// OFFSET 0 keeps the three from being asked for each origin.
		sql = `
		SELECT count(*) FROM (
			SELECT origin_job_id FROM ready WHERE org_id = $1
			UNION ALL SELECT origin_job_id FROM leases WHERE org_id = $1
			UNION ALL SELECT origin_job_id FROM waiting WHERE org_id = $1 OFFSET 0) AS open
		WHERE origin_job_id IN (SELECT unnest($2::uuid[]))`
	}

	err = tx.QueryRow(ctx, sql, org, origins).Scan(&n)
	return n, fault.Wrap(err, "count open tasks")
}

// DeleteDAG takes a DAG out of service with its datasets, sources and timers, and cancels its open tasks. It refuses
// while another DAG reads one of the datasets, or gets a name back and given lacks the consent to that, or the name's
// view cannot show that DAG's dataset because of what users built on it.
func (u *Upkeep) DeleteDAG(
	ctx context.Context, caller authz.Caller, dagName string, given []registry.Consent, now time.Time,
) (deleted deploy.Deletion, err error) {
	// The owner deletes, whom no wall holds back, so a request looks first.
	if _, err := u.PlanDeletion(ctx, caller, dagName, now); err != nil {
		return deploy.Deletion{}, err
	}

	// Like a swap to a version without datasets: views of names that go back to other DAGs may have to be replaced.
	nothing := registry.Build{OrgID: caller.OrgID, DAG: dagName}
	swap := func(ctx context.Context, tx pgx.Tx, ready builds.Prepared) error {
		if err := deploy.LockSwap(ctx, tx, nothing); err != nil {
			return err
		}
		if err := deploy.LockGraph(ctx, tx, caller.OrgID); err != nil { // nobody begins to read a dataset meanwhile
			return err
		}

		if deleted, err = u.planDeletion(ctx, tx, caller, dagName, now); err != nil {
			return err
		}
		if deleted.OpenTasks, err = openTasksOf(ctx, tx, caller.OrgID, dagName); err != nil {
			return err
		}
		if err := deploy.DeleteDAG(ctx, tx, caller.OrgID, deleted, given, now); err != nil {
			return err
		}

		for _, sql := range []string{
			`DELETE FROM sources WHERE org_id = $1 AND dag_name = $2`,
			`DELETE FROM deliveries WHERE org_id = $1 AND dag_name = $2`,
			`DELETE FROM delivery_marks WHERE org_id = $1 AND dag_name = $2`,
			`DELETE FROM scheduled_events WHERE org_id = $1 AND dag_name = $2`,
		} {
			if _, err := tx.Exec(ctx, sql, caller.OrgID, dagName); err != nil {
				return err
			}
		}

		if err := u.builds.CancelUnused(ctx, tx, caller.OrgID, dagName, tasks.ReasonSuperseded, now); err != nil {
			return err
		}
		if err := u.builds.EndUnwanted(ctx, tx, caller.OrgID, dagName, uuid.Nil, now); err != nil {
			return err
		}

		detail := map[string]any{"version": deleted.Version, "datasets": len(deleted.Datasets), "consents": given}
		if err := authz.Audit(ctx, tx, caller, "dag.delete", dagName, detail); err != nil {
			return err
		}
		return u.builds.ReplaceViews(ctx, tx, ready)
	}
	if err := u.builds.InSwapTx(ctx, nothing, u.builds.Patience, swap); err != nil {
		return deleted, fmt.Errorf("delete %s: %w", dagName, err)
	}

	u.log.Info("deleted", "dag", dagName, "actor", caller.Actor)
	u.wake.Send(wakeup.Claim)
	return deleted, nil
}
