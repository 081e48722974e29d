package timers

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/internal/pg"
)

// Timers that have fired get the outcome of their tasks: COMPLETED, or FAILED with the reason once the task is out of
// attempts or was canceled. One that has failed is looked at again, because people may retry its task.

const (
	kindSettle  = "timers"
	settleEvery = 5 * time.Second
	settleBatch = 1000 // timers that one transaction looks at
)

// settling is the work of settling all timers.
func (t *Timers) settling() workitems.Kind {
	return workitems.Kind{Name: kindSettle, Objects: []string{""}, Every: settleEvery,
		Begin: func(_ context.Context, _ string, now time.Time) (workitems.Step, error) {
			return func(ctx context.Context, position string) (workitems.Progress, error) {
				return t.settle(ctx, position, now)
			}, nil
		}}
}

// settle settles some timers, from an id on; empty: the first. It relies on idx_scheduled_events_unsettled.
func (t *Timers) settle(ctx context.Context, position string, now time.Time) (done workitems.Progress, err error) {
	err = pg.InTx(ctx, t.Pool, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT id, task_id FROM scheduled_events
			WHERE task_id IS NOT NULL AND status IN ('PROCESSING', 'FAILED')
			  AND ($1 = '' OR id > NULLIF($1, '')::uuid) ORDER BY id LIMIT $2`, position, settleBatch)
		if err != nil {
			return err
		}
		var (
			timer, task  uuid.UUID
			timers, made []uuid.UUID
		)
		if _, err := pgx.ForEachRow(rows, []any{&timer, &task}, func() error {
			timers, made = append(timers, timer), append(made, task)
			return nil
		}); err != nil {
			return err
		}

		done = workitems.Progress{Position: timer.String(), Over: len(timers) < settleBatch}
		done.Rows, err = settleAs(ctx, tx, timers, made, now)
		return err
	})
	if err != nil {
		return done, fmt.Errorf("settle timers: %w", err)
	}
	return done, nil
}

// settleAs settles those timers whose tasks, one each, are over, and returns how many it changed.
func settleAs(ctx context.Context, tx pgx.Tx, timers, made []uuid.UUID, now time.Time) (int64, error) {
	outcomes, err := sources.TimerOutcomes(ctx, tx, made)
	if err != nil {
		return 0, err
	}

	var (
		over               []uuid.UUID
		statuses, failures []string
	)
	for i, task := range made {
		if o := outcomes[task]; o.Over {
			status, failure := settled(o)
			over, statuses, failures = append(over, timers[i]), append(statuses, status), append(failures, failure)
		}
	}
	if len(over) == 0 {
		return 0, nil
	}

	tag, err := tx.Exec(ctx, `
		UPDATE scheduled_events e SET status = w.status, failure_reason = NULLIF(w.failure, ''),
			version = version + 1, updated_at = $4
		FROM unnest($1::uuid[], $2::text[], $3::text[]) AS w(id, status, failure)
		WHERE e.id = w.id AND e.status IN ('PROCESSING', 'FAILED') AND e.status <> w.status`,
		over, statuses, failures, now)
	return tag.RowsAffected(), err
}

// settled returns the status of a timer whose task is over, and why it failed.
func settled(o sources.TimerOutcome) (status, failure string) {
	switch o.Status {
	case "Completed":
		return "COMPLETED", ""
	case "Canceled":
		return "FAILED", "its task was canceled: " + o.Error
	}
	return "FAILED", "its task failed: " + o.Error
}
