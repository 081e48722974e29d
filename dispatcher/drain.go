package dispatcher

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
)

// The task of an always_on source runs until somebody drains it or its process stops. It is asked to end first, so that
// it can commit what it has, and stopped if it does not end in time.

const (
	// drainFor is how long a task may go on after it was asked to end.
	drainFor = 30 * time.Second
	// stopFor is how long a task may go on after its server was asked to stop.
	stopFor = 10 * time.Second
)

// AlwaysOnSlot is the slot of the one task of an always_on source.
const AlwaysOnSlot = "always_on"

var errDrained = errors.New("the task did not end in time when it was drained")

// awaitDrain closes drain when the task or its process is asked to end, and stops the task if it does not end in time.
func (d *Dispatcher) awaitDrain(
	ctx context.Context, f tasks.Fence, process <-chan struct{}, drain chan struct{}, stop context.CancelCauseFunc,
) {
	tick := time.NewTicker(min(d.Poll, time.Second))
	defer tick.Stop()

	for asked := false; !asked; {
		select {
		case <-ctx.Done():
			return
		case <-process:
			asked = true
			continue
		case <-tick.C:
		}
		err := d.Pool.QueryRow(ctx, `
			SELECT drain_requested_at IS NOT NULL FROM leases WHERE task_id = $1 AND lease_token = $2`,
			f.TaskID, f.LeaseToken).Scan(&asked)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) && ctx.Err() == nil {
			d.Log.Warn("cannot read whether a task is asked to end", "task", f.TaskID, "error", err)
		}
	}

	close(drain)
	longest := time.After(drainFor)
	select {
	case <-ctx.Done():
		return
	case <-process:
		longest = time.After(stopFor)
	case <-longest:
		stop(errDrained)
		return
	}
	select {
	case <-ctx.Done():
	case <-longest:
		stop(errDrained)
	}
}

// isDrained reports whether a run was asked to end. However it ends after that, it has not failed.
func isDrained(t Claimed) bool {
	select {
	case <-t.Assignment.Drain:
		return true
	default: // also for a nil channel: only runs of always_on sources have one
		return false
	}
}
