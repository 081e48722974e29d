package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// The peer: River runs the same number of jobs on the same PostgreSQL, with the settings of its own benchmark, which
// are faster than its defaults.
const (
	riverCooldown = 2 * time.Millisecond
	riverPoll     = 20 * time.Millisecond
	riverWorkers  = 2000
	riverConns    = 10
	riverBatch    = 1000
)

// riverNoop is one job of the throughput figure.
type riverNoop struct{}

func (riverNoop) Kind() string { return "noop" }

type riverNoopWorker struct {
	river.WorkerDefaults[riverNoop]
}

func (riverNoopWorker) Work(context.Context, *river.Job[riverNoop]) error { return nil }

// riverStep is a job that inserts the next ones in the transaction that completes it. River has no joins, so a counter
// finds the last job of a fan.
type riverStep struct {
	Step int `json:"step"` // from 0
	Last int `json:"last"`
	Fan  int `json:"fan"` // width of the second step; 0: a chain
}

func (riverStep) Kind() string { return "step" }

type riverStepWorker struct {
	river.WorkerDefaults[riverStep]
	pool    *pgxpool.Pool
	started func(step int, at time.Time)
	done    chan struct{}
}

func (w *riverStepWorker) Work(ctx context.Context, job *river.Job[riverStep]) error {
	w.started(job.Args.Step, time.Now())
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
			return err
		}
		return w.follow(ctx, tx, job.Args)
	})
	if err == nil && job.Args.Step == job.Args.Last {
		w.done <- struct{}{}
	}
	return err
}

func (w *riverStepWorker) follow(ctx context.Context, tx pgx.Tx, a riverStep) error {
	next := a
	next.Step++
	client := river.ClientFromContext[pgx.Tx](ctx)
	switch {
	case a.Step == a.Last:
		return nil
	case a.Fan > 0 && a.Step == 0:
		if _, err := tx.Exec(ctx, `INSERT INTO fan_left (n) VALUES ($1)`, a.Fan); err != nil {
			return err
		}
		params := make([]river.InsertManyParams, a.Fan)
		for i := range params {
			params[i].Args = next
		}
		_, err := client.InsertManyFastTx(ctx, tx, params)
		return err
	case a.Fan > 0:
		var left int
		if err := tx.QueryRow(ctx, `UPDATE fan_left SET n = n - 1 WHERE n > 0 RETURNING n`).Scan(&left); err != nil ||
			left > 0 {
			return err
		}
	}

	_, err := client.InsertTx(ctx, tx, next, nil)
	return err
}

// riverWorld is River on a database of its own.
type riverWorld struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
	step   *riverStepWorker
}

// river runs f with a client that is not started yet.
func (b *bench) river(
	ctx context.Context, f func(w *riverWorld) error, done func(dsn string) error, before func(dsn string) error,
) (err error) {
	dsn, drop, err := b.database(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop()) }()

	if err := riverMigrate(ctx, dsn); err != nil {
		return err
	}
	if err := before(dsn); err != nil {
		return err
	}
	if err := b.riverIn(ctx, dsn, f); err != nil {
		return err
	}
	return done(dsn)
}

func (b *bench) riverIn(ctx context.Context, dsn string, f func(w *riverWorld) error) error {
	w := &riverWorld{}
	var err error
	if w.pool, err = riverPool(ctx, dsn); err != nil {
		return err
	}
	defer w.pool.Close()

	w.step = &riverStepWorker{pool: w.pool, started: func(int, time.Time) {}, done: make(chan struct{}, 1)}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverNoopWorker{})
	river.AddWorker(workers, w.step)
	w.client, err = river.NewClient(riverpgxv5.New(w.pool), &river.Config{
		FetchCooldown: riverCooldown, FetchPollInterval: riverPoll, Workers: workers,
		Logger: slog.New(slog.NewTextHandler(b.stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverWorkers}},
	})
	if err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		_ = w.client.Stop(stop) // the figure is complete by then
	}()
	return f(w)
}

func riverPool(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.MaxConns = riverConns
	return pgxpool.NewWithConfig(ctx, config)
}

func riverMigrate(ctx context.Context, dsn string) error {
	pool, err := riverPool(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	_, err = pool.Exec(ctx, `CREATE TABLE fan_left (n INT NOT NULL)`)
	return err
}

// riverThroughput inserts jobs in batches and then works on them.
func (b *bench) riverThroughput(ctx context.Context, jobs int) (s speed, err error) {
	var m *meter
	err = b.river(ctx, func(w *riverWorld) error {
		start := time.Now()
		for left := jobs; left > 0; left -= riverBatch {
			params := make([]river.InsertManyParams, min(riverBatch, left))
			for i := range params {
				params[i].Args = riverNoop{}
			}
			if _, err := w.client.InsertManyFast(ctx, params); err != nil {
				return err
			}
		}

		// River reports a completion after writing it.
		events, unsubscribe := w.client.SubscribeConfig(&river.SubscribeConfig{ChanSize: jobs + 1,
			Kinds: []river.EventKind{river.EventKindJobCompleted, river.EventKindJobFailed}})
		defer unsubscribe()

		if err := w.client.Start(ctx); err != nil {
			return err
		}
		for range jobs {
			select {
			case e := <-events:
				if e.Kind != river.EventKindJobCompleted {
					return fmt.Errorf("job %d failed", e.Job.ID)
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}

		s.tasks, s.perSecond = jobs, float64(jobs)/time.Since(start).Seconds()
		return nil
	}, func(string) error {
		s.cost, err = m.stop(ctx, jobs)
		return err
	}, func(dsn string) error {
		m, err = b.startMeter(ctx, dsn)
		return err
	})
	return s, err
}

// riverHop measures the chain: the time between the starts of two consecutive jobs.
func (b *bench) riverHop(ctx context.Context, edges, reps int) (found []time.Duration, err error) {
	starts := make([]time.Time, edges+1)
	_, err = b.riverSteps(ctx, riverStep{Last: edges}, reps, func(step int, at time.Time) {
		starts[step] = at
	}, func(rep int) {
		for i := range edges {
			if rep > 0 {
				found = append(found, starts[i+1].Sub(starts[i]))
			}
		}
	})
	return found, err
}

func (b *bench) riverFan(ctx context.Context, fan, reps int) ([]time.Duration, error) {
	return b.riverSteps(ctx, riverStep{Last: 2, Fan: fan}, reps, func(int, time.Time) {}, func(int) {})
}

// riverSteps runs a chain or a fan again and again, after one unmeasured run.
func (b *bench) riverSteps(
	ctx context.Context, first riverStep, reps int, started func(int, time.Time), after func(rep int),
) (took []time.Duration, err error) {
	nothing := func(string) error { return nil }
	err = b.river(ctx, func(w *riverWorld) error {
		w.step.started = started
		if err := w.client.Start(ctx); err != nil {
			return err
		}

		for rep := range reps + 1 {
			start := time.Now()
			if _, err := w.client.Insert(ctx, first, nil); err != nil {
				return err
			}

			select {
			case <-w.step.done:
			case <-ctx.Done():
				return context.Cause(ctx)
			}

			if rep > 0 {
				took = append(took, time.Since(start))
			}
			after(rep)
		}
		return nil
	}, nothing, nothing)
	return took, err
}
