package timers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/internal/pg"
)

// deliverBatch is the most timers that one transaction delivers.
const deliverBatch = 100

// deliverDue creates the tasks of the timers that are due, each in the transaction that moves the timer on, so that an
// occurrence becomes a task exactly once, whichever process is killed. Other processes skip the rows that it has
// locked. It relies on idx_scheduled_events_due.
func (t *Timers) deliverDue(ctx context.Context, now time.Time) (more bool, err error) {
	fired, seen := 0, 0
	err = pg.InTx(ctx, t.Pool, func(ctx context.Context, tx pgx.Tx) error {
		fired = 0
		rows, err := tx.Query(ctx, `
			SELECT org_id, `+columns+` FROM scheduled_events
			WHERE status = 'PENDING' AND coalesce(retry_at, target_timestamp_utc) <= $1
			ORDER BY coalesce(retry_at, target_timestamp_utc) LIMIT $2
			FOR UPDATE SKIP LOCKED`, now, deliverBatch)
		if err != nil {
			return err
		}
		type dueTimer struct {
			org uuid.UUID
			Timer
		}
		due, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d dueTimer, err error) {
			return d, scanTimer(row, &d.Timer, &d.org)
		})
		if err != nil {
			return err
		}

		seen = len(due)
		for _, d := range due {
			// Each in a savepoint: a timer that cannot be delivered does not hold up the others.
			failed := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return t.deliver(ctx, tx, d.org, d.Timer, now) })
			if failed == nil {
				fired++
				continue
			}
			if err := postpone(ctx, tx, d.org, d.Timer, failed, now); err != nil {
				return errors.Join(failed, err)
			}
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("deliver timers: %w", err)
	}

	if fired > 0 {
		t.Dispatcher.Wake()
	}
	return seen == deliverBatch, nil
}

// deliver creates the task of one occurrence and moves the timer on to its next.
func (t *Timers) deliver(ctx context.Context, tx pgx.Tx, org uuid.UUID, timer Timer, now time.Time) error {
	zone, err := Zone(timer.Timezone)
	if err != nil {
		return err
	}
	task, err := t.Sources.EnqueueTimer(ctx, tx, sources.TimerTask{Org: org, Timer: timer.ID, DAG: timer.DAG,
		Job: timer.Job, Key: occurrence(timer), Payload: timer.Payload, At: timer.UTC, Local: timer.Local,
		Timezone: timer.Timezone}, now)
	if err != nil {
		return err
	}

	local, again, err := next(timer, zone, now)
	if err != nil {
		return err
	}
	status, utc := "PENDING", instant(local, zone)
	if !again {
		status, local, utc = "PROCESSING", timer.local, timer.UTC // until its task has ended: see settle
	}
	_, err = tx.Exec(ctx, `
		UPDATE scheduled_events SET status = $3, target_timestamp_local = $4, target_timestamp_utc = $5,
			executed_at = $6, task_id = $7,
			failure_reason = NULL, retry_count = 0, retry_at = NULL, version = version + 1, updated_at = $6
		WHERE org_id = $1 AND id = $2 AND status = 'PENDING'`, org, timer.ID, status, local, utc, now, task)
	return err
}

// The back-off of a delivery: 1 min, doubled up to 1 h. After ten tries the timer has failed, until somebody changes
// it.
const (
	deliverTries = 10
	longestWait  = time.Hour
)

func postpone(ctx context.Context, tx pgx.Tx, org uuid.UUID, timer Timer, cause error, now time.Time) error {
	status, wait := "PENDING", min(time.Minute<<timer.RetryCount, longestWait)
	if timer.RetryCount+1 >= deliverTries {
		status = "FAILED"
	}
	_, err := tx.Exec(ctx, `
		UPDATE scheduled_events SET status = $3, retry_count = retry_count + 1, retry_at = $4, failure_reason = $5,
			version = version + 1, updated_at = $6
		WHERE org_id = $1 AND id = $2 AND status = 'PENDING'`, org, timer.ID, status, now.Add(wait), cause.Error(), now)
	return err
}
