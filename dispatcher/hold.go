package dispatcher

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/worker/protocol"
)

// For slices that keep something of tasks.

// InAttempt runs fn in a transaction that holds the task of a running attempt, so that what fn does and the check of the
// fence are one. A Conflict fault says how the task stands if the attempt is over.
func (d *Dispatcher) InAttempt(ctx context.Context, c authz.Capability, f protocol.Fence, fn func(ctx context.Context, tx pgx.Tx) error) error {
	if err := c.Covers(f); err != nil {
		return err
	}
	err := pg.InOrgTx(ctx, d.Requests, c.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		row, err := lockTask(ctx, tx, Fence(f))
		if err != nil {
			return err
		}
		if err := row.mustRun(Fence(f)); err != nil {
			return err
		}
		return fn(ctx, tx)
	})
	if err != nil {
		return fmt.Errorf("attempt %d of task %s: %w", f.Attempt, f.TaskID, err)
	}
	return nil
}

// ReadableTask reports whether a task has ended. To a caller who may not read what it makes it is NotFound.
func (d *Dispatcher) ReadableTask(ctx context.Context, caller authz.Caller, id uuid.UUID) (ended bool, err error) {
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		_, readable, err := d.task(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		if !readable {
			return fault.New(fault.NotFound, "there is no log of task %s", id)
		}
		ended, err = HasEnded(ctx, tx, caller.OrgID, id)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("task %s: %w", id, err)
	}
	return ended, nil
}

// HasEnded reports whether a task has ended, so that nothing more comes of it unless it is taken up again. One that is gone
// has.
func HasEnded(ctx context.Context, tx pgx.Tx, org, id uuid.UUID) (ended bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT NOT EXISTS (
			SELECT FROM tasks t LEFT JOIN waiting w ON w.task_id = t.id
			WHERE t.org_id = $1 AND t.id = $2 AND t.status NOT IN ('Completed', 'Canceled')
			      AND (t.status <> 'Failed' OR coalesce(w.available_at, t.next_retry_at) IS NOT NULL))`, org, id).Scan(&ended)
	return ended, err
}
