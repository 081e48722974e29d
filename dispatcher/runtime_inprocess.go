package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
)

// runInProcess claims tasks of this process's runtimes and runs them, PoolSize at a time, until ctx ends; then it waits
// for none of them, but hands their leases back, so that another process goes on at once. Those of always_on sources are
// drained.
func (d *Dispatcher) runInProcess(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	runtimes := d.inProcessRuntimes()
	return d.loop(ctx, "claim", d.wake.claim, func(ctx context.Context, now time.Time) (bool, error) {
		return d.claimAndRun(ctx, runtimes, &running, now)
	})
}

// inProcessRuntimes are the runtimes this process serves; checks run in every one.
func (d *Dispatcher) inProcessRuntimes() []string {
	for _, r := range d.Runtimes {
		if r == CheckRuntime {
			return d.Runtimes
		}
	}
	return append([]string{CheckRuntime}, d.Runtimes...)
}

// company is how long a claim waits for more slots to come free while most of them are taken: short tasks end by the
// hundred in that time, and a claim of many costs little more than of one.
const company = 2 * time.Millisecond

// claimAndRun claims as many tasks as there are free slots and starts them. It tells whether there may be more that these
// slots would do; where it is slots that are too few, one that comes free calls for the next claim.
func (d *Dispatcher) claimAndRun(ctx context.Context, runtimes []string, running *sync.WaitGroup, now time.Time) (more bool, err error) {
	d.crowded.Store(true)               // before the slots are counted: one that comes free later is heard
	free := cap(d.slots) - len(d.slots) // only this loop takes slots, so there are at least as many
	if free == 0 || d.drained.Load() {
		return false, nil
	}
	if free < cap(d.slots)/4 {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(company):
			free = cap(d.slots) - len(d.slots)
		}
	}
	tasks, err := d.claim(ctx, runtimes, d.WorkerID, free, now)
	if err != nil {
		return false, err
	}
	d.crowded.Store(len(tasks) == free)
	for _, t := range tasks {
		d.slots <- struct{}{}
		running.Go(func() {
			defer func() {
				<-d.slots
				if d.crowded.Load() {
					poke(d.wake.claim)
				}
			}()
			d.runOn(ctx, t)
		})
	}
	return d.heads.more(), nil
}

// runOn runs a task and then, in the same slot, what was claimed with its completion, and so on.
func (d *Dispatcher) runOn(ctx context.Context, t claimed) {
	for next := &t; next != nil; {
		t, next = *next, nil
		d.attempt(ctx, t, func(c claimed) { next = &c })
	}
}

// attempt runs one task to its end and reports it; then hears of what its completion claimed. The run is stopped when its time
// is up, when it is canceled, when its lease is lost, and when the process stops; an always_on source's is asked to end
// then, so that what it has not committed yet counts too.
func (d *Dispatcher) attempt(ctx context.Context, t claimed, then func(claimed)) {
	base := ctx
	if t.slot == alwaysOnSlot {
		base = context.WithoutCancel(ctx)
	}
	runCtx, stop := context.WithCancelCause(base)
	defer stop(nil)
	runCtx, cancel := context.WithDeadlineCause(runCtx, t.timeoutAt, errTimedOut)
	defer cancel()
	stepCtx, ran := d.tracing.step(runCtx, "run", &t) // it changes the task, as what follows does: before the lease's keeper reads it
	var drain chan struct{}
	if t.slot == alwaysOnSlot {
		drain = make(chan struct{})
		t.assignment.Drain = drain
	}
	way := &ownCommits{d: d, t: t, stop: stop}
	t.assignment.Committer = way
	progress := &progressNote{}
	beating := make(chan struct{})
	interval := min(t.lease/3, 2*time.Second)
	beat := time.AfterFunc(interval, func() {
		defer close(beating)
		d.keepLease(runCtx, t, interval, progress, stop)
	})
	if drain != nil {
		go d.awaitDrain(runCtx, t, ctx.Done(), drain, stop)
	}
	done := d.run(stepCtx, t, progress)
	ran(done.outcome.Err)
	if ctx.Err() == nil && !d.drained.Load() {
		done.then = then
	}
	cause := context.Cause(runCtx)
	stop(nil)
	if !beat.Stop() {
		<-beating
	}
	t.assignment = way.after(t.assignment)
	// What was worked out is reported even though the process is about to stop.
	report, cancelReport := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancelReport()
	if err := d.report(report, t, done, cause, ctx.Err() != nil); err != nil {
		log := d.Log.With("org", t.job.OrgSlug, "dag", t.job.DAG, "job", t.job.Name, "task", t.TaskID, "attempt", t.Attempt)
		if fault.Is(err, fault.Conflict) {
			log.Warn("the task went on without this attempt", "error", err)
			return
		}
		log.Error("could not report the end of a task: its lease will run out", "error", err)
	}
}

var (
	errTimedOut = errors.New("the task ran longer than its timeout")
	errCanceled = errors.New("the task was canceled")
	errFenced   = errors.New("the lease was lost")
)

func (d *Dispatcher) run(ctx context.Context, t claimed, progress *progressNote) completion {
	if t.check != nil {
		outcomes, err := d.runChecks(ctx, t)
		return completion{checks: outcomes, outcome: operators.Outcome{Err: err, Retryable: true}}
	}
	if names := t.job.Def.Secrets; len(names) > 0 {
		var err error
		// Opened here, after the claim, so that no value is ever in what a claim stores.
		if t.assignment.Secrets, err = d.Vault.Reveal(ctx, t.job.OrgID, t.job.Address(), names); err != nil {
			return completion{outcome: operators.Outcome{Err: err, Retryable: !fault.Is(err, fault.Forbidden)}}
		}
	}
	return completion{outcome: d.Runner.Run(ctx, t.assignment, progress.set)}
}

// report commits what a run made, or says how it failed.
func (d *Dispatcher) report(ctx context.Context, t claimed, done completion, cause error, stopping bool) error {
	now := time.Now()
	err := done.outcome.Err
	switch {
	case err == nil:
		err = d.complete(ctx, t, done, now)
		switch {
		case err == nil, fault.Is(err, fault.Conflict):
			return err
		case errors.Is(err, errBaseMoved):
			return d.handBack(ctx, t, err.Error(), now.Add(baseMovedAgain), now)
		}
		// The work was done but cannot be committed: files gone, a foreign key, a full disk.
		return d.fail(ctx, t, reasonError, err, !fault.Is(err, fault.Invalid), now)
	case errors.Is(cause, errTimedOut):
		return d.fail(ctx, t, reasonTimeout, errTimedOut, true, now)
	case errors.Is(cause, errCanceled):
		return d.cancelRunning(ctx, t, now)
	case isDrained(t):
		return d.handBack(ctx, t, "it was drained", now, now)
	case errors.Is(cause, errBaseMoved):
		return d.handBack(ctx, t, errBaseMoved.Error(), now.Add(baseMovedAgain), now)
	case errors.Is(cause, errFenced):
		return fault.New(fault.Conflict, "task %s: %w", t.TaskID, errFenced)
	case stopping:
		return d.handBack(ctx, t, "the process was stopped", now, now)
	}
	return d.fail(ctx, t, reasonError, err, done.outcome.Retryable, now)
}

func (d *Dispatcher) fail(ctx context.Context, t claimed, reason string, cause error, retryable bool, now time.Time) error {
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		return d.failTx(ctx, tx, t, reason, cause, retryable, now)
	})
	d.wake.send(d.progressed()...)
	return err
}

func (d *Dispatcher) cancelRunning(ctx context.Context, t claimed, now time.Time) error {
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		row, err := lockTask(ctx, tx, t.Fence)
		if err != nil {
			return err
		}
		if !row.holds(t.Fence) || row.status != "Running" {
			return fault.New(fault.Conflict, "task %s is %s already", row.id, row.status)
		}
		e := ending{status: "Canceled", reason: reasonSuperseded, actor: "WORKER"}
		if row.cancelAsked { // by somebody, and not by a cutover, which may want it again
			e.reason = reasonCanceled
		}
		return d.finish(ctx, tx, row, e, now)
	})
	d.wake.send(d.progressed()...)
	return err
}

// baseMovedAgain is how long an append waits whose base has moved: what is on its way there may have to be checked first.
const baseMovedAgain = time.Second

// handBack makes a running task claimable again, at once or from a time on, without counting a failure.
func (d *Dispatcher) handBack(ctx context.Context, t claimed, why string, from, now time.Time) error {
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := lockOrigins(ctx, tx, ids(t.job.Origin)); err != nil {
			return err
		}
		row, err := lockTask(ctx, tx, t.Fence)
		if err != nil {
			return err
		}
		if !row.holds(t.Fence) || row.status != "Running" {
			return fault.New(fault.Conflict, "task %s is %s already", row.id, row.status)
		}
		return d.requeue(ctx, tx, row, ending{status: "Failed", reason: reasonHandedBack, state: why, actor: d.WorkerID, retryAt: &from}, now)
	})
	d.wake.send(topicClaim, topicPromote)
	return err
}

// requeue ends a running attempt that is to be tried again, now or later.
func (d *Dispatcher) requeue(ctx context.Context, tx pgx.Tx, row taskRow, e ending, now time.Time) error {
	if err := d.finish(ctx, tx, row, row.unlessCanceled(e), now); err != nil || row.cancelAsked || e.retryAt.After(now) {
		return err
	}
	_, err := d.promoteFailed(ctx, tx, `task_id = $1`, "SYSTEM", now, row.id)
	return err
}

// progressNote is the latest that an operator said of how far it is.
type progressNote struct {
	mu      sync.Mutex
	percent int
	state   string
}

func (p *progressNote) set(percent int, state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.percent, p.state = min(max(percent, 0), 100), state
}

func (p *progressNote) get() (int, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.percent, p.state
}

// keepLease extends the lease at once and then again and again while the run goes on, and stops the run when it was canceled
// or fenced off.
func (d *Dispatcher) keepLease(ctx context.Context, t claimed, interval time.Duration, progress *progressNote, stop context.CancelCauseFunc) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		percent, state := progress.get()
		canceled, held, err := d.heartbeat(ctx, t.Fence, percent, state, time.Now())
		switch {
		case err != nil && ctx.Err() == nil:
			d.Log.Warn("heartbeat failed", "task", t.TaskID, "error", err)
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

// heartbeat extends a lease that has not run out; held is false where it has, or was given to a newer attempt.
func (d *Dispatcher) heartbeat(ctx context.Context, f Fence, percent int, state string, now time.Time) (canceled, held bool, err error) {
	rows, err := d.Pool.Query(ctx, `
		UPDATE leases SET expires_at = $4::timestamptz + make_interval(secs => lease_seconds), heartbeat_at = $4, progress = $5, state = $6
		WHERE task_id = $1 AND attempt = $2 AND lease_token = $3 AND expires_at > $4
		RETURNING cancel_requested`, f.TaskID, f.Attempt, f.LeaseToken, now, percent, state)
	if err != nil {
		return false, false, fmt.Errorf("heartbeat of task %s: %w", f.TaskID, err)
	}
	defer rows.Close()
	for rows.Next() {
		held = true
		if err := rows.Scan(&canceled); err != nil {
			return false, false, err
		}
	}
	return canceled, held, rows.Err()
}
