package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/wait"
	"github.com/dagctl/dagctl/operators"
)

// fairnessFigure: one org has queued very many tasks, another enqueues one. The value is the time until that one
// starts; the baseline is the same on an idle system.
func fairnessFigure(ctx context.Context, b *bench) (result, error) {
	dsn, drop, err := b.migrated(ctx)
	if err != nil {
		return result{}, err
	}
	r, err := b.fairness(ctx, dsn)
	return r, errors.Join(err, drop())
}

func (b *bench) fairness(ctx context.Context, dsn string) (r result, err error) {
	var many, one authz.Caller
	err = b.setUp(ctx, dsn, func(w *world) error {
		if many, err = w.backlogged(ctx, "many"); err != nil {
			return err
		}
		one, err = w.backlogged(ctx, "one")
		return err
	})
	if err != nil {
		return r, err
	}

	idle, _, err := b.startTimes(ctx, dsn, one, "idle", 0)
	if err != nil {
		return r, err
	}
	if err := b.queue(ctx, dsn, many, b.backlog); err != nil {
		return r, err
	}

	busy, gaveUp, err := b.startTimes(ctx, dsn, one, "busy", b.workers)
	r = result{value: milliseconds(quantile(busy, 0.5)), baseline: milliseconds(quantile(idle, 0.5)),
		params: map[string]any{"backlog": b.backlog, "reps": b.reps, "workers": b.workers,
			"patience_s": round(b.patience.Seconds())},
		detail: map[string]any{"max_ms": milliseconds(quantile(busy, 1)),
			"idle_max_ms": milliseconds(quantile(idle, 1)), "gave_up": gaveUp}}
	return r, err
}

// backlogDAG is only a source. Its tasks are the backlog, on a runtime that the process which enqueues them does not
// serve.
const backlogDAG = "name: backlog\njobs:\n  - {name: events, operator: feed, runtime: elsewhere, source: {kind: " +
	"poll, every: 24h}, partition_by: key}\n"

// backlogged creates an org with such a DAG.
func (w *world) backlogged(ctx context.Context, slug string) (authz.Caller, error) {
	caller, err := w.org(ctx, slug)
	if err != nil {
		return caller, err
	}
	return caller, w.deploy(ctx, caller, "backlog", backlogDAG)
}

// look is the interval between looks at the database.
const look = 20 * time.Millisecond

// queueChunk is how many units a source finds at once while the backlog is created.
const queueChunk = 20_000

// queue creates so many tasks, in a process that runs none of them.
func (b *bench) queue(ctx context.Context, dsn string, caller authz.Caller, tasks int) (err error) {
	w, err := b.world(ctx, dsn, runtimes[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()

	var before int
	if err := w.pool.QueryRow(ctx, `SELECT count(*) FROM tasks`).Scan(&before); err != nil {
		return err
	}
	for queued := 0; queued < tasks; {
		n := min(queueChunk, tasks-queued)
		w.feed.put(partitions(queued/queueChunk, n))
		if err := w.poll(ctx, caller); err != nil {
			return err
		}
		queued += n
		for made := 0; made < before+queued; {
			if err := wait.For(ctx, look); err != nil {
				return fmt.Errorf("%d of %d tasks are queued: %w", made-before, tasks, err)
			}
			if err := w.pool.QueryRow(ctx, `SELECT count(*) FROM tasks`).Scan(&made); err != nil {
				return err
			}
		}
	}

	_, err = w.pool.Exec(ctx, `VACUUM ANALYZE`)
	return err
}

// startTimes enqueues one task of an org again and again, once so many other tasks have started, and returns how long
// each took to start. If its patience ends, it returns the patience as the only time.
func (b *bench) startTimes(
	ctx context.Context, dsn string, caller authz.Caller, name string, after int,
) (took []time.Duration, gaveUp bool, err error) {
	w, err := b.world(ctx, dsn, runtimes...)
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, w.close()) }()

	started := make(chan time.Time, 1)
	w.feed.watch(func(t *operators.Task, at time.Time) {
		if t.OrgSlug == caller.OrgSlug {
			started <- at
		}
	})

	for w.feed.ran() < after {
		if err := wait.For(ctx, look); err != nil {
			return nil, false, err
		}
	}

	for i := range b.reps {
		w.feed.put([]operators.Unit{unit(fmt.Sprintf("%s%d", name, i), "1")})
		for len(started) > 0 { // left by an earlier task of the org
			<-started
		}
		asked := time.Now()
		if err := w.poll(ctx, caller); err != nil {
			return nil, false, err
		}
		select {
		case at := <-started:
			took = append(took, at.Sub(asked))
		case <-time.After(b.patience):
			return []time.Duration{b.patience}, true, nil
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
	return took, false, nil
}
