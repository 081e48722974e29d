package dispatcher

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// Claimed is a task under a lease, with everything that its run needs.
type Claimed struct {
	tasks.Fence
	kind       tasks.Kind
	runtime    string
	Job        *registry.Job
	Slot       string
	lease      time.Duration
	TimeoutAt  time.Time
	Assignment operators.Assignment
	trace      string         // traceparent of its latest span
	Check      *revisionCheck // set for check tasks
}

// Claim takes up to max ready tasks of some runtimes, pins the inputs of each, and leases the tasks to the worker. A
// task is canceled instead if its output is up to date by now or no version uses its origin any more: it has nothing to
// do.
func (d *Dispatcher) Claim(
	ctx context.Context, runtimes []string, worker string, max int, now time.Time,
) ([]Claimed, error) {
	return d.claimShare(ctx, runtimes, worker, max, tasks.Holding{}, now)
}

// claimShare is Claim for a process in which orgs hold slots already.
func (d *Dispatcher) claimShare(
	ctx context.Context, runtimes []string, worker string, max int, holding tasks.Holding, now time.Time,
) ([]Claimed, error) {
	out, err := d.ClaimTaken(ctx, Holder{Worker: worker}, now,
		func(ctx context.Context, tx pgx.Tx) ([]tasks.Taken, error) {
			return d.Tasks.TakeReady(ctx, tx, runtimes, max, holding)
		})
	if err != nil {
		return nil, fmt.Errorf("claim tasks of %s: %w", strings.Join(runtimes, ", "), err)
	}
	return out, nil
}

// Holder is the worker that gets leases.
type Holder struct {
	Worker string
	Remote bool // outside of the server's process: its claims are recorded, so that any server can answer its calls

	token, incarnation string // as in workers; empty: the server itself, or a function that it invokes
}

// claimGrace is how long the server's own claim that is under way may go on while the process stops. Cut off in its
// COMMIT it would leave leases that nobody holds, and their end counts as a failure.
const claimGrace = 10 * time.Second

// ClaimTaken leases the tasks that take removes from the ready set, in the same transaction. The caller of the server's
// own claim gets the tasks although ctx has ended meanwhile, and is to hand them on or back.
func (d *Dispatcher) ClaimTaken(
	ctx context.Context, by Holder, now time.Time, take func(context.Context, pgx.Tx) ([]tasks.Taken, error),
) ([]Claimed, error) {
	var (
		out     []Claimed
		dropped bool
		began   = time.Now()
	)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if by.token == "" {
		var end context.CancelFunc
		ctx, end = outlive(ctx, claimGrace)
		defer end()
		if err := d.handBackUnanswered(ctx, by.Worker, now); err != nil {
			return nil, err
		}
	}

	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		out, dropped = nil, false
		taken, err := take(ctx, tx)
		if err != nil || len(taken) == 0 {
			return err
		}
		out, err = d.leaseTaken(ctx, tx, taken, by, now)
		dropped = len(out) < len(taken)
		return err
	})
	if err != nil {
		if by.token == "" && pg.Away(err) {
			d.unanswered.note(by.Worker, now)
		}
		return nil, err
	}

	if dropped {
		d.Wakeups.Send(d.Progressed()...)
	}
	d.Metrics.Batch("claim", began, len(out))
	d.tracing.claimed(out, began)
	return out, nil
}

// outlive returns a context that goes on for a while after ctx has ended, until end is called.
func outlive(ctx context.Context, grace time.Duration) (longer context.Context, end context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return longer, func() {
		forget()
		cancel()
	}
}

// unanswered are claims of this process whose answers were lost with the connection. The leases of those that took
// effect are known by worker and time, which no other claim shares.
type unanswered struct {
	mu     sync.Mutex
	claims map[string][]time.Time // by worker
}

// unansweredFor is how long a lost claim may still take effect: its COMMIT goes on without its connection.
const unansweredFor = time.Minute

func (u *unanswered) note(worker string, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.claims == nil {
		u.claims = map[string][]time.Time{}
	}
	u.claims[worker] = append(u.claims[worker], at)
}

// of returns when the claims of a worker were made that may still take effect at a time.
func (u *unanswered) of(worker string, now time.Time) []time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.claims[worker]) == 0 {
		return nil
	}
	u.claims[worker] = slices.DeleteFunc(u.claims[worker], func(at time.Time) bool {
		return now.Sub(at) > unansweredFor
	})
	return slices.Clone(u.claims[worker])
}

// handBackUnanswered hands back the tasks that this process has claimed without hearing of it: nobody runs them, and
// the end of their leases would count as a failure.
func (d *Dispatcher) handBackUnanswered(ctx context.Context, worker string, now time.Time) error {
	times := d.unanswered.of(worker, now)
	if len(times) == 0 {
		return nil
	}
	rows, err := d.Pool.Query(ctx, `
		SELECT task_id, attempt, lease_token, origin_job_id FROM leases
		WHERE worker_id = $1 AND worker_token = '' AND heartbeat_at = ANY($2)`, worker, times)
	if err != nil {
		return fmt.Errorf("find claims without an answer: %w", err)
	}
	lost, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Claimed, err error) {
		c.Job = new(registry.Job)
		err = row.Scan(&c.TaskID, &c.Attempt, &c.LeaseToken, &c.Job.Origin)
		return c, err
	})
	if err != nil {
		return fmt.Errorf("find claims without an answer: %w", err)
	}

	for _, c := range lost {
		err := d.HandBack(ctx, c, "the answer to its claim was lost", now, now)
		if err != nil && !fault.Is(err, fault.Conflict) {
			return err
		}
	}
	return nil
}

// leaseTaken pins the inputs of tasks that were taken from the ready set, and leases the tasks. It cancels those that
// have nothing to do, and marks and puts aside those that may not run, or not here.
func (d *Dispatcher) leaseTaken(
	ctx context.Context, tx pgx.Tx, taken []tasks.Taken, by Holder, now time.Time,
) ([]Claimed, error) {
	origins := make([]uuid.UUID, len(taken))
	for i, c := range taken {
		origins[i] = c.Origin
	}
	acting, err := d.Registry.ActingJobs(ctx, tx, tasks.SortedIDs(origins))
	if err != nil {
		return nil, err
	}
	taken, err = d.runnable(ctx, tx, taken, func(c tasks.Taken) *registry.Job { return acting[c.Origin].Job }, now)
	if err != nil {
		return nil, err
	}

	pins, obsolete, err := d.pin(ctx, tx, taken, acting)
	if err != nil {
		return nil, err
	}

	var idle, leased []tasks.Taken
	for i, c := range taken {
		if reason, ok := obsolete[c.Task]; ok {
			c.Idle = reason
			idle = append(idle, c)
			continue
		}
		c.Pins, c.Job = pins[i], acting[c.Origin].Job
		leased = append(leased, c)
	}

	if err := d.cancelClaimed(ctx, tx, idle, now); err != nil {
		return nil, err
	}
	return d.lease(ctx, tx, leased, nil, by, now)
}

// runnable puts aside the tasks of jobs that read what those may not read any more on whose authority their versions
// run, and those whose partitions this server does not know, and returns the others. The authority's review takes the
// former back once somebody answers for them; the latter are offered to all servers again after a while.
func (d *Dispatcher) runnable(ctx context.Context, tx pgx.Tx, taken []tasks.Taken,
	jobOf func(tasks.Taken) *registry.Job, now time.Time) ([]tasks.Taken, error) {
	var jobs []*registry.Job
	for _, c := range taken {
		if job := jobOf(c); job != nil {
			jobs = append(jobs, job)
		}
	}
	lost, err := d.Registry.LostAuthorityOf(ctx, tx, jobs)
	if err != nil {
		return nil, err
	}

	var kept, aside, unknown []tasks.Taken
	for i, c := range taken {
		job := jobOf(c)
		switch {
		case job == nil:
			kept = append(kept, c)
		case lost[job.ID].Jobs != nil:
			taken[i].Aside = true
			aside = append(aside, c)
		default:
			if err := knows(job, c); err != nil {
				taken[i].Aside, c.Unknown = true, err.Error()
				unknown = append(unknown, c)
				continue
			}
			kept = append(kept, c)
		}
	}

	if len(aside) > 0 {
		if err := d.Tasks.PutAside(ctx, tx, aside, tasks.OfAuthority, now); err != nil {
			return nil, err
		}
	}
	if len(unknown) > 0 {
		return kept, d.leaveToOthers(ctx, tx, unknown, now)
	}
	return kept, nil
}

// unknownAgain is how long a task waits whose partition the server does not know that took it.
const unknownAgain = time.Minute

// leaveToOthers puts aside tasks whose partitions this server does not know: a newer one wrote them, as while servers
// are replaced.
func (d *Dispatcher) leaveToOthers(ctx context.Context, tx pgx.Tx, unknown []tasks.Taken, now time.Time) error {
	pg.AfterCommit(ctx, func() {
		d.Log.Warn("left tasks to other servers: this one does not know their partitions", "tasks", len(unknown),
			"first", unknown[0].Task, "error", unknown[0].Unknown)
	})
	return d.Tasks.LeaveToOthers(ctx, tx, unknown, now.Add(unknownAgain), now)
}

// knows returns an error if this server cannot tell which partition a task makes or checks. It is pure.
func knows(job *registry.Job, c tasks.Taken) error {
	by := job.Def.PartitionBy
	if by.Kind != dag.ByTime {
		return nil
	}

	if c.Kind == tasks.KindCheck {
		var check CheckPayload
		if err := json.Unmarshal(c.Payload, &check); err != nil {
			return fmt.Errorf("payload of the check: %w", err)
		}
		_, _, err := by.Bounds(check.Partition)
		return err
	}
	if len(c.Partitions) == 0 || job.Def.Splits() {
		return nil
	}
	_, _, err := by.Bounds(c.Partitions[0])
	return err
}

// pin returns the input revisions that each task is to read, and the tasks that have become obsolete, with the reasons.
func (d *Dispatcher) pin(
	ctx context.Context, tx pgx.Tx, taken []tasks.Taken, acting map[uuid.UUID]registry.Acting,
) ([][]registry.Pin, map[uuid.UUID]string, error) {
	pins := make([][]registry.Pin, len(taken))
	obsolete := map[uuid.UUID]string{}

	var (
		targets []stale.Target
		index   []int
	)
	for i, c := range taken {
		a, ok := acting[c.Origin]
		if !ok {
			obsolete[c.Task] = "no version uses this job any more"
			continue
		}
		if a.Job.Def.Activation == dag.ActivationReactive && c.Kind != tasks.KindCheck {
			targets, index = append(targets, stale.Target{Job: a.Job, Key: c.Slot}), append(index, i)
		}
	}

	if err := d.Stale.LockCursors(ctx, tx, targets); err != nil {
		return nil, nil, err
	}
	findings, err := d.Stale.Examine(ctx, tx, targets)
	if err != nil {
		return nil, nil, err
	}
	var notes pg.Batch
	stale.NoteAwaited(&notes, findings)
	if err := notes.SendLast(ctx, tx); err != nil {
		return nil, nil, err
	}

	for n, f := range findings {
		c := taken[index[n]]
		switch f.Verdict {
		case stale.Stale:
			pins[index[n]] = f.Pins
		case stale.Current:
			if c.Kind == tasks.KindBackfill { // it was asked for although the output is up to date
				pins[index[n]] = f.Pins
				continue
			}
			obsolete[c.Task] = "the output is up to date"
		case stale.Incomplete, stale.Blocked:
			obsolete[c.Task] = f.Missing
		}
	}
	return pins, obsolete, nil
}

// cancelClaimed ends tasks that were taken from the ready set and have nothing to do. If their work is wanted again,
// the same rows are used again.
func (d *Dispatcher) cancelClaimed(ctx context.Context, tx pgx.Tx, idle []tasks.Taken, now time.Time) error {
	if len(idle) == 0 {
		return nil
	}

	freed := map[tasks.Limit]int{}
	list, reasons := make([]uuid.UUID, len(idle)), make([]string, len(idle))
	for i, c := range idle {
		list[i], reasons[i] = c.Task, c.Idle
		tasks.AddFreed(freed, c.Org, c.Limits)
	}

	_, err := tx.Exec(ctx, `
		WITH done AS (
			UPDATE tasks t
			SET status = 'Canceled', reason = 'superseded', state = w.reason, completed_at = $3, version = version + 1
			FROM unnest($1::uuid[], $2::text[]) AS w(id, reason)
			WHERE t.id = w.id AND t.status = 'Queued' RETURNING t.id, t.org_id, t.attempt, t.state)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, at)
		SELECT uuid_v7(), org_id, id, attempt, 'Queued', 'Canceled', 'SYSTEM', state, $3 FROM done`, list, reasons, now)
	if err != nil {
		return fmt.Errorf("cancel %d tasks: %w", len(idle), err)
	}
	return d.Tasks.ReleaseAll(ctx, tx, freed, now)
}

// lease makes tasks Running, each under a new token, and records where their attempts may write before they write
// anything. loaded holds the inputs of the claim, without their generations; where it is nil, lease loads them.
func (d *Dispatcher) lease(
	ctx context.Context, tx pgx.Tx, taken []tasks.Taken, loaded *pg.Later[claimInputs], by Holder, now time.Time,
) ([]Claimed, error) {
	if len(taken) == 0 {
		return nil, nil
	}
	if err := fixRanges(ctx, tx, taken); err != nil {
		return nil, err
	}
	inputs, err := d.loadInputs(ctx, tx, taken, loaded)
	if err != nil {
		return nil, err
	}

	var (
		out                    = make([]Claimed, len(taken))
		list, orgs, origins    []uuid.UUID
		tokens                 []uuid.UUID
		slots, pins, staging   []string
		records                []string // the claim records of remote attempts
		attempts, leaseSeconds []int
		expires, timeouts      []time.Time
		stateKeys              []string
		states                 []int64 // the versions of the operator states
	)
	for i, c := range taken {
		t := Claimed{kind: c.Kind, runtime: c.Runtime, trace: c.Trace, Job: c.Job, Slot: c.Slot,
			lease:     cmp.Or(c.Job.Def.HeartbeatTimeout, d.Lease),
			TimeoutAt: now.Add(cmp.Or(c.Job.Def.Timeout, noTimeout)),
			Fence:     tasks.Fence{TaskID: c.Task, Attempt: c.Attempt, LeaseToken: uuid.New()}}
		if c.Started {
			t.Attempt++ // the attempt before lost its lease, failed or was handed back
		}

		if t.Assignment, t.Check, err = d.assign(ctx, tx, t, c, inputs); err != nil {
			return nil, err
		}
		locations := []string{}
		for _, o := range d.staged(c.Job, t.Assignment.Outputs) {
			locations = append(locations, d.Storage.Location(storage.Attempt{Generation: o.Generation,
				Partition: partitionOf(t.Assignment), Task: c.Task, Number: t.Attempt, Output: o.Index}))
		}
		pinned, err := json.Marshal(inputs.stamp(c.Pins))
		if err != nil {
			return nil, err
		}
		record, err := by.record(t, inputs)
		if err != nil {
			return nil, err
		}

		list, orgs, origins = append(list, c.Task), append(orgs, c.Org), append(origins, c.Origin)
		slots, attempts, tokens = append(slots, c.Slot), append(attempts, t.Attempt), append(tokens, t.LeaseToken)
		leaseSeconds = append(leaseSeconds, int(t.lease.Seconds()))
		expires, timeouts = append(expires, now.Add(t.lease)), append(timeouts, t.TimeoutAt)
		pins = append(pins, string(pinned))
		staging = append(staging, strings.Join(locations, "\n")) // a location has no newline: it is escaped
		records = append(records, string(record))
		slot := slotOfTaken(c)
		stateKeys, states = append(stateKeys, slot.key), append(states, inputs.states[slot].version)
		out[i] = t
	}

	var b pg.Batch
	b.Exec(fmt.Sprintf("lease %d tasks", len(taken)), `
		WITH w AS (
			SELECT * FROM unnest($3::uuid[], $4::uuid[], $5::uuid[], $6::text[], $7::int[], $8::uuid[], $9::int[],
				$10::timestamptz[], $11::timestamptz[], $12::text[], $13::text[], $14::text[],
				$17::bigint[], $18::text[])
				AS w(task, org, origin, slot, attempt, token, seconds, expires_at, timeout_at, pins, staging, given,
					state_version, state_key)),
		leased AS (
			INSERT INTO leases (task_id, org_id, origin_job_id, slot, attempt, lease_token, worker_id, lease_seconds,
				expires_at, timeout_at, heartbeat_at, worker_token, incarnation, state_version, state_key, staging)
			SELECT task, org, origin, slot, attempt, token, $1, seconds, expires_at, timeout_at, $2, $15, $16,
				state_version, state_key,
				CASE WHEN attempt = 1 AND given = '' THEN string_to_array(staging, E'\n') ELSE '{}' END FROM w),
		tried AS (
			INSERT INTO task_attempts (task_id, attempt, org_id, worker_id, started_at, staging, given)
			SELECT task, attempt, org, $1, $2, string_to_array(staging, E'\n'), NULLIF(given, '')::jsonb
			FROM w WHERE attempt > 1 OR given <> '')
		UPDATE tasks t SET status = 'Running', attempt = w.attempt, worker_id = $1, lease_token = w.token,
			lease_expires_at = w.expires_at, last_heartbeat = $2, timeout_at = w.timeout_at, started_at = $2,
			completed_at = NULL, next_retry_at = NULL, input_versions = w.pins::jsonb, progress = 0, state = NULL,
			version = version + 1
		FROM w WHERE t.id = w.task`,
		by.Worker, now, list, orgs, origins, slots, attempts, tokens, leaseSeconds,
		expires, timeouts, pins, staging, records, by.token, by.incarnation, states, stateKeys)
	return out, b.SendLast(ctx, tx)
}

// staged returns the outputs that an attempt may write files for: none if the operator writes no files.
func (d *Dispatcher) staged(job *registry.Job, outputs []operators.AssignedOutput) []operators.AssignedOutput {
	if op, ok := d.Operators.Get(job.Def.Operator); ok && op.Spec().NoFiles {
		return nil
	}
	return outputs
}

// noTimeout is the timeout of jobs that declare none.
const noTimeout = 24 * time.Hour
