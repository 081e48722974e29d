package dispatcher

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// Settled reports whether there is nothing left to do for an org but to wait for a clock or for new input: no version is
// being built, no event waits to be routed, no task is open but those that failed for good, every source of an
// active version that is due has fired, and what those found that are read in full has its tasks.
func (d *Dispatcher) Settled(ctx context.Context, org uuid.UUID) (bool, error) {
	building, err := d.Registry.AnyBuilding(ctx, org)
	if err != nil || building {
		return false, err
	}
	var busy bool
	err = d.Pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM outbox WHERE org_id = $1 AND status = 'Pending' AND kind <> 'notify')
		    OR EXISTS (SELECT FROM ready WHERE org_id = $1)
		    OR EXISTS (SELECT FROM leases WHERE org_id = $1)
		    OR EXISTS (SELECT FROM waiting WHERE org_id = $1 AND reason NOT IN ('dead', 'run_at', 'paused'))
		    OR EXISTS (SELECT FROM sources WHERE org_id = $1 AND (next_fire_at <= now() OR reading_until > now()))`, org).Scan(&busy)
	if err != nil {
		return false, fmt.Errorf("look for open work: %w", err)
	}
	return !busy, nil
}
