package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/worker/protocol"
)

// An attempt outside of the server's process may send each of its calls to any server. Each call loads the attempt anew
// as its claim assigned it, and takes effect in one transaction with the check of its fence. remote_claim.go and
// remote_claim_id.go claim tasks for such attempts, remote_load.go loads the attempts for their calls, remote_seal.go
// seals their uploads, remote_events.go commits on the way, and remote_complete.go ends them.

// RemoteAttempt is an attempt as its claim assigned it.
type RemoteAttempt struct {
	tasks.Fence
	OrgID      uuid.UUID
	Runtime    string
	Job        *registry.Job // the job row of the version by which the task runs
	Assignment operators.Assignment

	Task     Claimed
	row      tasks.Row
	lastCall lastCall
	standing [][]storage.Column // columns, by output, at the claim of a program's task
}

// RunningAttempt loads a running attempt whose fence holds, for calls that only read it: inputs, outputs, logs, query,
// credentials. If the attempt is over it returns a Conflict with the task's state; for a task of another org it returns
// NotFound.
func (d *Dispatcher) RunningAttempt(ctx context.Context, c authz.Capability, f protocol.Fence) (RemoteAttempt, error) {
	attempt, err := d.loadAttempt(ctx, c, f)
	if err == nil {
		err = attempt.row.MustRun(attempt.Fence)
	}
	if err != nil {
		return RemoteAttempt{}, err
	}
	return attempt, nil
}

// Heartbeat extends the lease of a running attempt. It returns a Conflict if the lease has run out, even if no newer
// attempt has begun: a worker that was silent for so long does not know what has happened meanwhile. After a gap in
// which this server could not reach the database, it is not the worker that was silent.
func (d *Dispatcher) Heartbeat(
	ctx context.Context, c authz.Capability, h protocol.Heartbeat, now time.Time,
) (protocol.HeartbeatAnswer, error) {
	var answer protocol.HeartbeatAnswer
	if err := c.Covers(h.Fence); err != nil {
		return answer, err
	}

	h.State = d.redactedState(ctx, c, h)
	var held bool
	err := pg.InOrgTxByKey(ctx, d.Requests, c.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		held, err = beat(ctx, tx, c.OrgID, h, now, d.contact.regained(), &answer)
		return err
	})
	if err != nil {
		return answer, fmt.Errorf("heartbeat of task %s: %w", h.TaskID, err)
	}
	if !held {
		return answer, d.notHeld(ctx, c, h.Fence)
	}

	if c.ExpiresAt.Sub(now) < CapabilityFor/2 {
		c.ExpiresAt = now.Add(max(CapabilityFor, 2*answer.LeaseExpiresAt.Sub(now)))
		if answer.CapabilityToken, err = d.Signer.Issue(c, now); err != nil {
			return answer, err
		}
	}
	return answer, nil
}

// longestState is how many characters or bytes SDKs leave of a state.
const longestState = 1000

// redactedState returns the state of a heartbeat without the secrets of the attempt's job. A state of which they cannot
// be removed is left out: no lease is to end for that.
func (d *Dispatcher) redactedState(ctx context.Context, c authz.Capability, h protocol.Heartbeat) string {
	if h.State == "" {
		return ""
	}
	redactor, err := d.RedactorFor(ctx, c, h.Fence)
	if err != nil {
		return ""
	}
	return redactor.RedactCut(h.State, longestState)
}

// beat extends a lease that is held, and reports whether it is.
func beat(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, h protocol.Heartbeat, now, since time.Time,
	answer *protocol.HeartbeatAnswer,
) (isHeld bool, err error) {
	var b pg.Batch
	targets := []any{&answer.LeaseExpiresAt, &answer.CancelRequested, &answer.DrainRequested}
	b.Query("extend the lease", targets, func() error { isHeld = true; return nil },
		extendLease(`AND org_id = $9 AND NOT worker_token_revoked(worker_token)`, `expires_at, cancel_requested,
			l.drain_requested_at IS NOT NULL
			OR EXISTS (SELECT FROM workers w WHERE `+tasks.HeldBy+` AND w.drained_at IS NOT NULL)`),
		h.TaskID, h.Attempt, h.LeaseToken, now, h.Progress, h.State, since,
		tasks.EventID(now, uuid.New()), org)
	err = b.Send(ctx, tx)
	return isHeld, err
}

// notHeld returns the error of a heartbeat whose lease is not held, with the task's state.
func (d *Dispatcher) notHeld(ctx context.Context, c authz.Capability, f protocol.Fence) error {
	if _, err := d.loadAttempt(ctx, c, f); fault.Is(err, fault.Unauthenticated) {
		return err
	}
	return pg.InOrgTx(ctx, d.Requests, c.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tasks.ReadTasks(new(pg.Batch), []uuid.UUID{f.TaskID}).Get(ctx, tx)
		if err != nil {
			return err
		}
		row, err := tasks.RowOf(rows, f.TaskID)
		if err != nil {
			return err
		}
		if err := row.MustRun(tasks.Fence(f)); err != nil {
			return err
		}

		gone := fault.New(fault.Conflict, "the lease of attempt %d of task %s has run out", f.Attempt, f.TaskID)
		return row.WithState(gone).WithHint("stop: a completion is accepted until a newer attempt begins")
	})
}

// AssignedTask returns the task of a running attempt as its claim assigned it, for an attempt that was started with
// only a reference to it.
func (d *Dispatcher) AssignedTask(ctx context.Context, c authz.Capability, f protocol.Fence) (protocol.Task, error) {
	attempt, err := d.RunningAttempt(ctx, c, f)
	if err != nil {
		return protocol.Task{}, err
	}
	return d.wireTask(attempt.Task, clock.Now())
}
