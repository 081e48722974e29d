package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// retentionFigure: as many finished tasks as a throughput figure runs are past their time, beside a history that is
// not. The value is how many of them a sweep removes in a second; the baseline is the same without the history.
func retentionFigure(ctx context.Context, b *bench) (result, error) {
	alone, _, err := b.retention(ctx, 0)
	if err != nil {
		return result{}, err
	}
	beside, scans, err := b.retention(ctx, b.history)
	return result{value: beside, baseline: alone, params: map[string]any{"tasks": b.tasks, "history": b.history},
		detail: map[string]any{"sequential_scans": scans}}, err
}

// retention returns how many tasks a sweep removes in a second, and how often it reads the table of tasks in sequence.
func (b *bench) retention(ctx context.Context, history int) (perSecond float64, scans int, err error) {
	err = b.still(ctx, func(w *world) error {
		for _, part := range []struct {
			tasks int
			age   string
		}{{b.tasks, "31 days"}, {history, "1 day"}} {
			for from := 1; from <= part.tasks; from += historyChunk {
				if _, err := w.pool.Exec(ctx, finishedTasks, part.age, from,
					min(from+historyChunk-1, part.tasks)); err != nil {
					return fmt.Errorf("make finished tasks: %w", err)
				}
			}
		}
		if _, err := w.pool.Exec(ctx, `VACUUM ANALYZE`); err != nil {
			return err
		}

		before, err := scansOf(ctx, w.pool)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := w.dispatcher.Upkeep.SweepRetention(ctx, began); err != nil {
			return err
		}
		took := time.Since(began)
		after, err := scansOf(ctx, w.pool)
		if err != nil {
			return err
		}

		var left int
		if err := w.pool.QueryRow(ctx, `SELECT count(*) FROM tasks`).Scan(&left); err != nil {
			return err
		}
		if left != history {
			return fmt.Errorf("%d tasks are left of %d", left, history)
		}
		perSecond, scans = float64(b.tasks)/took.Seconds(), after-before
		return nil
	})
	return perSecond, scans, err
}

// finishedTasks inserts tasks that ended some time ago, each with what a remote attempt leaves.
const finishedTasks = `
	WITH made AS (
		INSERT INTO tasks (id, org_id, job_id, kind, dedupe_key, slot, status, runtime, partitions, created_at,
			started_at, completed_at)
		SELECT encode(overlay(uuid_send(uuid_v7()) placing substring(
				int8send((extract(epoch FROM now() - $1::text::interval) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
				'hex')::uuid, j.org_id, j.id, 'source', 'old' || $1 || n, 'old' || $1 || n,
			'Completed', 'elsewhere', ARRAY['old' || n], now() - $1::text::interval, now() - $1::text::interval,
			now() - $1::text::interval
		FROM jobs j, generate_series($2::int, $3::int) AS n RETURNING id, org_id)
	INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor)
	SELECT uuid_v7(), org_id, id, 1, 'Queued', 'Completed', 'WORKER' FROM made`

// scansOf returns how often the table of tasks was read in sequence.
func scansOf(ctx context.Context, pool *pgxpool.Pool) (n int, err error) {
	if _, err = pool.Exec(ctx, `SELECT pg_stat_force_next_flush()`); err != nil {
		return 0, err
	}
	err = pool.QueryRow(ctx, `SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'tasks'`).Scan(&n)
	return n, err
}

// dueFigure: a backlog of tasks becomes due at one moment. The value is the longest transaction that makes them
// claimable; the baseline is the mean one.
func dueFigure(ctx context.Context, b *bench) (r result, err error) {
	err = b.still(ctx, func(w *world) error {
		if _, err := w.pool.Exec(ctx, `
			WITH made AS (
				INSERT INTO tasks (id, org_id, job_id, kind, slot, runtime, run_at)
				SELECT uuid_v7(), j.org_id, j.id, 'manual', 'task:' || n, 'elsewhere', now() - interval '1 s'
				FROM jobs j, generate_series(1, $1::int) AS n RETURNING *)
			INSERT INTO waiting (task_id, org_id, origin_job_id, slot, reason, available_at, rank)
			SELECT id, org_id, job_id, slot, 'run_at', run_at, 0 FROM made`, b.backlog); err != nil {
			return fmt.Errorf("make due tasks: %w", err)
		}
		if _, err := w.pool.Exec(ctx, `VACUUM ANALYZE`); err != nil {
			return err
		}

		var longest time.Duration
		rounds, began := 0, time.Now()
		for more := true; more; rounds++ {
			at := time.Now()
			if more, err = w.dispatcher.PromoteDue(ctx, at); err != nil {
				return err
			}
			longest = max(longest, time.Since(at))
		}
		took := time.Since(began)
		r = result{value: milliseconds(longest), baseline: milliseconds(took / time.Duration(rounds)),
			params: map[string]any{"backlog": b.backlog},
			detail: map[string]any{"per_s": round(float64(b.backlog) / took.Seconds())}}
		return nil
	})
	return r, err
}

// still calls a function on a world of its own with one job, whose loops stand still.
func (b *bench) still(ctx context.Context, measure func(w *world) error) error {
	dsn, drop, err := b.migrated(ctx)
	if err != nil {
		return err
	}
	err = b.setUp(ctx, dsn, func(w *world) error {
		caller, err := w.org(ctx, "bench")
		if err != nil {
			return err
		}
		if err := w.deploy(ctx, caller, "backlog", backlogDAG); err != nil {
			return err
		}

		if err := w.stop(); err != nil {
			return err
		}
		return measure(w)
	})
	return errors.Join(err, drop())
}
