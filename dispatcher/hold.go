package dispatcher

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/worker/protocol"
)

// InAttempt runs fn in a transaction that holds the lock of a running attempt's task, so that fn's writes and the check
// of the fence are one. It is for other packages that store something for an attempt. If the attempt is over it returns
// a Conflict with the task's state.
func (d *Dispatcher) InAttempt(
	ctx context.Context, c authz.Capability, f protocol.Fence, fn func(ctx context.Context, tx pgx.Tx) error,
) error {
	if err := c.Covers(f); err != nil {
		return err
	}

	err := pg.InOrgTxByKey(ctx, d.Requests, c.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		row, err := tasks.LockTask(ctx, tx, tasks.Fence(f))
		if err != nil {
			return err
		}
		if err := row.MustRun(tasks.Fence(f)); err != nil {
			return err
		}
		return fn(ctx, tx)
	})
	if err != nil {
		return fmt.Errorf("attempt %d of task %s: %w", f.Attempt, f.TaskID, err)
	}
	return nil
}
