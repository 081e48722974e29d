package dispatcher

import (
	"context"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/worker/protocol"
)

// AssignedTask is the task of a running attempt as its claim had it, for one that was given only a reference.
func (d *Dispatcher) AssignedTask(ctx context.Context, c authz.Capability, f protocol.Fence) (protocol.Task, error) {
	g, err := d.Given(ctx, c, f)
	if err != nil {
		return protocol.Task{}, err
	}
	return d.wireTask(g.task)
}
