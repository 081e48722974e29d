package views

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/clock"
)

// Settled reports whether an org only waits for a clock or for new input, now.
func (vs *Views) Settled(ctx context.Context, org uuid.UUID) (bool, error) {
	return vs.SettledBy(ctx, org, clock.Now())
}

// SettledBy reports whether an org only waits for a clock or for new input since a moment: no version is being built,
// no event waits to be routed, no task is open except those that are dead, paused or not due, no source that is not
// paused was due then, and none is being read.
func (vs *Views) SettledBy(ctx context.Context, org uuid.UUID, due time.Time) (bool, error) {
	building, err := vs.registry.AnyBuilding(ctx, org)
	if err != nil || building {
		return false, err
	}

	var busy bool
	err = vs.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM outbox WHERE org_id = $1 AND status = 'Pending' AND kind NOT IN ('notify', 'openlineage'))
		    OR EXISTS (SELECT FROM ready WHERE org_id = $1)
		    OR EXISTS (SELECT FROM leases WHERE org_id = $1)
		    OR EXISTS (SELECT FROM waiting WHERE org_id = $1 AND reason NOT IN ('dead', 'run_at', 'paused'))
		    OR EXISTS (
		       SELECT FROM sources
		       WHERE org_id = $1 AND (next_fire_at <= $2 AND `+tasks.NotPaused+` OR reading_until > now()))`, org, due).
		Scan(&busy)
	if err != nil {
		return false, fmt.Errorf("look for open work: %w", err)
	}
	return !busy, nil
}
