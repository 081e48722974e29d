package dispatcher

import (
	"context"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/worker/protocol"
)

// AssignedTask returns the task of a running attempt as its claim assigned it, for an attempt that was started with
// only a reference to it.
func (d *Dispatcher) AssignedTask(ctx context.Context, c authz.Capability, f protocol.Fence) (protocol.Task, error) {
	attempt, err := d.RunningAttempt(ctx, c, f)
	if err != nil {
		return protocol.Task{}, err
	}
	return d.wireTask(attempt.Task)
}
