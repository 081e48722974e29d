package upkeep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/clock"
)

// Removing data is a River job, which River's elected leader enqueues. Tasks never go through River: retries and fences
// have one owner.

// retentionArgs asks for the removal of partitions and versions past their time.
type retentionArgs struct{}

func (retentionArgs) Kind() string { return "retention" }

type retentionWorker struct {
	river.WorkerDefaults[retentionArgs]
	upkeep *Upkeep
}

func (w *retentionWorker) Work(ctx context.Context, _ *river.Job[retentionArgs]) error {
	return errors.Join(
		w.upkeep.SweepExpired(ctx, clock.Now()),
		w.upkeep.ShrinkVersions(ctx, clock.Now()),
	)
}

// Timeout bounds a sweep. The next one removes what this one leaves.
func (w *retentionWorker) Timeout(*river.Job[retentionArgs]) time.Duration { return retentionEvery / 2 }

const (
	retentionEvery = time.Hour
	gcEvery        = time.Hour
)

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

// runPeriodicOnce starts River's client, and stops it when ctx ends.
func (u *Upkeep) runPeriodicOnce(ctx context.Context) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, &retentionWorker{upkeep: u})
	river.AddWorker(workers, &gcWorker{upkeep: u})

	once := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true, ByPeriod: time.Minute}}
	client, err := river.NewClient(riverpgxv5.New(u.pool), &river.Config{
		ID:      u.workerID,
		Logger:  slog.New(u.log.Handler().WithAttrs([]slog.Attr{slog.String("part", "periodic")})),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2}},
		Workers: workers,
		PeriodicJobs: []*river.PeriodicJob{
			river.NewPeriodicJob(river.PeriodicInterval(retentionEvery),
				func() (river.JobArgs, *river.InsertOpts) { return retentionArgs{}, once }, nil),
			river.NewPeriodicJob(river.PeriodicInterval(gcEvery),
				func() (river.JobArgs, *river.InsertOpts) { return gcArgs{}, once }, nil),
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
