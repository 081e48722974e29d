package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/worker/protocol"
)

// A run in this process commits on its way as an attempt elsewhere does: with its first commit it records what it was
// given, and from then on each is loaded, checked, sealed and committed by the code of remote_load.go, remote_seal.go and
// remote_events.go. What differs is that its files are here and need no upload, and that its calls are known by their number.

// ownCommits are the commits on the way of one attempt in this process.
type ownCommits struct {
	d    *Dispatcher
	t    claimed
	stop context.CancelCauseFunc // ends the run

	mu       sync.Mutex
	recorded bool // what it was given is
	calls    int
	rest     *operators.Assignment // by which it ends, once it has committed
}

// Commit implements operators.Committer.
func (o *ownCommits) Commit(ctx context.Context, c operators.Commit) (done operators.Committed, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	hash := fmt.Sprintf("%s, commit %d", o.d.WorkerID, o.calls)
	err = o.repeat(ctx, func() (err error) {
		done, err = o.try(ctx, c, hash, time.Now())
		return err
	})
	return done, err
}

// Rest implements operators.Committer.
func (o *ownCommits) Rest(ctx context.Context, a operators.Assignment) (operators.Assignment, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.repeat(ctx, func() error {
		g, err := o.load(ctx)
		if err != nil {
			return err
		}
		a.Cursor, a.Outputs = g.Assignment.Cursor, g.Assignment.Outputs
		return o.d.baseStands(ctx, &g, wholeOf(a))
	})
	if err == nil {
		o.rest = &a
	}
	return a, err
}

// wholeOf are the outputs of the task's own partition.
func wholeOf(a operators.Assignment) (list []sealing) {
	for _, out := range a.Outputs {
		list = append(list, sealing{output: out.Index, key: partitionOf(a)})
	}
	return list
}

// after is the assignment by which the attempt ends.
func (o *ownCommits) after(a operators.Assignment) operators.Assignment {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.rest != nil {
		a.Cursor, a.Outputs = o.rest.Cursor, o.rest.Outputs
	}
	return a
}

// repeat does what the database's absence or the checks of the commit before may hold up, until the run is to end. Once it
// is known that nothing more of the attempt counts, the run is stopped.
func (o *ownCommits) repeat(ctx context.Context, do func() error) error {
	for n := 1; ; n++ {
		err := do()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errFenced): // a heartbeat has found out before
			return fault.New(fault.Conflict, "%w", err)
		case fault.Is(err, fault.Conflict) && errors.Is(err, errBaseMoved):
			o.stop(errBaseMoved)
			return err
		case fault.Is(err, fault.Conflict):
			o.stop(errFenced)
			return err
		case !pg.Away(err) && !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.TooMany):
			return err
		}
		o.d.Log.Info("a commit on the way waits", "task", o.t.TaskID, "attempt", o.t.Attempt, "error", err)
		pause := time.NewTimer(jitter(min(50*time.Millisecond<<min(n, 10), 5*time.Second)))
		select {
		case <-ctx.Done():
			pause.Stop()
			return context.Cause(ctx)
		case <-pause.C:
		}
	}
}

// load loads the attempt as a call of one elsewhere does.
func (o *ownCommits) load(ctx context.Context) (Given, error) {
	return o.d.reload(ctx, authz.Capability{OrgID: o.t.job.OrgID, TaskID: o.t.TaskID, Attempt: o.t.Attempt}, protocol.Fence(o.t.Fence))
}

// try commits, unless it has: the answer may have been lost with the connection.
func (o *ownCommits) try(ctx context.Context, c operators.Commit, hash string, now time.Time) (done operators.Committed, err error) {
	if !o.recorded {
		if err := o.d.recordGiven(ctx, o.t); err != nil {
			return done, err
		}
		o.recorded = true
	}
	g, err := o.load(ctx)
	if err != nil {
		return done, err
	}
	answer := g.lastCall.Answer
	if g.lastCall.Hash != hash {
		if answer, err = o.d.commitLocal(ctx, &g, c, hash, now); err != nil {
			return done, err
		}
	}
	done.Tasks = answer.Tasks
	for _, e := range answer.Events {
		done.Events = append(done.Events, operators.EventOutcome(e))
	}
	if answer.Cursor != nil {
		done.Cursor = &operators.CursorPosition{Epoch: answer.Cursor.Epoch, Value: answer.Cursor.From}
	}
	return done, nil
}

// commitLocal is CommitEvents of a run in this process.
func (d *Dispatcher) commitLocal(ctx context.Context, g *Given, c operators.Commit, hash string, now time.Time) (answer protocol.EventsAnswer, err error) {
	if err := g.row.mustRun(g.Fence); err != nil {
		return answer, err
	}
	body := protocol.Events{Fence: protocol.Fence(g.Fence), OperatorState: c.State}
	for _, e := range c.Events {
		body.Events = append(body.Events, protocol.Event(e))
	}
	for _, t := range c.Tasks {
		body.Tasks = append(body.Tasks, protocol.EnqueuedTask(t))
	}
	p := placements{given: g, seen: map[string]bool{}}
	var list []sealing
	for i, out := range c.Outputs {
		if s, ok := p.place(fmt.Sprintf("body.outputs[%d]", i), protocol.CommittedOutput{Index: out.Output, Partition: out.Partition}); ok && len(out.Files) > 0 {
			s.local = out.Files
			list = append(list, s)
		}
	}
	if err := refuse(append(append(p.problems, g.checkEvents(body.Events)...), checkJSON("body.operator_state", c.State)...)); err != nil {
		return answer, err
	}
	return d.commitOnTheWay(ctx, g, list, body, hash, now)
}

// recordGiven records what an attempt in this process was given, as a claim does for those elsewhere.
func (d *Dispatcher) recordGiven(ctx context.Context, t claimed) error {
	generations := make([]storage.Generation, len(t.assignment.Inputs))
	for i, in := range t.assignment.Inputs {
		generations[i] = in.Generation
	}
	record, err := json.Marshal(givenRecord{Job: t.job.ID, Generations: generations, Cursor: t.assignment.Cursor})
	if err != nil {
		return err
	}
	return pg.InOrgTx(ctx, d.Pool, t.job.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		row, err := lockTask(ctx, tx, t.Fence)
		if err == nil {
			err = row.mustRun(t.Fence)
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO task_attempts (task_id, attempt, org_id, worker_id, started_at, given, staging)
			SELECT id, attempt, org_id, worker_id, started_at, $2, coalesce((SELECT staging FROM leases WHERE task_id = id), '{}')
			FROM tasks WHERE id = $1
			ON CONFLICT (task_id, attempt) DO UPDATE SET given = coalesce(task_attempts.given, EXCLUDED.given)`, t.TaskID, string(record))
		if err != nil {
			return fmt.Errorf("record what task %s was given: %w", t.TaskID, err)
		}
		return nil
	})
}

// copyFile copies what is committed: the program that wrote it goes on, and could change the bytes.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
