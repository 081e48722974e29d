package builds

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/registry/deploy"
)

// RollbackRequest names the version to go back to.
type RollbackRequest struct {
	To          *int `json:"to,omitempty" minimum:"1" maximum:"2147483647" doc:"The one before the active version, where it is left out"`
	CancelTasks bool `json:"cancel_tasks,omitempty" doc:"Cancel the open tasks of manual, timer and webhook jobs that this version does not have; refused with 409 where there are any and this is not said"`
	// Each is the consent of that name to what others would miss.
	AllowBreaking bool `json:"allow_breaking,omitempty" doc:"Go back although jobs of other DAGs read datasets or columns that the version does not have; refused with 409 where there are any and this is not said"`
	AllowRemovals bool `json:"allow_removals,omitempty" doc:"Let partitions go that are served and that were purged from the version; refused with 409 where there are any and this is not said"`
	AllowMoves    bool `json:"allow_moves,omitempty" doc:"Let published names move to other datasets, also from and to other DAGs; refused with 409 where there are any and this is not said"`
}

// consents returns what the person who rolls back agrees to.
func (r RollbackRequest) consents() []registry.Consent {
	return contract.Agreed{CancelTasks: r.CancelTasks, AllowRemovals: r.AllowRemovals, AllowMoves: r.AllowMoves,
		AllowBreaking: r.AllowBreaking}.Consents()
}

// Rollback cuts over to a version that served before: the one before the active one, or the one that the request names.
// Nothing is computed before the swap; afterwards the old generations catch up with what arrived since they were
// replaced. What is being built meanwhile does not undo it, but waits.
func (bs *Builds) Rollback(
	ctx context.Context, caller authz.Caller, dagName string, req RollbackRequest,
) (registry.Version, error) {
	now := clock.Now()
	b, err := bs.rollbackTarget(ctx, caller, dagName, req.To)
	if err != nil {
		return registry.Version{}, fmt.Errorf("roll back %s: %w", dagName, err)
	}
	b.Consents = req.consents()

	// As the owner, like every cutover, because views may have to be replaced.
	err = bs.InSwapTx(ctx, b, bs.Patience, func(ctx context.Context, tx pgx.Tx, ready Prepared) error {
		if err := deploy.LockSwap(ctx, tx, b); err != nil {
			return err
		}
		lost, err := registry.PurgedRemovals(ctx, tx, b.ID)
		if err != nil {
			return err
		}
		if _, err := bs.deployer.Judge(ctx, tx, b, lost, true); err != nil {
			return err
		}
		if err := requireReadable(ctx, tx, caller, b); err != nil { // it may have been closed since it was found
			return err
		}
		if err := registry.TakeAuthority(ctx, tx, caller, b.ID); err != nil {
			return err
		}

		if err := deploy.HoldBuilds(ctx, tx, b, caller.Actor); err != nil {
			return err
		}

		before, err := registry.ActiveNumber(ctx, tx, caller.OrgID, dagName)
		if err != nil {
			return err
		}
		moved, err := bs.Swap(ctx, tx, b, deploy.ByRollback, caller.Actor, ready, now)
		if err != nil {
			return err
		}
		if !moved {
			return fault.New(fault.Conflict, "version %d of %s is active or being built by now", b.Number, dagName).
				WithHint("look at `dagctl history %s` and try again", dagName)
		}
		return authz.Audit(ctx, tx, caller, "dag.rollback", fmt.Sprintf("%s v%d", dagName, b.Number),
			authz.Change{Before: before, After: b.Number})
	})
	if err != nil {
		return registry.Version{}, fmt.Errorf("roll back %s: %w", dagName, err)
	}

	bs.log.Info("rolled back", "dag", dagName, "version", b.Number, "actor", caller.Actor)
	bs.wake.All()
	bs.catchUp(b)

	version, err := bs.registry.Version(ctx, caller, dagName, b.Number)
	return version.Version, err
}

// rollbackTarget finds the version to go back to.
func (bs *Builds) rollbackTarget(
	ctx context.Context, caller authz.Caller, dagName string, to *int,
) (b registry.Build, err error) {
	err = pg.InOrgTx(ctx, bs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if b, err = deploy.RollbackTarget(ctx, tx, caller.OrgID, dagName, to); err != nil {
			return err
		}
		return requireReadable(ctx, tx, caller, b)
	})
	return b, err
}

// requireReadable refuses a version that reads or makes what the caller may not read: with it, generations would serve
// again into which the caller may not look.
func requireReadable(ctx context.Context, tx pgx.Tx, caller authz.Caller, b registry.Build) error {
	if err := registry.RequireReadable(ctx, tx, caller, b.ID); err != nil {
		return err
	}
	hidden, err := registry.HiddenVersions(ctx, tx, caller, []uuid.UUID{b.ID})
	if err != nil || !hidden[b.ID] {
		return err
	}
	return fault.New(fault.Forbidden, "version %d makes what %s may not read", b.Number, caller.Actor).
		WithHint("ask an admin of the org %s for the org roles that may read it", caller.OrgSlug)
}

// behindAtOnce bounds how many rollbacks wait to catch up; the next sweep takes any more.
const behindAtOnce = 16

// catchUp asks for the version's generations to be brought up to date, which they were not while another version
// served. The next sweep would do it too, only later.
func (bs *Builds) catchUp(b registry.Build) {
	select {
	case bs.behind <- b:
	default:
	}
}

// CatchUpBehind makes the tasks that generations lack when they serve again, until ctx ends.
func (bs *Builds) CatchUpBehind(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-bs.behind:
			if err := bs.catchUpVersion(ctx, b); err != nil && ctx.Err() == nil {
				bs.log.Warn("catching up is left to the next sweep", "dag", b.DAG, "version", b.Number, "error", err)
			}
		}
	}
}

func (bs *Builds) catchUpVersion(ctx context.Context, b registry.Build) error {
	var acting map[uuid.UUID]registry.Acting
	err := pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		acting, err = bs.registry.JobsInWork(ctx, tx, &b.ID)
		return err
	})
	if err != nil {
		return err
	}

	var reactive []registry.Acting
	for _, a := range acting {
		if a.Job.Def.Activation == dag.ActivationReactive {
			reactive = append(reactive, a)
		}
	}
	for some := range slices.Chunk(reactive, catchUpBatch) {
		behind, err := bs.anyStale(ctx, some)
		if err != nil {
			return err
		}
		for _, a := range some {
			if !behind[a.Job.ID] {
				continue
			}
			if err := bs.dispatcher.ReconcileJob(ctx, a, clock.Now()); err != nil {
				return err
			}
		}
	}
	return nil
}

// catchUpBatch is how many jobs are looked at together.
const catchUpBatch = 50

// anyStale returns, by their rows, those of the jobs that have a stale output partition. It takes no locks, since most
// jobs have none: what changes meanwhile is an event, which is routed.
func (bs *Builds) anyStale(ctx context.Context, jobs []registry.Acting) (map[uuid.UUID]bool, error) {
	rows := make([]*registry.Job, len(jobs))
	for i, a := range jobs {
		rows[i] = a.Job
	}

	behind := map[uuid.UUID]bool{}
	err := pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		targets, err := bs.stale.AllTargets(ctx, tx, rows...)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(targets, lookBatch) {
			findings, err := bs.stale.Examine(ctx, tx, some)
			if err != nil {
				return err
			}
			for _, f := range findings {
				behind[f.Job.ID] = behind[f.Job.ID] || f.Verdict == stale.Stale
			}
		}
		return nil
	})
	return behind, err
}
