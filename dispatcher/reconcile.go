package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Reconciling repeats what the way of an event has done already, without any event: it compares outputs with inputs,
// and tasks with the sets that hold them. It makes the loss of any hint harmless.

// reconcileBatch is how many output partitions are compared under one lock of their origin, which routers wait for.
const reconcileBatch = 500

// ReviewLimits admits tasks for which there is room but no release to admit them.
func (d *Dispatcher) ReviewLimits(ctx context.Context, now time.Time) error {
	var acting map[uuid.UUID]registry.Acting
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		acting, err = d.Registry.JobsInWork(ctx, tx, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("review limits: %w", err)
	}
	return d.Tasks.ReviewLimits(ctx, acting, now)
}

// ReactiveJobs returns the reactive jobs in work, in the order of their origins.
func (d *Dispatcher) ReactiveJobs(ctx context.Context) (jobs []registry.Acting, err error) {
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		acting, err := d.Registry.JobsInWork(ctx, tx, nil)
		jobs = slices.DeleteFunc(slices.Collect(maps.Values(acting)), func(a registry.Acting) bool {
			return a.Job.Def.Activation != dag.ActivationReactive
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list reactive jobs: %w", err)
	}

	slices.SortFunc(jobs, func(a, b registry.Acting) int { return slices.Compare(a.Job.Origin[:], b.Job.Origin[:]) })
	return jobs, nil
}

// KindFanOut is the kind of the work items that look at every output of a job, in batches: after a change of an input
// that many outputs are made from. The object is the job's origin, the position the last output that was looked at.
const KindFanOut = "fan out"

// FanOut asks the background to look at every output of some origins.
func FanOut(b *pg.Batch, origins []uuid.UUID) {
	objects := make([]string, len(origins))
	for i, origin := range origins {
		objects[i] = origin.String()
	}
	workitems.Ask(b, KindFanOut, objects)
}

// ReconcileJob compares every output partition of one job with its inputs, makes the tasks that are missing, and ends
// the dead ones that have nothing left to do.
func (d *Dispatcher) ReconcileJob(ctx context.Context, a registry.Acting, now time.Time) error {
	r, err := d.NewReconciling(ctx, a)
	for position, over := "", false; err == nil && !over; {
		position, over, err = r.Next(ctx, position, now)
	}
	return err
}

// Reconciling is the comparison of one job's outputs with their inputs, in batches.
type Reconciling struct {
	d       *Dispatcher
	job     registry.Acting
	targets []stale.Target // in the order of their keys
}

// NewReconciling lists what is to be compared.
func (d *Dispatcher) NewReconciling(ctx context.Context, a registry.Acting) (*Reconciling, error) {
	r := &Reconciling{d: d, job: a}
	if !a.Live && a.Job.Acts() {
		return r, nil
	}
	return r, pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		r.targets, err = d.Stale.AllTargets(ctx, tx, a.Job)
		return err
	})
}

// ReconcilingOf is NewReconciling for the job that acts for an origin; nil: no job does.
func (d *Dispatcher) ReconcilingOf(ctx context.Context, origin uuid.UUID) (r *Reconciling, err error) {
	var acting map[uuid.UUID]registry.Acting
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		acting, err = d.Registry.ActingJobs(ctx, tx, []uuid.UUID{origin})
		return err
	})
	a, used := acting[origin]
	if err != nil || !used || a.Job.Def.Activation != dag.ActivationReactive {
		return nil, err
	}
	return d.NewReconciling(ctx, a)
}

// Next compares the outputs that come after a position, as many as one lock of their origin allows.
func (r *Reconciling) Next(ctx context.Context, position string, now time.Time) (next string, over bool, err error) {
	i := 0
	if position != "" {
		found := false
		i, found = slices.BinarySearchFunc(r.targets, position, func(t stale.Target, key string) int {
			return strings.Compare(t.Key, key)
		})
		if found {
			i++
		}
	}
	some := r.targets[i:min(i+reconcileBatch, len(r.targets))]
	if len(some) == 0 {
		return position, true, nil
	}
	return some[len(some)-1].Key, i+len(some) == len(r.targets), r.d.reconcileSome(ctx, r.job, some, now)
}

// reconcileSome compares some outputs of a job under the lock of its origin.
func (d *Dispatcher) reconcileSome(
	ctx context.Context, a registry.Acting, some []stale.Target, now time.Time,
) error {
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
	if err == nil {
		d.Wakeups.Send(made.Topics()...)
	}
	return err
}

// PlaceStrays looks at the tasks that come after a position, and places the queued ones that are in neither the ready
// nor the waiting set. No transaction leaves such a task behind; PlaceStrays mends rows that were edited by hand or
// restored.
func (d *Dispatcher) PlaceStrays(
	ctx context.Context, position string, now time.Time,
) (done workitems.Progress, err error) {
	var (
		strays []uuid.UUID
		looked int
	)
	err = d.Pool.QueryRow(ctx, `
		WITH seen AS (
			SELECT id, status FROM tasks WHERE id > coalesce(NULLIF($1, '')::uuid, $2) AND id < $3 ORDER BY id LIMIT $4)
		SELECT coalesce((SELECT id::text FROM seen ORDER BY id DESC LIMIT 1), $1), (SELECT count(*) FROM seen),
			(SELECT coalesce(array_agg(id), '{}') FROM seen s WHERE status = 'Queued'
				AND NOT EXISTS (SELECT FROM ready r WHERE r.task_id = s.id)
				AND NOT EXISTS (SELECT FROM waiting w WHERE w.task_id = s.id))`,
		position, uuid.Nil, tasks.LowestIDAt(now.Add(-time.Minute)), straysBatch).
		Scan(&done.Position, &looked, &strays)
	if err != nil {
		return done, fmt.Errorf("find stray tasks: %w", err)
	}

	done.Rows, done.Over = int64(len(strays)), looked < straysBatch
	if len(strays) == 0 {
		return done, nil
	}
	return done, pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		return d.placeStrays(ctx, tx, strays, now)
	})
}

// straysBatch is how many tasks are looked at in one statement.
const straysBatch = 1000

// placeStrays places those tasks of a list that are still in no set.
func (d *Dispatcher) placeStrays(ctx context.Context, tx pgx.Tx, list []uuid.UUID, now time.Time) error {
	rows, err := tx.Query(ctx, `
		SELECT t.id, t.org_id, t.job_id, t.slot, t.runtime, t.needs,
			(extract(epoch FROM t.created_at) * 1000)::bigint, t.limits
		FROM tasks t
		WHERE t.id = ANY($1) AND t.status = 'Queued'
		  AND NOT EXISTS (SELECT FROM ready r WHERE r.task_id = t.id)
		  AND NOT EXISTS (SELECT FROM waiting w WHERE w.task_id = t.id)
		ORDER BY t.id FOR UPDATE SKIP LOCKED`, list)
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
}
