package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker/protocol"
)

// An attempt outside of the server's process speaks for itself, call by call, with any of the servers: each call loads it
// anew as it was given at its claim, and what the call brings about is in one transaction with the check of its fence.
// remote_claim.go and remote_claim_id.go hand the attempts out, remote_load.go loads them for their calls, remote_events.go
// commits on the way, remote_complete.go ends them.

// Given is an attempt as it was given at its claim.
type Given struct {
	Fence
	OrgID      uuid.UUID
	Runtime    string
	Job        *registry.Job // the version's row by which the task runs
	Assignment operators.Assignment

	task     claimed
	row      taskRow
	lastCall lastCall
}

// Given loads a running attempt whose fence holds, for a call that needs no more than that: inputs, outputs, logs, query,
// credentials. A Conflict fault says how the task stands if the attempt is over; NotFound is a task of another org.
func (d *Dispatcher) Given(ctx context.Context, c authz.Capability, f protocol.Fence) (Given, error) {
	g, err := d.reload(ctx, c, f)
	if err == nil {
		err = g.row.mustRun(g.Fence)
	}
	if err != nil {
		return Given{}, err
	}
	return g, nil
}

// fencedOff says how the task stands, to an attempt that is not its current one any more.
func (r taskRow) fencedOff(f Fence) error {
	return r.stands(fault.New(fault.Conflict, "task %s is %s at attempt %d: attempt %d was fenced off", r.id, r.status, r.attempt, f.Attempt))
}

// stands adds how the task stands to a conflict, for programs.
func (r taskRow) stands(e *fault.Error) *fault.Error {
	e.Problems = []fault.Problem{{Location: "task.status", Message: r.status}, {Location: "task.attempt", Message: strconv.Itoa(r.attempt)}}
	if r.reason != "" {
		e.Problems = append(e.Problems, fault.Problem{Location: "task.reason", Message: r.reason})
	}
	return e
}

// mustRun is an error unless the fence is that of the running attempt.
func (r taskRow) mustRun(f Fence) error {
	switch {
	case !r.holds(f):
		return r.fencedOff(f)
	case r.status != "Running":
		return r.stands(fault.New(fault.Conflict, "task %s is %s already", r.id, r.status))
	}
	return nil
}

// Heartbeat extends the lease of a running attempt. After the lease ran out it is a Conflict, even where no newer attempt
// has begun: whoever was silent for so long does not know what has happened meanwhile.
func (d *Dispatcher) Heartbeat(ctx context.Context, c authz.Capability, h protocol.Heartbeat, now time.Time) (protocol.HeartbeatAnswer, error) {
	var answer protocol.HeartbeatAnswer
	if err := c.Covers(h.Fence); err != nil {
		return answer, err
	}
	err := d.Pool.QueryRow(ctx, `
		UPDATE leases l SET expires_at = $5::timestamptz + make_interval(secs => lease_seconds), heartbeat_at = $5, progress = $6,
			state = coalesce(NULLIF($7, ''), state)
		WHERE task_id = $1 AND attempt = $2 AND lease_token = $3 AND org_id = $4 AND expires_at > $5
		RETURNING expires_at, cancel_requested, l.drain_requested_at IS NOT NULL OR EXISTS (SELECT FROM workers w WHERE w.id = l.worker_id AND w.drained_at IS NOT NULL)`,
		h.TaskID, h.Attempt, h.LeaseToken, c.OrgID, now, h.Progress, h.State).Scan(&answer.LeaseExpiresAt, &answer.CancelRequested, &answer.DrainRequested)
	if errors.Is(err, pgx.ErrNoRows) {
		return answer, d.whyNotHeld(ctx, c, h.Fence)
	}
	if err != nil {
		return answer, fmt.Errorf("heartbeat of task %s: %w", h.TaskID, err)
	}
	if c.ExpiresAt.Sub(now) < capabilityFor/2 {
		c.ExpiresAt = now.Add(max(capabilityFor, 2*answer.LeaseExpiresAt.Sub(now)))
		if answer.CapabilityToken, err = d.Signer.Issue(c, now); err != nil {
			return answer, err
		}
	}
	return answer, nil
}

// whyNotHeld says how a task stands whose lease a call was to extend.
func (d *Dispatcher) whyNotHeld(ctx context.Context, c authz.Capability, f protocol.Fence) error {
	return pg.InOrgTx(ctx, d.Requests, c.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := readTasks(ctx, tx, ids(f.TaskID))
		if err != nil {
			return err
		}
		row, err := rowOf(rows, f.TaskID)
		if err != nil {
			return err
		}
		if err := row.mustRun(Fence(f)); err != nil {
			return err
		}
		return row.stands(fault.New(fault.Conflict, "the lease of attempt %d of task %s has run out", f.Attempt, f.TaskID)).
			WithHint("stop: a completion is still taken while no newer attempt has begun")
	})
}
