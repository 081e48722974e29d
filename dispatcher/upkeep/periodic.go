package upkeep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// River's elected leader asks once in a while, as a River job, for what removes data. The work itself is work items,
// and tasks never go through River: retries and fences have one owner.

// removalEvery is how often each org's garbage and expired partitions are removed.
const removalEvery = time.Hour

// removalArgs asks for that in all orgs.
type removalArgs struct{}

func (removalArgs) Kind() string { return "removal" }

type removalWorker struct {
	river.WorkerDefaults[removalArgs]
	upkeep *Upkeep
}

func (w *removalWorker) Work(ctx context.Context, _ *river.Job[removalArgs]) error {
	return w.upkeep.askForRemoval(ctx)
}

// askForRemoval asks for a collection of garbage and for the removal of expired partitions, in each org.
func (u *Upkeep) askForRemoval(ctx context.Context) error {
	orgs, err := u.orgsWithData(ctx)
	if err != nil {
		return err
	}
	return pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
		b := new(pg.Batch)
		workitems.Ask(b, kindExpire, orgs)
		workitems.Ask(b, kindGC, orgs)
		return b.Send(ctx, tx)
	})
}

// orgsWithData returns the objects of work items of all orgs that have data.
func (u *Upkeep) orgsWithData(ctx context.Context) (objects []string, err error) {
	err = pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
		orgs, err := registry.OrgsWithData(ctx, tx)
		objects = objects[:0]
		for _, org := range orgs {
			objects = append(objects, org.String())
		}
		return err
	})
	return objects, err
}

// RemoveAll collects garbage and removes expired partitions in all orgs now.
func (u *Upkeep) RemoveAll(ctx context.Context, now time.Time) error {
	orgs, err := u.orgsWithData(ctx)
	for _, kind := range []string{kindExpire, kindGC} {
		for _, org := range orgs {
			err = errors.Join(err, u.items.Pass(ctx, kind, org, now))
		}
	}
	return err
}

// runPeriodic runs River's client until ctx ends. If the database is away when the client starts, it tries again later;
// the other loops do not wait for it.
func (u *Upkeep) runPeriodic(ctx context.Context) error {
	for {
		err := u.runPeriodicOnce(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		u.log.Warn("periodic sweeps cannot start yet, will try again", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wakeup.Jitter(u.poll)):
		}
	}
}

// OfRiver marks what River's client logs.
var OfRiver = slog.String("part", "periodic")

// runPeriodicOnce starts River's client, and stops it when ctx ends.
func (u *Upkeep) runPeriodicOnce(ctx context.Context) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, &removalWorker{upkeep: u})

	// Asking at the start, too, but once in each period, does not depend on how long a leader lives.
	once := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true, ByPeriod: removalEvery}}
	client, err := river.NewClient(riverpgxv5.New(u.pool), &river.Config{
		ID:      u.workerID,
		Logger:  slog.New(u.log.Handler().WithAttrs([]slog.Attr{OfRiver})),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2}},
		Workers: workers,
		PeriodicJobs: []*river.PeriodicJob{
			river.NewPeriodicJob(river.PeriodicInterval(removalEvery),
				func() (river.JobArgs, *river.InsertOpts) { return removalArgs{}, once },
				&river.PeriodicJobOpts{RunOnStart: true}),
		},
	})
	if err != nil {
		return fmt.Errorf("periodic sweeps: %w", err)
	}

	// The client gets a context of its own: the end of ctx would cut off jobs, which Stop lets finish.
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
