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
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker/protocol"
)

// A run in this process commits on its way as an attempt elsewhere does. Its first commit records its claim; from then
// on the code of remote_load.go, remote_seal.go and remote_events.go loads, checks, seals and commits each commit. Two
// things differ: its files are here and need no upload, and its calls are recognised by their number.

// inProcessCommits makes the commits on the way of one attempt in this process.
type inProcessCommits struct {
	D    *Dispatcher
	T    *Claimed
	Stop context.CancelCauseFunc // ends the run

	mu       sync.Mutex
	recorded bool // whether its claim is
	calls    int
	rest     *operators.Assignment // the assignment of its completion, once it has committed
}

// Commit implements operators.Committer.
func (o *inProcessCommits) Commit(ctx context.Context, c operators.Commit) (done operators.Committed, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	hash := fmt.Sprintf("%s, commit %d", o.D.WorkerID, o.calls)
	err = o.repeat(ctx, func() (err error) {
		done, err = o.Try(ctx, c, hash, clock.Now())
		return err
	})
	return done, err
}

// Rest implements operators.Committer.
func (o *inProcessCommits) Rest(ctx context.Context, a operators.Assignment) (operators.Assignment, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.repeat(ctx, func() error {
		attempt, err := o.loadAttempt(ctx)
		if err != nil {
			return err
		}
		a.Cursor, a.Outputs = attempt.Assignment.Cursor, attempt.Assignment.Outputs
		return o.D.baseStands(ctx, &attempt, ownOutputs(a))
	})
	if err == nil {
		o.rest = &a
	}
	return a, err
}

// ownOutputs returns the outputs of the task's own partition.
func ownOutputs(a operators.Assignment) (list []sealing) {
	for _, out := range a.Outputs {
		list = append(list, sealing{output: out.Index, key: partitionOf(a)})
	}
	return list
}

// finalAssignment returns the assignment of the attempt's completion: a, going on from the last commit.
func (o *inProcessCommits) finalAssignment(a operators.Assignment) operators.Assignment {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.rest != nil {
		a.Cursor, a.Outputs = o.rest.Cursor, o.rest.Outputs
	}
	return a
}

// repeat calls do until it succeeds, fails for good or the run is to end. It tries again where the database is away or
// the checks of the commit before are not done. It stops the run once nothing more of the attempt can count.
func (o *inProcessCommits) repeat(ctx context.Context, do func() error) error {
	for n := 1; ; n++ {
		err := do()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errFenced): // a heartbeat found it first
			return fault.New(fault.Conflict, "%w", err)
		case fault.Is(err, fault.Conflict) && errors.Is(err, ErrBaseMoved):
			o.Stop(ErrBaseMoved)
			return err
		case fault.Is(err, fault.Conflict):
			o.Stop(errFenced)
			return err
		case !pg.Away(err) && !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.TooMany):
			return err
		}
		o.D.Log.Info("a commit on the way waits", "task", o.T.TaskID, "attempt", o.T.Attempt, "error", err)
		if err := pauseAway(ctx, n, 5*time.Second); err != nil {
			return err
		}
	}
}

// loadAttempt loads the attempt as a call of an attempt elsewhere does.
func (o *inProcessCommits) loadAttempt(ctx context.Context) (RemoteAttempt, error) {
	who := authz.Capability{OrgID: o.T.Job.OrgID, TaskID: o.T.TaskID, Attempt: o.T.Attempt}
	return o.D.loadAttempt(ctx, who, protocol.Fence(o.T.Fence))
}

// Try commits, unless a call with the same hash has committed already: its answer may have been lost with the
// connection.
func (o *inProcessCommits) Try(
	ctx context.Context, c operators.Commit, hash string, now time.Time,
) (done operators.Committed, err error) {
	if !o.recorded {
		if err := o.D.recordClaim(ctx, *o.T); err != nil {
			return done, err
		}
		o.recorded = true
	}

	attempt, err := o.loadAttempt(ctx)
	if err != nil {
		return done, err
	}
	answer := attempt.lastCall.Answer
	if attempt.lastCall.Hash != hash {
		if answer, err = o.D.commitLocal(ctx, &attempt, c, hash, now); err != nil {
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

// commitLocal commits for a run in this process what CommitEvents commits for an attempt elsewhere.
func (d *Dispatcher) commitLocal(
	ctx context.Context, attempt *RemoteAttempt, c operators.Commit, hash string, now time.Time,
) (answer protocol.EventsAnswer, err error) {
	if err := attempt.row.MustRun(attempt.Fence); err != nil {
		return answer, err
	}

	body := protocol.Events{Fence: protocol.Fence(attempt.Fence), OperatorState: c.State}
	for _, e := range c.Events {
		body.Events = append(body.Events, protocol.Event(e))
	}
	for _, t := range c.Tasks {
		body.Tasks = append(body.Tasks, protocol.EnqueuedTask(t))
	}

	p := placements{attempt: attempt, seen: map[string]bool{}}
	var list []sealing
	for i, out := range c.Outputs {
		where := fmt.Sprintf("body.outputs[%d]", i)
		s, ok := p.place(where, protocol.CommittedOutput{Index: out.Output, Partition: out.Partition})
		if ok && len(out.Files) > 0 {
			s.local = out.Files
			list = append(list, s)
		}
	}

	problems := append(p.problems, attempt.checkEvents(body.Events)...)
	problems = append(problems, checkJSON("body.operator_state", c.State)...)
	problems = append(problems, checkAsked(body.Tasks)...)
	if err := refuse(problems); err != nil {
		return answer, err
	}
	return d.commitOnTheWay(ctx, attempt, list, body, hash, now)
}

// recordClaim records the claim of an attempt in this process, as a claim from elsewhere is recorded at once.
func (d *Dispatcher) recordClaim(ctx context.Context, t Claimed) error {
	generations := make([]registry.InputGeneration, len(t.Assignment.Inputs))
	for i, in := range t.Assignment.Inputs {
		generations[i] = registry.InputGeneration{Generation: in.Generation, PartitionBy: in.PartitionBy}
	}

	record, err := json.Marshal(claimRecord{Job: t.Job.ID, Generations: generations, Cursor: t.Assignment.Cursor,
		Reading: t.Assignment.Reading})
	if err != nil {
		return err
	}

	return pg.InOrgTx(ctx, d.Requests, t.Job.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		row, err := tasks.LockTask(ctx, tx, t.Fence)
		if err == nil {
			err = row.MustRun(t.Fence)
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO task_attempts (task_id, attempt, org_id, worker_id, started_at, given, staging)
			SELECT id, attempt, org_id, worker_id, started_at, $2,
				coalesce((SELECT staging FROM leases WHERE task_id = id), '{}')
			FROM tasks WHERE id = $1
			ON CONFLICT (task_id, attempt) DO UPDATE SET given = coalesce(task_attempts.given, EXCLUDED.given)`,
			t.TaskID, string(record))
		if err != nil {
			return fmt.Errorf("record the claim of task %s: %w", t.TaskID, err)
		}
		return nil
	})
}

// copyFile copies a file that is to be committed: the program that wrote it goes on, and could change the bytes.
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
