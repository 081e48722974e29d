package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/deliveries"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
)

// runInProcess claims tasks of this process's runtimes and runs them, PoolSize at a time, until ctx ends. Then it stops
// them and hands their leases back, so that another process goes on at once; it drains those of always_on sources.
func (d *Dispatcher) runInProcess(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	runtimes := d.InProcessRuntimes()
	body := func(ctx context.Context, now time.Time) (bool, error) {
		return d.ClaimAndRun(ctx, runtimes, &running, now)
	}
	return d.run(ctx, Loop{Name: "claim", Woken: d.Wakeups.Claim, Body: body})
}

// InProcessRuntimes returns the runtimes that this process serves. Every process serves CheckRuntime.
func (d *Dispatcher) InProcessRuntimes() []string {
	for _, r := range d.Runtimes {
		if r == CheckRuntime {
			return d.Runtimes
		}
	}
	return append([]string{CheckRuntime}, d.Runtimes...)
}

// SlotWait is how long a claim waits for more slots to come free while most of them are taken. Short tasks end by the
// hundred in that time, and claiming many costs little more than claiming one.
const SlotWait = 2 * time.Millisecond

// ClaimAndRun claims as many tasks as there are free slots and starts them. It reports whether more tasks may be ready
// for the slots that are left. Where the slots are too few, the next one that comes free wakes the claim loop.
func (d *Dispatcher) ClaimAndRun(
	ctx context.Context, runtimes []string, running *sync.WaitGroup, now time.Time,
) (more bool, err error) {
	d.slotsShort.Store(true)            // before the slots are counted: one that comes free later wakes the loop
	free := cap(d.slots) - len(d.slots) // only this loop takes slots, so there are at least as many
	if !d.takesTasks() {
		return false, nil
	}
	if free == 0 {
		return d.claimSpare(ctx, runtimes, running, now)
	}

	if free < cap(d.slots)/4 {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(SlotWait):
			free = cap(d.slots) - len(d.slots)
		}
	}

	tasks, err := d.claimShare(ctx, runtimes, d.WorkerID, free, d.shares.holding(), now)
	if err != nil {
		return false, err
	}

	d.slotsShort.Store(len(tasks) == free)
	for i := range tasks {
		t := &tasks[i]
		d.slots <- struct{}{}
		release := d.shares.hold(t.Job.OrgID, false)
		running.Go(func() {
			defer func() {
				release()
				<-d.slots
				d.pokeIfShort()
			}()
			d.runOn(ctx, t)
		})
	}

	return d.Tasks.MoreReady(), nil
}

// takesTasks reports whether this process claims tasks: nobody has drained it, and it can use its storage.
func (d *Dispatcher) takesTasks() bool { return !d.drained.Load() && d.Health.Reason() == "" }

// pokeIfShort wakes the claim loop if it could use the slot that came free.
func (d *Dispatcher) pokeIfShort() {
	if d.slotsShort.Load() {
		wakeup.Poke(d.Wakeups.Claim)
	}
}

// runOn runs a task and then, in the same slot, the task that was claimed with its completion, and so on.
func (d *Dispatcher) runOn(ctx context.Context, t *Claimed) {
	for t != nil {
		var next *Claimed
		d.Attempt(ctx, t, func(c Claimed) { next = &c })
		t = next
	}
}

// Attempt runs one task to its end and reports the end; it calls then with a task that the completion claimed. The run
// is stopped when its time is up, when it is canceled, when its lease is lost, and when the process stops. An always_on
// source is asked to end instead when the process stops, so that what it has not committed yet counts too. It adds to
// the task's assignment what the run needs.
func (d *Dispatcher) Attempt(ctx context.Context, t *Claimed, then func(Claimed)) {
	base := ctx
	if t.Slot == AlwaysOnSlot {
		base = context.WithoutCancel(ctx)
	}

	runCtx, stop := context.WithCancelCause(base)
	defer stop(nil)
	runCtx, cancel := context.WithTimeoutCause(runCtx, t.TimeoutAt.Sub(clock.Now()), ErrTimedOut)
	defer cancel()

	// step changes the task's trace, and the next lines change its assignment: all before keepLease reads the task.
	stepCtx, ran := d.tracing.step(runCtx, "run", t)
	var drain chan struct{}
	if t.Slot == AlwaysOnSlot {
		drain = make(chan struct{})
		t.Assignment.Drain = drain
	}

	commits := &inProcessCommits{D: d, T: t, Stop: stop}
	t.Assignment.Committer = commits

	progress := &ProgressNote{}
	beating := make(chan struct{})
	interval := min(t.lease/3, 2*time.Second)
	beat := time.AfterFunc(interval, func() {
		defer close(beating)
		d.keepLease(runCtx, t.Fence, interval, progress, stop)
	})

	if drain != nil {
		go d.awaitDrain(runCtx, t.Fence, ctx.Done(), drain, stop)
	}

	done := d.RunTask(stepCtx, t, progress)
	ran(done.Outcome.Err)
	if ctx.Err() == nil && d.takesTasks() {
		done.Then = then
	}

	cause := context.Cause(runCtx)
	stop(nil)
	if !beat.Stop() {
		<-beating
	}
	ended := *t
	ended.Assignment = commits.finalAssignment(t.Assignment)

	// The result is reported even if the process is about to stop.
	report, cancelReport := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancelReport()
	if err := d.reportUntilHeard(report, ended, done, cause, ctx.Err() != nil); err != nil {
		log := d.Log.With("org", t.Job.OrgSlug, "dag", t.Job.DAG, "job", t.Job.Name,
			"task", t.TaskID, "attempt", t.Attempt)
		if fault.Is(err, fault.Conflict) {
			log.Warn("the task went on without this attempt", "error", err)
			return
		}
		log.Error("could not report the end of a task: its lease will run out", "error", err)
	}
}

// The causes for which a run is stopped.
var (
	ErrTimedOut = operators.ErrTimedOut // the runner and the dispatcher both watch the time: either may stop it
	errCanceled = errors.New("the task was canceled")
	errFenced   = errors.New("the lease was lost")
)

// RunTask runs the operator of a task, or its checks if it is a check task.
func (d *Dispatcher) RunTask(ctx context.Context, t *Claimed, progress *ProgressNote) Completion {
	if t.Check != nil {
		outcomes, err := d.runChecks(ctx, *t)
		return Completion{checks: outcomes, Outcome: operators.Outcome{Err: err, Retryable: true}}
	}

	a := t.Assignment
	if names := t.Job.Def.Secrets; len(names) > 0 {
		var err error
		// The secrets are opened after the claim, so that a claim never stores a value.
		if a.Secrets, err = d.Vault.Reveal(ctx, t.Job.OrgID, t.Job.SecretUser(), names); err != nil {
			return Completion{Outcome: operators.Outcome{Err: err, Retryable: !fault.Is(err, fault.Forbidden)}}
		}
	}

	none := d.noRowsOf(t)
	a.NoRows, a.Checks, a.Splits = none, t.Job.Def.Checks, splits{none}
	a.Deliveries = deliveries.Ledger{Pool: d.Pool, Org: t.Job.OrgID, DAG: t.Job.DAG, Job: t.Job.Def.Identity(),
		Fence: t.Fence}
	return Completion{Outcome: d.Runner.Run(ctx, a, progress.set)}
}

// reportUntilHeard is Report, said again while the database is away: what was done is not to be lost for that. An end
// that took effect although its answer was lost is acknowledged.
func (d *Dispatcher) reportUntilHeard(
	ctx context.Context, t Claimed, done Completion, cause error, stopping bool,
) error {
	for n := 0; ; n++ {
		err := d.Report(ctx, t, done, cause, stopping)
		if err == nil || !pg.Away(err) || pauseAway(ctx, n, 2*time.Second) != nil {
			return err
		}
	}
}

// pauseAway waits before the n-th repetition of what the database was away for, up to a time, or until ctx ends.
func pauseAway(ctx context.Context, n int, most time.Duration) error {
	timer := time.NewTimer(wakeup.Jitter(min(50*time.Millisecond<<min(n, 10), most)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// Report commits the result of a run, or ends the attempt as the run ended: failed, canceled or handed back. cause is
// the cause for which the run was stopped, if it was.
func (d *Dispatcher) Report(ctx context.Context, t Claimed, done Completion, cause error, stopping bool) error {
	now := clock.Now()
	err := done.Outcome.Err
	switch {
	case err == nil:
		err = d.CompleteAttempt(ctx, t, done, now)
		switch {
		case err == nil, fault.Is(err, fault.Conflict), errors.Is(err, errUnanswered):
			return err
		case errors.Is(err, ErrBaseMoved):
			return d.HandBack(ctx, t, err.Error(), now.Add(baseMovedAgain), now)
		}

		// The work was done but cannot be committed: files are gone, a foreign key is violated.
		return d.failOrSpare(ctx, t, err, !fault.Is(err, fault.Invalid), now)
	case errors.Is(err, ErrTimedOut):
		return d.Fail(ctx, t, tasks.ReasonTimeout, err, true, now)
	case errors.Is(cause, ErrTimedOut):
		return d.Fail(ctx, t, tasks.ReasonTimeout, ErrTimedOut, true, now)
	case errors.Is(cause, errCanceled):
		return d.CancelRunning(ctx, t, now)
	case isDrained(t):
		return d.HandBack(ctx, t, "it was drained", now, now)
	case errors.Is(cause, ErrBaseMoved):
		return d.HandBack(ctx, t, ErrBaseMoved.Error(), now.Add(baseMovedAgain), now)
	case errors.Is(cause, errFenced):
		return fault.New(fault.Conflict, "task %s: %w", t.TaskID, errFenced)
	case stopping:
		return d.HandBack(ctx, t, "the process was stopped", now, now)
	case errors.Is(err, operators.ErrColumnsSettled):
		return d.HandBack(ctx, t, err.Error(), now.Add(baseMovedAgain), now)
	case operators.SaysNothing(err):
		return d.waitForColumns(ctx, t, err, now)
	}
	return d.failOrSpare(ctx, t, err, done.Outcome.Retryable, now)
}

// storageAgain is how long a task waits that met a storage that is away. No server whose storage is still away takes it
// then, and another may.
const storageAgain = 5 * time.Second

// failOrSpare ends an attempt that did not do its work: it hands the task back if the storage is to blame.
func (d *Dispatcher) failOrSpare(ctx context.Context, t Claimed, cause error, retryable bool, now time.Time) error {
	reason, tooOften := d.Health.Explains(ctx, t.TaskID, cause)
	if reason != "" {
		d.Health.Spared()
		return d.HandBack(ctx, t, reason, now.Add(storageAgain), now)
	}
	return d.Fail(ctx, t, tasks.ReasonError, cmp.Or(tooOften, cause), retryable, now)
}

// Fail ends an attempt that did not do its work.
func (d *Dispatcher) Fail(
	ctx context.Context, t Claimed, reason tasks.Reason, cause error, retryable bool, now time.Time,
) error {
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		return d.failTx(ctx, tx, t, reason, cause, retryable, now)
	})
	d.Wakeups.Send(d.Progressed()...)
	return err
}

// CancelRunning ends an attempt that was stopped because its task was canceled.
func (d *Dispatcher) CancelRunning(ctx context.Context, t Claimed, now time.Time) error {
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		row, err := tasks.LockTask(ctx, tx, t.Fence)
		if err != nil {
			return err
		}
		if !row.Holds(t.Fence) || row.Status != tasks.Running {
			return fault.New(fault.Conflict, "task %s is already %s", row.ID, row.Status)
		}

		e := tasks.Ending{Status: tasks.Canceled, Reason: tasks.ReasonSuperseded, Actor: "WORKER"}
		if row.CancelAsked { // a user asked, and not a cutover, which may want the task again
			e.Reason = tasks.ReasonCanceled
		}
		return d.Tasks.Finish(ctx, tx, new(pg.Batch), []tasks.Ended{{Row: row, Ending: e}}, nil, now)
	})
	d.Wakeups.Send(d.Progressed()...)
	return err
}

// baseMovedAgain is how long a task waits whose base has moved: the new base may have to be checked first.
const baseMovedAgain = time.Second

// HandBack makes a running task claimable again from a time on, which may be now, without counting a failure.
func (d *Dispatcher) HandBack(ctx context.Context, t Claimed, why string, from, now time.Time) error {
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := tasks.LockOrigins(ctx, tx, []uuid.UUID{t.Job.Origin}); err != nil {
			return err
		}

		row, err := tasks.LockTask(ctx, tx, t.Fence)
		if err != nil {
			return err
		}
		if !row.Holds(t.Fence) || row.Status != tasks.Running {
			return fault.New(fault.Conflict, "task %s is already %s", row.ID, row.Status)
		}

		e := tasks.Ending{Status: tasks.Failed, Reason: tasks.ReasonHandedBack, State: why, Actor: d.WorkerID,
			RetryAt: &from}
		return d.requeue(ctx, tx, row, e, now)
	})
	d.Wakeups.Send(wakeup.Claim, wakeup.Promote)
	return err
}

// requeue ends a running attempt that is to be tried again, now or later.
func (d *Dispatcher) requeue(ctx context.Context, tx pgx.Tx, row tasks.Row, e tasks.Ending, now time.Time) error {
	ended := []tasks.Ended{{Row: row, Ending: row.UnlessCanceled(e)}}
	err := d.Tasks.Finish(ctx, tx, new(pg.Batch), ended, nil, now)
	if err != nil || row.CancelAsked || e.RetryAt.After(now) {
		return err
	}
	_, err = d.Tasks.PromoteFailed(ctx, tx, `task_id = $1`, "SYSTEM", now, row.ID)
	return err
}

// ProgressNote holds the progress that an operator reported last.
type ProgressNote struct {
	mu      sync.Mutex
	percent int
	state   string
}

func (p *ProgressNote) set(percent int, state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.percent, p.state = min(max(percent, 0), 100), state
}

func (p *ProgressNote) get() (int, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.percent, p.state
}

// keepLease extends the lease at once and then at every interval until ctx ends. It stops the run if the task was
// canceled or the lease is lost.
func (d *Dispatcher) keepLease(
	ctx context.Context, f tasks.Fence, interval time.Duration, progress *ProgressNote, stop context.CancelCauseFunc,
) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		percent, state := progress.get()
		began := clock.Now()
		canceled, held, err := d.ExtendLease(ctx, f, percent, state, began)
		d.contact.took(began, clock.Now())
		switch {
		case err != nil && ctx.Err() == nil:
			d.Log.Warn("heartbeat failed", "task", f.TaskID, "error", err)
		case err == nil && !held:
			stop(errFenced)
			return
		case canceled:
			stop(errCanceled)
			return
		}

		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// stepsKept is how many steps of an attempt its trail has at most: the first ones.
const stepsKept = 50

// extendLease returns the statement of a heartbeat. Its arguments: the fence, $4 the time, $5 the progress in percent,
// $6 a text for people or "", $7 when the database was reached again, $8 the id of a step in the trail, by the clock
// that gives the task's end its place there. It adds a condition, and returns columns of the lease l; nothing if the
// lease is not held.
func extendLease(condition, returning string) string {
	step := fmt.Sprintf(`($6 <> '' AND state IS DISTINCT FROM $6 AND steps < %d)`, stepsKept)
	return `
		WITH extended AS (
			UPDATE leases SET expires_at = $4::timestamptz + make_interval(secs => lease_seconds), heartbeat_at = $4,
				progress = $5, state = coalesce(NULLIF($6, ''), state), steps = steps + ` + step + `::int,
				stepped = ` + step + `
			WHERE task_id = $1 AND attempt = $2 AND lease_token = $3 AND ` + held("$4", "$7") + condition + `
			RETURNING *),
		step AS (
			INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, detail, at)
			SELECT $8::uuid, org_id, task_id, attempt, 'Running', 'Running', 'WORKER', state,
				jsonb_build_object('progress', progress), heartbeat_at
			FROM extended WHERE stepped)
		SELECT ` + returning + ` FROM extended l`
}

// ExtendLease extends a lease that holds. extended is false if it has run out or a newer attempt has it.
func (d *Dispatcher) ExtendLease(
	ctx context.Context, f tasks.Fence, percent int, state string, now time.Time,
) (canceled, extended bool, err error) {
	rows, err := d.Pool.Query(ctx, extendLease("", "cancel_requested"), f.TaskID, f.Attempt, f.LeaseToken, now,
		percent, state, d.contact.regained(), tasks.EventID(now, uuid.New()))
	if err != nil {
		return false, false, fmt.Errorf("heartbeat of task %s: %w", f.TaskID, err)
	}
	defer rows.Close()

	for rows.Next() {
		extended = true
		if err := rows.Scan(&canceled); err != nil {
			return false, false, err
		}
	}
	return canceled, extended, rows.Err()
}

// failTx ends an attempt that did not do its work, if the fence still holds.
func (d *Dispatcher) failTx(
	ctx context.Context, tx pgx.Tx, t Claimed, reason tasks.Reason, cause error, retryable bool, now time.Time,
) error {
	row, err := tasks.LockTask(ctx, tx, t.Fence)
	if err != nil {
		return err
	}
	if !row.Holds(t.Fence) || row.Status != tasks.Running {
		return fault.New(fault.Conflict, "task %s is %s at attempt %d: attempt %d was fenced off",
			row.ID, row.Status, row.Attempt, t.Attempt)
	}

	e := tasks.Ending{Status: tasks.Failed, Reason: reason, Message: fault.Text(cause), Actor: "WORKER", Failed: 1,
		RetryAt: tasks.RetryAfter(row, t.Job.Def.Retry, retryable, 1, now, rand.Float64())}
	if moot, err := isMoot(ctx, tx, t.Check); err != nil {
		return err
	} else if moot {
		e = tasks.Ending{Status: tasks.Canceled, Reason: tasks.ReasonSuperseded, Actor: "WORKER"}
	}
	e = row.UnlessCanceled(e)
	return d.Tasks.Finish(ctx, tx, new(pg.Batch), []tasks.Ended{{Row: row, Ending: e}}, nil, now)
}
