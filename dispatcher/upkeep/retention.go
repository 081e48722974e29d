package upkeep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// How long rows stay by default.
const (
	// KeepTasks is how long finished tasks stay, with their trails.
	KeepTasks = 30 * 24 * time.Hour
	// KeepEvents is how long events stay.
	KeepEvents = 30 * 24 * time.Hour
	// KeepVersions is how long versions stay that no longer serve, before only their records do.
	KeepVersions = 400 * 24 * time.Hour

	keepNotices = 30 * 24 * time.Hour // rows of the outbox that were given up
	keepActions = 90 * 24 * time.Hour // bulk actions that have ended
)

// retentionBatch is how many rows one statement of a sweep removes: few enough to hold no lock for long, and for vacuum
// to keep up.
const retentionBatch = 1000

// SweepRetention removes rows past their time. That makes nothing stale, because partitions decide that, never task
// rows. Ids begin with their time, so old rows are at one end of each index.
func (u *Upkeep) SweepRetention(ctx context.Context, now time.Time) error {
	var failed []error
	for _, sweep := range []struct {
		sql    string
		before time.Time
	}{
		{`WITH old AS (SELECT id FROM events WHERE id < $2 AND created_at < $1 ORDER BY id LIMIT $3),
		  c AS (DELETE FROM event_consumers USING old WHERE event_id = old.id)
		  DELETE FROM events USING old WHERE events.id = old.id`, now.Add(-KeepEvents)},
		{`WITH old AS (
			SELECT id FROM outbox WHERE status = 'Failed' AND created_at < $1 AND $2::uuid IS NOT NULL
			ORDER BY id LIMIT $3)
		  DELETE FROM outbox USING old WHERE outbox.id = old.id`, now.Add(-keepNotices)},
		{`WITH old AS (SELECT id FROM bulk_actions WHERE id < $2 AND ended_at < $1 ORDER BY id LIMIT $3),
		  t AS (DELETE FROM bulk_action_tasks USING old WHERE bulk_action_id = old.id)
		  DELETE FROM bulk_actions USING old WHERE bulk_actions.id = old.id`, now.Add(-keepActions)},
	} {
		err := u.sweepRows(ctx, sweep.sql, sweep.before, tasks.LowestIDAt(sweep.before), retentionBatch)
		failed = append(failed, err)
	}

	return errors.Join(append(failed, u.sweepTasks(ctx, now))...)
}

// sweepTasks removes finished tasks, each after the time that its job sets. It runs after the sweep of events: an event
// that stays longer than its task must be accounted for without the task.
func (u *Upkeep) sweepTasks(ctx context.Context, now time.Time) error {
	own, err := u.ownRetention(ctx)
	if err != nil {
		return err
	}

	var failed []error
	kept := make([]uuid.UUID, 0, len(own))
	for origin, keep := range own {
		kept = append(kept, origin)
		before := now.Add(-keep)
		failed = append(failed, u.forgetFinished(ctx, `job_id = $4`, origin, before))
	}
	failed = append(failed, u.forgetFinished(ctx, `job_id <> ALL($4)`, kept, now.Add(-KeepTasks)))
	return errors.Join(failed...)
}

// sweepRows runs a statement, which removes at most retentionBatch rows, until it finds no more.
func (u *Upkeep) sweepRows(ctx context.Context, sql string, args ...any) error {
	for {
		tag, err := u.pool.Exec(ctx, sql, args...)
		if err != nil {
			return fmt.Errorf("retention: %w", err)
		}
		if tag.RowsAffected() < retentionBatch {
			return nil
		}
	}
}

// ownRetention returns, for the origins whose jobs set it, how long finished tasks stay.
func (u *Upkeep) ownRetention(ctx context.Context) (map[uuid.UUID]time.Duration, error) {
	own := map[uuid.UUID]time.Duration{}
	err := pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
		acting, err := u.registry.JobsInWork(ctx, tx, nil)
		for origin, a := range acting {
			if a.Job.Def.TaskRetention > 0 {
				own[origin] = a.Job.Def.TaskRetention
			}
		}
		return err
	})
	return own, err
}

// forgetFinished removes tasks that completed or were canceled before a time, with their attempts, events and results.
func (u *Upkeep) forgetFinished(ctx context.Context, of string, origins any, before time.Time) error {
	return u.sweepRows(ctx, `
		WITH old AS (
			SELECT id, org_id, job_id, dedupe_key FROM tasks
			WHERE id < $2 AND status IN ('Completed', 'Canceled') AND completed_at < $1 AND `+of+`
			ORDER BY id LIMIT $3),
		o AS (`+dispatcher.KeepTriggered(`SELECT * FROM old`)+`),
		a AS (DELETE FROM task_attempts USING old WHERE task_id = old.id),
		e AS (DELETE FROM task_events USING old WHERE task_id = old.id),
		r AS (DELETE FROM task_results USING old WHERE task_id = old.id)
		DELETE FROM tasks USING old WHERE tasks.id = old.id`, before, tasks.LowestIDAt(before), retentionBatch, origins)
}

// SweepExpired removes partitions past the retention of their dataset. It counts from the end of a partition's time
// or, if partitions are not of time, from when the partition was made. A partition that a task works on, or that a
// version in its rollback window shows, stays until a later sweep finds it free.
func (u *Upkeep) SweepExpired(ctx context.Context, now time.Time) error {
	var expired []registry.Expiry
	err := pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		expired, err = registry.Expired(ctx, tx, now)
		return err
	})
	if err != nil {
		return err
	}

	var failed []error
	for _, e := range expired {
		err := u.expire(ctx, e, now)
		switch {
		case fault.Is(err, fault.Conflict), fault.Is(err, fault.Unavailable):
			u.log.Info("expired partitions stay until they are free", "dag", e.DAG, "dataset", e.Dataset, "reason", err)
		case err != nil:
			failed = append(failed, fmt.Errorf("retention of %s: %w", e.Dataset, err))
		default:
			u.log.Info("expired partitions are gone", "dag", e.DAG, "dataset", e.Dataset)
			failed = append(failed, u.RemoveMarked(ctx, e.OrgID, now))
		}
	}
	return errors.Join(failed...)
}

// expire purges the partitions of one dataset that are still expired under the DAG's lock.
func (u *Upkeep) expire(ctx context.Context, e registry.Expiry, now time.Time) error {
	return pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '5s'`); err != nil {
			return err
		}
		if err := registry.LockDAGs(ctx, tx, e.OrgID, []string{e.DAG}); err != nil {
			return err
		}

		gone, err := e.Still(ctx, tx, now)
		if err != nil || len(gone) == 0 {
			return err
		}

		if err := registry.RefusePurge(ctx, tx, e.OrgID, gone, false, now); err != nil {
			return err
		}
		if err := refuseWhileRunning(ctx, tx, e.OrgID, gone); err != nil {
			return err
		}
		_, err = registry.Purge(ctx, tx, e.OrgID, gone, now)
		return err
	})
}

// shrinkBatch is how many versions shrink under one lock of their DAG, which completions wait for.
const shrinkBatch = 10

// ShrinkVersions shrinks versions that ended longer ago than the retention to their records.
func (u *Upkeep) ShrinkVersions(ctx context.Context, now time.Time) error {
	before := now.Add(-u.KeepVersions)
	for {
		var old []registry.OldVersions
		err := pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
			old, err = registry.FindOldVersions(ctx, tx, before, now, shrinkBatch)
			return err
		})
		if err != nil || len(old) == 0 {
			return err
		}

		var shrunk int64
		for _, o := range old {
			err := pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := registry.LockDAGs(ctx, tx, o.OrgID, []string{o.DAG}); err != nil {
					return err
				}
				n, err := o.Shrink(ctx, tx, before, now)
				shrunk += n
				return err
			})
			if err != nil {
				return err
			}
		}
		if shrunk == 0 {
			return nil // they are in use again by now
		}
	}
}
