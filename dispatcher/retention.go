package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// How long rows stay where nothing else is said: finished tasks and their trail, events, what was given up, and what
// somebody asked for that has come to its end.
const (
	keepTasks   = 30 * 24 * time.Hour
	keepEvents  = 30 * 24 * time.Hour
	keepNotices = 30 * 24 * time.Hour
	keepActions = 90 * 24 * time.Hour
)

// retentionBatch is how many rows one statement of a sweep removes: it holds no lock for long, and vacuum keeps up with it.
const retentionBatch = 1000

// sweepRetention removes rows past their time. What is published stays: staleness is decided by partitions, never by task
// rows. Ids begin with their time, so what is old is at one end of each index.
func (d *Dispatcher) sweepRetention(ctx context.Context, now time.Time) error {
	var failed []error
	for _, sweep := range []struct {
		sql    string
		before time.Time
	}{
		{`WITH old AS (SELECT id FROM events WHERE id < $2 AND created_at < $1 ORDER BY id LIMIT $3),
		  c AS (DELETE FROM event_consumers USING old WHERE event_id = old.id)
		  DELETE FROM events USING old WHERE events.id = old.id`, now.Add(-keepEvents)},
		{`WITH old AS (SELECT id FROM outbox WHERE status = 'Failed' AND created_at < $1 AND $2::uuid IS NOT NULL ORDER BY id LIMIT $3)
		  DELETE FROM outbox USING old WHERE outbox.id = old.id`, now.Add(-keepNotices)},
		{`WITH old AS (SELECT id FROM bulk_actions WHERE id < $2 AND ended_at < $1 ORDER BY id LIMIT $3),
		  t AS (DELETE FROM bulk_action_tasks USING old WHERE bulk_action_id = old.id)
		  DELETE FROM bulk_actions USING old WHERE bulk_actions.id = old.id`, now.Add(-keepActions)},
	} {
		failed = append(failed, d.sweepRows(ctx, sweep.sql, sweep.before, firstID(sweep.before), retentionBatch))
	}
	return errors.Join(append(failed, d.sweepTasks(ctx, now))...)
}

// sweepTasks removes finished tasks, each when its job says, after the events that are as old: those that stay longer have to
// be accounted for without it.
func (d *Dispatcher) sweepTasks(ctx context.Context, now time.Time) error {
	own, err := d.ownRetention(ctx)
	if err != nil {
		return err
	}
	var failed []error
	kept := make([]uuid.UUID, 0, len(own))
	for origin, keep := range own {
		kept = append(kept, origin)
		before := now.Add(-keep)
		failed = append(failed, d.forgetFinished(ctx, `job_id = $4`, origin, before))
	}
	failed = append(failed, d.forgetFinished(ctx, `job_id <> ALL($4)`, kept, now.Add(-keepTasks)))
	return errors.Join(failed...)
}

func (d *Dispatcher) sweepRows(ctx context.Context, sql string, args ...any) error {
	for {
		tag, err := d.Pool.Exec(ctx, sql, args...)
		if err != nil {
			return fmt.Errorf("retention: %w", err)
		}
		if tag.RowsAffected() < retentionBatch {
			return nil
		}
	}
}

// ownRetention tells of the origins whose jobs say how long their finished tasks stay.
func (d *Dispatcher) ownRetention(ctx context.Context) (map[uuid.UUID]time.Duration, error) {
	own := map[uuid.UUID]time.Duration{}
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		acting, err := d.Registry.JobsInWork(ctx, tx, nil)
		for origin, a := range acting {
			if a.Job.Def.TaskRetention > 0 {
				own[origin] = a.Job.Def.TaskRetention
			}
		}
		return err
	})
	return own, err
}

// forgetFinished removes tasks that completed or were canceled before a time, with everything that is told of them.
func (d *Dispatcher) forgetFinished(ctx context.Context, of string, origins any, before time.Time) error {
	return d.sweepRows(ctx, `
		WITH old AS (SELECT id, org_id, job_id, dedupe_key FROM tasks WHERE id < $2 AND status IN ('Completed', 'Canceled') AND completed_at < $1 AND `+of+`
			ORDER BY id LIMIT $3),
		o AS (`+keepTriggered(`SELECT * FROM old`)+`),
		a AS (DELETE FROM task_attempts USING old WHERE task_id = old.id),
		e AS (DELETE FROM task_events USING old WHERE task_id = old.id),
		r AS (DELETE FROM task_results USING old WHERE task_id = old.id)
		DELETE FROM tasks USING old WHERE tasks.id = old.id`, before, firstID(before), retentionBatch, origins)
}

// sweepExpired takes the partitions away whose dataset says that it keeps them no longer: those whose time ended so long
// ago or, where partitions are not of time, that were made so long ago. What somebody works with, or what a version that
// can be rolled back to shows, stays until the next sweep that finds it free.
func (d *Dispatcher) sweepExpired(ctx context.Context, now time.Time) error {
	var expired []registry.Expiry
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		expired, err = registry.Expired(ctx, tx, now)
		return err
	})
	if err != nil {
		return err
	}
	var failed []error
	for _, e := range expired {
		err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
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
		switch {
		case fault.Is(err, fault.Conflict), fault.Is(err, fault.Unavailable):
			d.Log.Info("expired partitions stay until they are free", "dag", e.DAG, "dataset", e.Dataset, "reason", err)
		case err != nil:
			failed = append(failed, fmt.Errorf("retention of %s: %w", e.Dataset, err))
		default:
			d.Log.Info("expired partitions are gone", "dag", e.DAG, "dataset", e.Dataset)
			failed = append(failed, d.removeMarked(ctx, e.OrgID, now))
		}
	}
	return errors.Join(failed...)
}
