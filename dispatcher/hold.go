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
		t, readable, err := d.task(ctx, tx, caller, id)
		if err == nil && !readable {
			err = fault.New(fault.NotFound, "there is no log of task %s", id)
		}
		ended = t.Status == "Completed" || t.Status == "Canceled" || t.Status == "Failed" && t.NextRetryAt == nil
		return err
	})
	if err != nil {
		return false, fmt.Errorf("task %s: %w", id, err)
	}
	return ended, nil
}
