package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// cutover makes a version ready and, unless it is to wait for a promotion, the one that serves: pointers, names, sources
// and the end of what nobody wants any more, in one transaction under the DAG's lock. What has to be defined for readers
// (views over Postgres storage) is defined before.
func (d *Dispatcher) cutover(ctx context.Context, b registry.Build, jobs []*registry.Job, now time.Time) error {
	remade, err := d.defineViews(ctx, b)
	if err != nil {
		return err
	}
	moved := false
	err = inSwapTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := registry.LockSwap(ctx, tx, b.OrgID, b.DAG); err != nil {
			return err
		}
		if passing, err := registry.Passing(ctx, tx, b); err != nil || passing {
			return err
		}
		// Nothing of the DAG is committed from here on: what the gate saw may have been overtaken since.
		p := progress{}
		if err := d.reconcileBuild(ctx, tx, b, jobs, &p, now); err != nil {
			return err
		}
		if p.open {
			if _, err := d.catchesUp(ctx, tx, b, jobs, &p); err != nil {
				return err
			}
		}
		if ready, _ := gate(p); !ready {
			d.wake.send(topicClaim)
			return nil
		}
		if b.Status == registry.Building {
			if changed, err := registry.MarkReady(ctx, tx, b, now); err != nil || !changed {
				return err
			}
		}
		if !b.Activate {
			return nil
		}
		reason := registry.ByDeploy
		if b.Status == registry.Ready {
			reason = registry.ByPromote
		}
		moved, err = d.swap(ctx, tx, b, reason, b.CreatedBy, remade, now)
		return err
	})
	if fault.Is(err, fault.Conflict) {
		return d.failBuild(ctx, b, err.Error(), now)
	}
	if err != nil || !moved {
		return err
	}
	d.Log.Info("cut over", "dag", b.DAG, "version", b.Number)
	d.wake.all()
	return nil
}

// swapTries bounds how often a swap is tried that gave way to readers of a view it has to make anew.
const swapTries = 10

// inSwapTx runs a swap's transaction, again where it gave way to others.
func inSwapTx(ctx context.Context, pool *pgxpool.Pool, fn func(ctx context.Context, tx pgx.Tx) error) (err error) {
	for range swapTries {
		err = pg.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '5s'`); err != nil {
				return err
			}
			return fn(ctx, tx)
		})
		if !fault.Is(err, fault.Unavailable) {
			return err
		}
	}
	return err
}

// swap is what every cutover does in its one transaction, whichever way it goes: the pointers and names move, the sources
// become those of the version, open tasks that nobody wants any more end, and the views that could not show two
// generations at once are made anew.
func (d *Dispatcher) swap(ctx context.Context, tx pgx.Tx, b registry.Build, reason, actor string, remade []storage.View, now time.Time) (bool, error) {
	began := time.Now()
	pointers, err := registry.PointersToMove(ctx, tx, b)
	if err != nil {
		return false, err
	}
	queues, err := queueMoves(ctx, tx, b)
	if err != nil {
		return false, err
	}
	moved, err := registry.Cutover(ctx, tx, b, reason, actor, now)
	if err != nil || !moved {
		return false, err
	}
	for _, m := range queues {
		if err := d.carryQueue(ctx, tx, m, now); err != nil {
			return false, err
		}
	}
	if err := carryEffects(ctx, tx, b.OrgID, pointers, now); err != nil {
		return false, err
	}
	if err := beginEffects(ctx, tx, b, now); err != nil {
		return false, err
	}
	jobs, err := d.Registry.VersionJobs(ctx, tx, b.ID)
	if err != nil {
		return false, err
	}
	if err := d.syncSources(ctx, tx, b, jobs, reason, now); err != nil {
		return false, err
	}
	if err := d.cancelUnused(ctx, tx, b.OrgID, b.DAG, reasonSuperseded, now); err != nil {
		return false, err
	}
	if err := tellOtherDAGs(ctx, tx, b, now); err != nil {
		return false, err
	}
	for _, v := range remade {
		if err := d.Storage.ReplaceView(ctx, tx, v); err != nil {
			return false, err
		}
	}
	pg.AfterCommit(ctx, func() { d.metrics.cutovers.Observe(time.Since(began).Seconds()) })
	return true, nil
}

// tellOtherDAGs has the jobs of other DAGs that read this one's datasets compared, whole, with the generations they see
// from now on. They follow in place and by themselves; the outbox row makes sure of it whatever crashes.
func tellOtherDAGs(ctx context.Context, tx pgx.Tx, b registry.Build, now time.Time) error {
	generations, err := registry.ReadElsewhere(ctx, tx, b)
	if err != nil || len(generations) == 0 {
		return err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO outbox (org_id, kind, payload, available_at, created_at) VALUES ($1, 'route_event', $2, $3, $3)`,
		b.OrgID, routePayload{Generations: generations}, now); err != nil {
		return fmt.Errorf("tell other DAGs of the swap of %s: %w", b.DAG, err)
	}
	return nil
}

// Rollback cuts over to a version that served before: the one before the active one, or the one numbered to. Nothing is
// computed before the swap; afterwards the old generations catch up with what arrived since they were replaced.
func (d *Dispatcher) Rollback(ctx context.Context, caller authz.Caller, dagName string, req RollbackRequest) (registry.Version, error) {
	now := time.Now()
	b, err := d.rollbackTarget(ctx, caller, dagName, req.To)
	if err != nil {
		return registry.Version{}, fmt.Errorf("roll back %s: %w", dagName, err)
	}
	b.CancelTasks = req.CancelTasks
	remade, err := d.defineViews(ctx, b)
	if err != nil {
		return registry.Version{}, fmt.Errorf("roll back %s: %w", dagName, err)
	}
	// As the owner, like every cutover, because views may have to be made anew.
	err = inSwapTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := registry.LockSwap(ctx, tx, caller.OrgID, dagName); err != nil {
			return err
		}
		moved, err := d.swap(ctx, tx, b, registry.ByRollback, caller.Actor, remade, now)
		if err != nil {
			return err
		}
		if !moved {
			return fault.New(fault.Conflict, "version %d of %s is active, or being built, by now", b.Number, dagName).WithHint("look at `dagctl history %s` and try again", dagName)
		}
		return authz.Audit(ctx, tx, caller, "dag.rollback", fmt.Sprintf("%s v%d", dagName, b.Number), nil)
	})
	if err != nil {
		return registry.Version{}, fmt.Errorf("roll back %s: %w", dagName, err)
	}
	d.Log.Info("rolled back", "dag", dagName, "version", b.Number, "actor", caller.Actor)
	d.wake.all()
	d.catchUp(b)
	version, err := d.Registry.Version(ctx, caller, dagName, b.Number)
	return version.Version, err
}

// rollbackTarget finds the version to go back to.
func (d *Dispatcher) rollbackTarget(ctx context.Context, caller authz.Caller, dagName string, to *int) (b registry.Build, err error) {
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		b, err = registry.RollbackTarget(ctx, tx, caller.OrgID, dagName, to)
		return err
	})
	return b, err
}

// behindAtOnce bounds how many rollbacks wait for their catching up to begin; more are left to the next sweep.
const behindAtOnce = 16

// catchUp has the version's generations brought up to date, which were not kept so while another version served. It only
// hurries what the next sweep would do.
func (d *Dispatcher) catchUp(b registry.Build) {
	select {
	case d.behind <- b:
	default:
	}
}

// catchUpBehind makes the tasks that generations which serve again are behind by, until ctx ends.
func (d *Dispatcher) catchUpBehind(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-d.behind:
			if err := d.catchUpVersion(ctx, b); err != nil && ctx.Err() == nil {
				d.Log.Warn("catching up is left to the next sweep", "dag", b.DAG, "version", b.Number, "error", err)
			}
		}
	}
}

func (d *Dispatcher) catchUpVersion(ctx context.Context, b registry.Build) error {
	var acting map[uuid.UUID]registry.Acting
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		acting, err = d.Registry.JobsInWork(ctx, tx, &b.ID)
		return err
	})
	if err != nil {
		return err
	}
	for _, a := range acting {
		if a.Job.Def.Activation != dag.ActivationReactive {
			continue
		}
		if err := d.reconcileJob(ctx, a, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// Promote cuts over to a version that is ready and waits, once it has caught up; a version that is still being built is
// cut over to as soon as it is ready.
func (d *Dispatcher) Promote(ctx context.Context, caller authz.Caller, dagName string, number int) (registry.Version, error) {
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := registry.LockDAG(ctx, tx, caller.OrgID, dagName); err != nil {
			return err
		}
		if err := registry.Activate(ctx, tx, caller.OrgID, dagName, number); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "dag.promote", fmt.Sprintf("%s v%d", dagName, number), nil)
	})
	if err != nil {
		return registry.Version{}, fmt.Errorf("promote %s: %w", dagName, err)
	}
	d.wake.send(topicBuild)
	version, err := d.Registry.Version(ctx, caller, dagName, number)
	return version.Version, err
}

// Abandon stops building a version. What it built stays, for when the document is deployed again.
func (d *Dispatcher) Abandon(ctx context.Context, caller authz.Caller, dagName string) (registry.Version, error) {
	var number int
	now := time.Now()
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		if err := registry.LockDAG(ctx, tx, caller.OrgID, dagName); err != nil {
			return err
		}
		if number, err = registry.AbandonBuild(ctx, tx, caller.OrgID, dagName, "abandoned by "+caller.Actor); err != nil {
			return err
		}
		if err := d.cancelUnused(ctx, tx, caller.OrgID, dagName, reasonAbandoned, now); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "dag.abandon", fmt.Sprintf("%s v%d", dagName, number), nil)
	})
	if err != nil {
		return registry.Version{}, fmt.Errorf("abandon %s: %w", dagName, err)
	}
	d.wake.send(topicClaim)
	version, err := d.Registry.Version(ctx, caller, dagName, number)
	return version.Version, err
}

// defineViews has the stable views of published Postgres tables read the new generation once the pointer is at it. A view
// that cannot show two generations with different columns is returned: it is to be made anew in the swap.
func (d *Dispatcher) defineViews(ctx context.Context, b registry.Build) (remade []storage.View, err error) {
	var views []storage.View
	var moving map[string]bool
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		if views, err = d.Registry.Views(ctx, tx, b); err != nil {
			return err
		}
		remade, moving, err = d.movingViews(ctx, tx, b)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, v := range views {
		if moving[v.Name] { // a view is of one DAG: it cannot show the other's rows until the swap
			v.Generations = v.Generations[:1]
			remade = append(remade, v)
			continue
		}
		err := d.Storage.EnsureView(ctx, v)
		if fault.Is(err, fault.Conflict) {
			v.Generations = v.Generations[:1]
			remade = append(remade, v)
		} else if err != nil {
			return nil, err
		}
	}
	return remade, nil
}

// cancelUnused ends the open tasks of a DAG's origins that no version in work uses any more. Should one be wanted again,
// after a rollback or another deploy, its row is taken up again. Running ones see it on their next heartbeat.
func (d *Dispatcher) cancelUnused(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, reason string, now time.Time) error {
	unused, err := registry.UnusedOrigins(ctx, tx, org, dagName)
	if err != nil || len(unused) == 0 {
		return err
	}
	if _, err := tx.Exec(ctx, `UPDATE leases SET cancel_requested = true WHERE org_id = $1 AND job_id = ANY($2)`, org, unused); err != nil {
		return fmt.Errorf("request cancellation: %w", err)
	}
	rows, err := tx.Query(ctx, `
		WITH gone AS (
			DELETE FROM ready WHERE org_id = $1 AND job_id = ANY($2) RETURNING task_id, true AS held),
		left_waiting AS (
			DELETE FROM waiting WHERE org_id = $1 AND job_id = ANY($2) AND reason <> 'dead' RETURNING task_id, false AS held),
		done AS (
			UPDATE tasks t SET status = 'Canceled', reason = $3, completed_at = $4, next_retry_at = NULL, version = version + 1
			FROM (SELECT * FROM gone UNION ALL SELECT * FROM left_waiting) AS g
			WHERE t.id = g.task_id AND t.status IN ('Queued', 'Failed')
			RETURNING t.id, t.org_id, t.attempt, t.limits, g.held),
		told AS (
			INSERT INTO task_events (id, org_id, task_id, attempt, to_status, actor, detail, at)
			SELECT uuid_v7(), org_id, id, attempt, 'Canceled', 'SYSTEM', jsonb_build_object('reason', $3::text), $4 FROM done)
		SELECT limits FROM done WHERE held AND limits <> '{}'`, org, unused, reason, now)
	if err != nil {
		return fmt.Errorf("cancel unused tasks: %w", err)
	}
	limits, err := pgx.CollectRows(rows, pgx.RowTo[[]string])
	if err != nil {
		return fmt.Errorf("cancel unused tasks: %w", err)
	}
	freed := map[limit]int{}
	for _, keys := range limits {
		countLimits(freed, org, keys)
	}
	return d.releaseAll(ctx, tx, freed, now)
}
