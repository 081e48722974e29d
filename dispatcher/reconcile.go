package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Reconciling repeats what the way of an event has done already, without any event: it compares outputs with inputs,
// and tasks with the sets that hold them. It makes the loss of any hint harmless.

// reconcileBatch is how many output partitions are compared under one lock of their origin, which routers wait for.
const reconcileBatch = 500

// Reconcile compares every output partition of every reactive job in work with its inputs, and makes the tasks that are
// missing.
func (d *Dispatcher) Reconcile(ctx context.Context, now time.Time) error {
	var acting map[uuid.UUID]registry.Acting
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		acting, err = d.Registry.JobsInWork(ctx, tx, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("reconcile: %w", err)
	}

	var failed []error
	for _, a := range acting {
		if a.Job.Def.Activation != dag.ActivationReactive {
			continue
		}
		if err := d.ReconcileJob(ctx, a, now); err != nil {
			failed = append(failed, fmt.Errorf("reconcile %s: %w", a.Job.Address(), err))
		}
	}
	return errors.Join(append(failed, d.Tasks.ReviewLimits(ctx, acting, now))...)
}

// ReconcileJob compares every output partition of one job with its inputs, makes the tasks that are missing, and ends
// the dead ones that have nothing left to do.
func (d *Dispatcher) ReconcileJob(ctx context.Context, a registry.Acting, now time.Time) error {
	if !a.Live && a.Job.Acts() {
		return nil
	}

	var targets []stale.Target
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		targets, err = d.Stale.AllTargets(ctx, tx, a.Job)
		return err
	})
	if err != nil {
		return err
	}

	for some := range slices.Chunk(targets, reconcileBatch) {
		var made tasks.Created
		err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
			if err := registry.LockDAGShared(ctx, tx, a.Job.OrgID, a.Job.DAG); err != nil {
				return err
			}
			if err := tasks.LockOrigins(ctx, tx, []uuid.UUID{a.Job.Origin}); err != nil {
				return err
			}

			// The job may have been abandoned or replaced between the list of its targets and the locks.
			acting, err := d.Registry.ActingJobs(ctx, tx, []uuid.UUID{a.Job.Origin})
			if _, used := acting[a.Job.Origin]; err != nil || !used {
				return err
			}
			findings, err := d.Stale.Examine(ctx, tx, some)
			if err != nil {
				return err
			}
			if _, err := d.EndDone(ctx, tx, findings, now); err != nil {
				return err
			}
			around := NewSurroundings(findings, map[uuid.UUID]bool{a.Job.Origin: a.Live})
			made, err = d.CreateFound(ctx, tx, findings, around, now)
			return err
		})
		if err != nil {
			return err
		}
		d.Wakeups.Send(made.Topics()...)
	}
	return nil
}

// PlaceStrays places queued tasks that are in neither the ready nor the waiting set. No transaction leaves such a task
// behind; PlaceStrays mends rows that were edited by hand or restored.
func (d *Dispatcher) PlaceStrays(ctx context.Context, now time.Time) error {
	return pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT t.id, t.org_id, t.job_id, t.slot, t.runtime, t.needs,
				(extract(epoch FROM t.created_at) * 1000)::bigint, t.limits
			FROM tasks t
			WHERE t.status = 'Queued' AND t.created_at < $1
			  AND NOT EXISTS (SELECT FROM ready r WHERE r.task_id = t.id)
			  AND NOT EXISTS (SELECT FROM waiting w WHERE w.task_id = t.id)
			LIMIT $2 FOR UPDATE SKIP LOCKED`, now.Add(-time.Minute), sweepBatch)
		if err != nil {
			return fmt.Errorf("find stray tasks: %w", err)
		}
		strays, err := tasks.CollectPlacements(rows)
		if err != nil || len(strays) == 0 {
			return err
		}
		origins := make([]uuid.UUID, len(strays))
		for i, p := range strays {
			origins[i] = p.Origin
		}
		if err := tasks.LockOrigins(ctx, tx, origins); err != nil {
			return err
		}

		d.Log.Warn("queued tasks were in no set and are placed again", "tasks", len(strays))
		// A task whose slot has another queued task is left until that one has run.
		placing, _, err := tasks.CheckSlots(ctx, tx, strays)
		if err != nil {
			return err
		}
		return d.Tasks.Place(ctx, tx, tasks.NewRoom(nil), placing, now)
	})
}
