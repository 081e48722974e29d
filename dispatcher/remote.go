package dispatcher

import (
	"context"
	"fmt"
	"sync"
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
	return d.heartbeat(ctx, c, h, now, d.beatAlone)
}

// HeartbeatBeside is like Heartbeat, for one of many calls that are made at the same time: their leases are extended
// together.
func (d *Dispatcher) HeartbeatBeside(
	ctx context.Context, c authz.Capability, h protocol.Heartbeat, now time.Time,
) (protocol.HeartbeatAnswer, error) {
	return d.heartbeat(ctx, c, h, now, d.beatTogether)
}

// extending extends a lease that is held, and reports whether it is.
type extending func(
	ctx context.Context, org uuid.UUID, h protocol.Heartbeat, now time.Time,
) (answer protocol.HeartbeatAnswer, isHeld bool, err error)

func (d *Dispatcher) heartbeat(
	ctx context.Context, c authz.Capability, h protocol.Heartbeat, now time.Time, extend extending,
) (answer protocol.HeartbeatAnswer, err error) {
	if err := c.Covers(h.Fence); err != nil {
		return answer, err
	}

	h.State = d.redactedState(ctx, c, h)
	answer, held, err := extend(ctx, c.OrgID, h, now)
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

// beatColumns are what a heartbeat answers of the lease l.
const beatColumns = `expires_at, cancel_requested, l.drain_requested_at IS NOT NULL
	OR EXISTS (SELECT FROM workers w WHERE ` + tasks.HeldBy + ` AND w.drained_at IS NOT NULL)`

// beatAlone extends a lease by itself.
func (d *Dispatcher) beatAlone(
	ctx context.Context, org uuid.UUID, h protocol.Heartbeat, now time.Time,
) (answer protocol.HeartbeatAnswer, isHeld bool, err error) {
	err = pg.InOrgTxByKey(ctx, d.Requests, org, func(ctx context.Context, tx pgx.Tx) error {
		var b pg.Batch
		targets := []any{&answer.LeaseExpiresAt, &answer.CancelRequested, &answer.DrainRequested}
		isHeld = false
		b.Query("extend the lease", targets, func() error { isHeld = true; return nil },
			extendLease(`AND org_id = $9 AND NOT worker_token_revoked(worker_token)`, beatColumns),
			h.TaskID, h.Attempt, h.LeaseToken, now, h.Progress, h.State, d.contact.regained(),
			tasks.EventID(now, uuid.New()), org)
		return b.Send(ctx, tx)
	})
	return answer, isHeld, err
}

// beating is a heartbeat on its way into a batch.
type beating struct {
	org  uuid.UUID
	beat protocol.Heartbeat
	now  time.Time
	done chan struct{} // closed when the rest is the answer

	answer protocol.HeartbeatAnswer
	held   bool
	err    error
}

// beatBatch is how many leases one statement may extend; beatLanes is how many such statements a process runs at once.
const (
	beatBatch   = 100
	beatLanes   = 2
	beatTimeout = 30 * time.Second
)

// beatTogether extends a lease together with others. A lease that is not held, or that somebody else changes just now,
// is extended by itself: nobody else is to wait for it.
func (d *Dispatcher) beatTogether(
	ctx context.Context, org uuid.UUID, h protocol.Heartbeat, now time.Time,
) (answer protocol.HeartbeatAnswer, isHeld bool, err error) {
	x := &beating{org: org, beat: h, now: now, done: make(chan struct{})}
	d.beats.Add(x)
	select {
	case <-x.done:
	case <-ctx.Done():
		return answer, false, context.Cause(ctx)
	}
	if x.held || pg.Away(x.err) {
		return x.answer, x.held, x.err
	}
	return d.beatAlone(ctx, org, h, now)
}

// beatAll extends leases, those of each org in a transaction of their own: no transaction sees more than one org.
func (d *Dispatcher) beatAll(all []*beating) {
	byOrg := map[uuid.UUID]map[uuid.UUID]*beating{} // by task: only one of two heartbeats can be part of a statement
	for _, x := range all {
		if byOrg[x.org] == nil {
			byOrg[x.org] = map[uuid.UUID]*beating{}
		}
		byOrg[x.org][x.beat.TaskID] = x
	}

	var orgs sync.WaitGroup
	for org, some := range byOrg {
		orgs.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), beatTimeout)
			defer cancel()
			err := pg.InOrgTxByKey(ctx, d.Requests, org, func(ctx context.Context, tx pgx.Tx) error {
				return extendMany(ctx, tx, org, some, d.contact.regained())
			})
			for _, x := range some {
				if x.err = err; err != nil {
					x.held = false // nothing was committed
				}
			}
		})
	}
	orgs.Wait()
	for _, x := range all {
		close(x.done)
	}
}

// extendMany extends the leases of an org's tasks that are held and that nobody else has locked. It is extendLease for
// many, and relies on the primary key of leases.
func extendMany(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, some map[uuid.UUID]*beating, since time.Time,
) error {
	var (
		list, tokens, steps []uuid.UUID
		attempts, percents  []int
		states              []string
		now                 time.Time
	)
	for _, x := range some {
		x.held = false
		list, tokens = append(list, x.beat.TaskID), append(tokens, x.beat.LeaseToken)
		attempts, percents = append(attempts, x.beat.Attempt), append(percents, x.beat.Progress)
		states, steps = append(states, x.beat.State), append(steps, tasks.EventID(x.now, uuid.New()))
		if x.now.After(now) {
			now = x.now
		}
	}

	var (
		task   uuid.UUID
		answer protocol.HeartbeatAnswer
		b      pg.Batch
	)
	step := fmt.Sprintf(`(b.said <> '' AND l.state IS DISTINCT FROM b.said AND l.steps < %d)`, stepsKept)
	targets := []any{&task, &answer.LeaseExpiresAt, &answer.CancelRequested, &answer.DrainRequested}
	b.Query("extend leases", targets, func() error { some[task].answer, some[task].held = answer, true; return nil }, `
		WITH beats AS MATERIALIZED (
			SELECT b.* FROM unnest($1::uuid[], $2::int[], $3::uuid[], $5::int[], $6::text[], $8::uuid[])
				AS b (of_task, of_attempt, of_token, percent, said, step_id),
			LATERAL (SELECT FROM leases WHERE task_id = of_task AND attempt = of_attempt AND lease_token = of_token
				FOR NO KEY UPDATE SKIP LOCKED) mine),
		extended AS (
			UPDATE leases l SET expires_at = $4::timestamptz + make_interval(secs => lease_seconds), heartbeat_at = $4,
				progress = b.percent, state = coalesce(NULLIF(b.said, ''), l.state), steps = l.steps + `+step+`::int,
				stepped = `+step+`
			FROM beats b
			WHERE task_id = of_task AND attempt = of_attempt AND lease_token = of_token AND `+held("$4", "$7")+`
				AND org_id = $9 AND NOT worker_token_revoked(worker_token)
			RETURNING l.*, b.step_id),
		step AS (
			INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, detail, at)
			SELECT step_id, org_id, task_id, attempt, 'Running', 'Running', 'WORKER', state,
				jsonb_build_object('progress', progress), heartbeat_at
			FROM extended WHERE stepped)
		SELECT task_id, `+beatColumns+` FROM extended l`,
		list, attempts, tokens, now, percents, states, since, steps, org)
	return b.Send(ctx, tx)
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
