package dispatcher

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// What is slow and needs doing once over all dispatchers is a River job, enqueued by its elected leader. The task path
// is never River's: one owner of retries and fences.

// reconcileArgs asks for one sweep over everything that is derived, for hints that were lost.
type reconcileArgs struct{}

func (reconcileArgs) Kind() string { return "reconcile" }

// retentionArgs asks for the removal of rows that nobody needs any more.
type retentionArgs struct{}

func (retentionArgs) Kind() string { return "retention" }

type reconcileWorker struct {
	river.WorkerDefaults[reconcileArgs]
	d       *Dispatcher
	running sync.Mutex
	next    time.Time // not before
}

func (w *reconcileWorker) Work(ctx context.Context, _ *river.Job[reconcileArgs]) error {
	if !w.running.TryLock() {
		return nil
	}
	defer w.running.Unlock()
	began := time.Now()
	if began.Before(w.next) {
		return nil
	}
	err := w.d.Reconcile(ctx, began)
	w.next = time.Now().Add(reconcileShare * time.Since(began))
	return err
}

// reconcileShare bounds the part of the time that a process spends on comparing everything: one in so many.
const reconcileShare = 50

type retentionWorker struct {
	river.WorkerDefaults[retentionArgs]
	d *Dispatcher
}

func (w *retentionWorker) Work(ctx context.Context, _ *river.Job[retentionArgs]) error {
	return errors.Join(w.d.sweepRetention(ctx, time.Now()), w.d.sweepExpired(ctx, time.Now()), w.d.replaceStrays(ctx, time.Now()))
}

const (
	reconcileEvery = 30 * time.Second
	retentionEvery = time.Hour
	gcEvery        = time.Hour
)

// runPeriodic runs River's client until ctx ends. Where the database is away just when the client starts, it starts later:
// everything else here goes on without it.
func (d *Dispatcher) runPeriodic(ctx context.Context) error {
	for {
		err := d.runPeriodicOnce(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		d.Log.Warn("periodic sweeps cannot start yet, will try again", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(jitter(d.Poll)):
		}
	}
}

func (d *Dispatcher) runPeriodicOnce(ctx context.Context) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, &reconcileWorker{d: d})
	river.AddWorker(workers, &retentionWorker{d: d})
	river.AddWorker(workers, &gcWorker{d: d})
	once := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true, ByPeriod: reconcileEvery}}
	client, err := river.NewClient(riverpgxv5.New(d.Pool), &river.Config{
		ID:      d.WorkerID,
		Logger:  slog.New(d.Log.Handler().WithAttrs([]slog.Attr{slog.String("part", "periodic")})),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2}},
		Workers: workers,
		PeriodicJobs: []*river.PeriodicJob{
			river.NewPeriodicJob(river.PeriodicInterval(reconcileEvery),
				func() (river.JobArgs, *river.InsertOpts) { return reconcileArgs{}, once }, nil),
			river.NewPeriodicJob(river.PeriodicInterval(retentionEvery),
				func() (river.JobArgs, *river.InsertOpts) { return retentionArgs{}, once }, nil),
			river.NewPeriodicJob(river.PeriodicInterval(gcEvery),
				func() (river.JobArgs, *river.InsertOpts) { return gcArgs{}, once }, nil),
		},
	})
	if err != nil {
		return fmt.Errorf("periodic sweeps: %w", err)
	}
	// Started under a context of its own: ending it would cut jobs off, where Stop lets them finish.
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("start periodic sweeps: %w", err)
	}
	<-ctx.Done()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := client.Stop(stopping); err != nil {
		return errors.Join(ctx.Err(), client.StopAndCancel(context.WithoutCancel(ctx)))
	}
	return ctx.Err()
}

// Reconcile compares every output partition of every reactive job that serves with what its inputs have, and makes the
// tasks that are wanted. It is what makes the loss of any hint harmless.
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
		if err := d.reconcileJob(ctx, a, now); err != nil {
			failed = append(failed, fmt.Errorf("reconcile %s: %w", a.Job.Address(), err))
		}
	}
	return errors.Join(append(failed, d.reviewLimits(ctx, acting, now))...)
}

func (d *Dispatcher) reconcileJob(ctx context.Context, a registry.Acting, now time.Time) error {
	if !a.Live && a.Job.Acts() {
		return nil
	}
	var targets []target
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		targets, err = d.allTargets(ctx, tx, a.Job)
		return err
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(targets, reconcileBatch) {
		var made created
		err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
			if err := registry.LockDAGsShared(ctx, tx, []string{a.Job.LockKey()}); err != nil {
				return err
			}
			if err := lockOrigins(ctx, tx, ids(a.Job.Origin)); err != nil {
				return err
			}
			// What was in work when the targets were listed may have been abandoned, or replaced, before the locks.
			acting, err := d.Registry.ActingJobs(ctx, tx, ids(a.Job.Origin))
			if _, used := acting[a.Job.Origin]; err != nil || !used {
				return err
			}
			findings, err := d.examine(ctx, tx, some)
			if err != nil {
				return err
			}
			made, err = d.createFound(ctx, tx, findings, map[uuid.UUID]bool{a.Job.Origin: a.Live}, now)
			return err
		})
		if err != nil {
			return err
		}
		d.wake.send(made.topics()...)
	}
	return nil
}

// reconcileBatch is how many output partitions are compared under one lock of their origin, which routers wait for.
const reconcileBatch = 500

// replaceStrays puts open tasks back that are in no set. No transaction leaves one behind; this is for rows that were
// edited by hand or restored.
func (d *Dispatcher) replaceStrays(ctx context.Context, now time.Time) error {
	return pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT t.id, t.org_id, t.job_id, t.slot, t.runtime, t.needs, (extract(epoch FROM t.created_at) * 1000)::bigint, t.limits FROM tasks t
			WHERE t.status = 'Queued' AND t.created_at < $1
			  AND NOT EXISTS (SELECT FROM ready r WHERE r.task_id = t.id) AND NOT EXISTS (SELECT FROM waiting w WHERE w.task_id = t.id)
			LIMIT $2 FOR UPDATE SKIP LOCKED`, now.Add(-time.Minute), sweepBatch)
		if err != nil {
			return fmt.Errorf("find stray tasks: %w", err)
		}
		strays, err := collectPlacements(rows)
		if err != nil || len(strays) == 0 {
			return err
		}
		origins := make([]uuid.UUID, len(strays))
		for i, p := range strays {
			origins[i] = p.job
		}
		if err := lockOrigins(ctx, tx, origins); err != nil {
			return err
		}
		d.Log.Warn("open tasks were in no set and are placed again", "tasks", len(strays))
		// One that finds another queued in its slot is left for when that has run.
		placing, _, err := takeSlots(ctx, tx, strays)
		if err != nil {
			return err
		}
		return d.place(ctx, tx, placing, now)
	})
}

// firstID is the lowest id that a row made at a time can have: ids begin with their time, so that what is old is found at
// one end of the primary key.
func firstID(at time.Time) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:8], uint64(at.UnixMilli())<<16)
	return id
}
