package dispatcher

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Complete ends an attempt as Completed with what it has uploaded, as Failed or as Canceled, and returns the task's
// state after that. It accepts an attempt whose lease ran out while no newer one has begun. The same call again changes
// nothing; a different one is a Conflict. Where what was uploaded cannot be published because of the data itself, the
// attempt has failed, as it would have in the server's own process.
func (d *Dispatcher) Complete(
	ctx context.Context, c authz.Capability, body protocol.Completion, now time.Time,
) (state protocol.TaskState, err error) {
	attempt, err := d.loadAttempt(ctx, c, body.Fence)
	if err != nil {
		return state, err
	}

	hash, err := hashOf(body)
	if err != nil {
		return state, err
	}
	repeated, err := attempt.row.MayComplete(attempt.Fence, hash)
	if err != nil {
		return state, err
	}

	if !repeated {
		read, err := d.completeRemote(ctx, &attempt, body, hash, now)
		if err != nil {
			return state, fmt.Errorf("complete task %s: %w", attempt.TaskID, err)
		}
		d.dropUploads(ctx, &attempt)
		if read != nil {
			return *read, nil
		}
	}

	err = pg.InOrgTx(ctx, d.Requests, attempt.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		state, _, _, err = d.taskState(ctx, tx, attempt.TaskID)
		return err
	})
	return state, err
}

// hashOf returns a hash by which a body that is sent again is recognised.
func hashOf(body any) (string, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return "", fmt.Errorf("hash a request: %w", err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(text)), nil
}

// dropUploads removes the uploads of an ended attempt. A sweep finds those that stay because storage is away.
func (d *Dispatcher) dropUploads(ctx context.Context, attempt *RemoteAttempt) {
	if len(attempt.Assignment.Outputs) == 0 {
		return
	}
	if err := d.Storage.DropUploads(ctx, attempt.OrgID, attempt.TaskID, attempt.Attempt); err != nil {
		d.Log.Warn("cannot remove the uploads of an ended attempt yet",
			"task", attempt.TaskID, "attempt", attempt.Attempt, "error", err)
	}
}

// completeRemote ends the attempt as a completion says. It returns the task's state where that was read in the same
// transaction.
func (d *Dispatcher) completeRemote(
	ctx context.Context, attempt *RemoteAttempt, body protocol.Completion, hash string, now time.Time,
) (*protocol.TaskState, error) {
	list, problems, err := d.sealings(ctx, attempt, body.Outputs, false)
	if err != nil {
		return nil, cmp.Or(d.Spared(ctx, attempt.TaskID, err), err)
	}
	problems = append(problems, attempt.checkCompletion(body)...)
	if err := refuse(problems); err != nil {
		return nil, err
	}
	if err := d.redactFor(ctx, attempt); err != nil {
		return nil, err
	}
	if err := attempt.Assignment.RefuseSecrets(asksOf(body.Tasks)); err != nil {
		return nil, err
	}

	switch body.Status {
	case protocol.Failed:
		ending, err := d.endingOfFailed(ctx, attempt, body, now)
		if err != nil {
			return nil, err
		}
		return nil, d.endRemote(ctx, attempt, ending, hash, now)
	case protocol.Canceled:
		return nil, d.endRemote(ctx, attempt, canceledByWorker, hash, now)
	}

	if list, err = d.withUnnamed(ctx, attempt, list, body); err != nil {
		return nil, cmp.Or(d.Spared(ctx, attempt.TaskID, err), err)
	}
	return d.publishRemote(ctx, attempt, list, body, hash, now)
}

// publishTries bounds how often a completion is sealed on top of a base that others replace meanwhile.
const publishTries = 3

// publishRemote commits what a completed attempt has uploaded. Where that cannot be published, the attempt has failed.
func (d *Dispatcher) publishRemote(
	ctx context.Context, attempt *RemoteAttempt, list []sealing, body protocol.Completion, hash string, now time.Time,
) (*protocol.TaskState, error) {
	for try := 1; ; try++ {
		out, err := d.sealUploads(ctx, attempt, list, runOf(body), true)
		if errors.Is(err, operators.ErrColumnsSettled) { // its uploads have to be read anew
			return nil, d.endRemote(ctx, attempt, handedBack(err.Error(), now.Add(baseMovedAgain)), hash, now)
		}
		if err := d.Spared(ctx, attempt.TaskID, cmp.Or(err, out.Err)); err != nil {
			return nil, err
		}
		if err != nil {
			return nil, err
		}
		out = attempt.Assignment.Redact(out)
		if out.Err != nil {
			return nil, d.endRemote(ctx, attempt, failedBy(attempt, out.Err, false), hash, now)
		}

		state := new(protocol.TaskState)
		err = d.CompleteAttempt(ctx, attempt.Task, Completion{Outcome: out, requestHash: hash,
			emits: len(body.Events) > 0, extras: eventExtras(d, body.Events, nil), taskState: state}, now)
		switch {
		case err == nil:
			return state, nil
		case fault.Is(err, fault.Conflict), pg.Away(err), ctx.Err() != nil:
			return nil, err
		case errors.Is(err, ErrBaseMoved) && !errors.Is(err, ErrStateMoved) && !errors.Is(err, ErrOvertaken) &&
			try < publishTries && attempt.Assignment.Cursor == nil:
			// The revision that it appends to was replaced meanwhile: its rows are sealed again, on top of the new one.
			who := authz.Capability{OrgID: attempt.OrgID, TaskID: attempt.TaskID, Attempt: attempt.Attempt}
			if *attempt, err = d.loadAttempt(ctx, who, body.Fence); err != nil {
				return nil, err
			}
		default:
			return nil, d.endUncommitted(ctx, attempt, err, len(body.Tasks) > 0, hash, now)
		}
	}
}

// Spared returns the answer to a worker's call that failed because of the storage: the call may be made again, and the
// attempt goes on. It returns nil if the storage is not to blame, and an error that ends the attempt if the task has
// met that too often.
func (d *Dispatcher) Spared(ctx context.Context, task uuid.UUID, cause error) error {
	reason, tooOften := d.Health.Explains(ctx, task, cause)
	if tooOften != nil {
		return fault.New(fault.TooLarge, "%w", tooOften).
			WithHint("make room where the storage is, or send less at once")
	}
	if reason == "" {
		return nil
	}
	return fault.New(fault.Unavailable, "this server cannot use its storage: %s", reason).
		WithHint("make the same call again: the attempt goes on")
}

// endUncommitted ends an attempt whose completion cannot be committed because of cause. An attempt that asked for tasks
// it may not have goes on instead: it gets the cause as its answer.
func (d *Dispatcher) endUncommitted(
	ctx context.Context, attempt *RemoteAttempt, cause error, asks bool, hash string, now time.Time,
) error {
	if err := d.Spared(ctx, attempt.TaskID, cause); err != nil {
		return err
	}
	switch {
	case errors.Is(cause, ErrBaseMoved):
		return d.endRemote(ctx, attempt, handedBack(fault.Text(cause), now.Add(baseMovedAgain)), hash, now)
	case fault.Is(cause, fault.Invalid) && asks:
		return cause
	case fault.Is(cause, fault.Invalid):
		return d.endRemote(ctx, attempt, failedBy(attempt, cause, false), hash, now)
	}
	// The work was done but cannot be committed: files are gone, a foreign key is violated.
	return d.endRemote(ctx, attempt, failedBy(attempt, cause, true), hash, now)
}

// endingOf returns how an attempt ends, given its locked row; asked says whether somebody asked for the end.
type endingOf func(row tasks.Row, asked bool, now time.Time) tasks.Ending

// endRemote ends an attempt that publishes nothing, in the transaction that checks its fence.
func (d *Dispatcher) endRemote(
	ctx context.Context, attempt *RemoteAttempt, how endingOf, hash string, now time.Time,
) error {
	err := pg.InOrgTxByKey(ctx, d.Requests, attempt.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		row, err := tasks.LockTask(ctx, tx, attempt.Fence)
		if err != nil {
			return err
		}
		repeated, err := row.MayComplete(attempt.Fence, hash)
		if err != nil || repeated {
			return err
		}
		var asked bool
		err = tx.QueryRow(ctx, `
			SELECT coalesce(bool_or(cancel_requested), false) FROM leases WHERE task_id = $1 AND lease_token = $2`,
			attempt.TaskID, attempt.LeaseToken).Scan(&asked)
		if err != nil {
			return err
		}

		e := how(row, asked, now)
		e.Hash = hash
		ended := []tasks.Ended{{Row: row, Ending: row.UnlessCanceled(e)}}
		return d.Tasks.Finish(ctx, tx, new(pg.Batch), ended, nil, now)
	})
	d.Wakeups.Send(d.Progressed()...)
	return err
}

// canceledByWorker ends an attempt that says it was canceled.
func canceledByWorker(row tasks.Row, asked bool, _ time.Time) tasks.Ending {
	e := tasks.Ending{Status: tasks.Canceled, Reason: tasks.ReasonCanceled, Actor: "WORKER"}
	if asked && !row.CancelAsked { // a cutover asked, which may want the task again
		e.Reason = tasks.ReasonSuperseded
	}
	return e
}

// handedBack ends an attempt that has not failed, such as one whose base was moved; the task is tried again from a time
// on.
func handedBack(why string, from time.Time) endingOf {
	return func(tasks.Row, bool, time.Time) tasks.Ending {
		return tasks.Ending{Status: tasks.Failed, Reason: tasks.ReasonHandedBack, State: why, Actor: "SYSTEM",
			RetryAt: &from}
	}
}

// endingOfFailed returns how an attempt ends that says it has failed: one whose files show no columns waits, as it does
// in the server's own process.
func (d *Dispatcher) endingOfFailed(
	ctx context.Context, attempt *RemoteAttempt, body protocol.Completion, now time.Time,
) (endingOf, error) {
	if _, reads := d.readingOf(attempt.Job); !reads || !body.Error.ColumnsUnknown {
		return attempt.failed(body), nil
	}
	waits, err := d.mayWaitForColumns(ctx, attempt.row.Kind, attempt.Task)
	if err != nil {
		return nil, err
	}
	if !waits {
		lasting := false
		body.Error.Retryable = &lasting
		return attempt.failed(body), nil
	}
	why := attempt.Assignment.Redactor.RedactCut(body.Error.Message, longestMessage)
	return handedBack(why, now.Add(columnsAgain)), nil
}

// longestMessage is how many characters or bytes SDKs leave of an error's message.
const longestMessage = 10_000

// failed ends an attempt that says it has failed.
func (attempt *RemoteAttempt) failed(body protocol.Completion) endingOf {
	retryable := body.Error.Retryable == nil || *body.Error.Retryable
	message := attempt.Assignment.Redactor.RedactCut(body.Error.Message, longestMessage)
	return failedBy(attempt, errors.New(message), retryable)
}

// failedBy ends an attempt that failed by a cause. One whose lease has run out was counted as failed before.
func failedBy(attempt *RemoteAttempt, cause error, retryable bool) endingOf {
	return func(row tasks.Row, _ bool, now time.Time) tasks.Ending {
		counts := 1
		if row.Status != tasks.Running {
			counts = 0
		}
		return tasks.Ending{Status: tasks.Failed, Reason: tasks.ReasonError, Message: fault.Text(cause),
			Actor: "WORKER", Failed: counts,
			RetryAt: tasks.RetryAfter(row, attempt.Job.Def.Retry, retryable, counts, now, rand.Float64())}
	}
}

// redactFor readies the assignment for the removal of the job's secrets from what the attempt reports.
func (d *Dispatcher) redactFor(ctx context.Context, attempt *RemoteAttempt) (err error) {
	names, trusted := attempt.Job.Def.Secrets, dag.Trusted(attempt.Runtime, attempt.Job.Def.Operator)
	if len(names) > 0 && d.Vault != nil && trusted {
		attempt.Assignment.Redactor, err = d.Vault.Redactor(ctx, attempt.OrgID, names)
	}
	return err
}

// Limits of what a task may report: of its result, and of its operator state.
const (
	maxResultBytes = 64 << 10
	maxStateBytes  = 1 << 20
)

// checkCompletion lists what is wrong with a completion, apart from its outputs. It is pure.
func (attempt *RemoteAttempt) checkCompletion(body protocol.Completion) (problems []fault.Problem) {
	problems = append(problems, checkStatus(body)...)
	problems = append(problems, attempt.checkReport(body)...)
	problems = append(problems, checkJSON("body.result", body.Result)...)
	problems = append(problems, checkJSON("body.operator_state", body.OperatorState)...)
	problems = append(problems, checkReading("body.reading", body.Reading)...)
	problems = append(problems, checkAsked(body.Tasks)...)
	return append(problems, attempt.checkEvents(body.Events)...)
}

// checkStatus lists the parts of a completion that do not go with its status.
func checkStatus(body protocol.Completion) (problems []fault.Problem) {
	wrong := func(where, format string, args ...any) {
		problems = append(problems, fault.Problem{Location: "body." + where, Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case body.Status == protocol.Failed && body.Error == nil:
		wrong("error", "Failed needs an error with a message")
	case body.Status != protocol.Failed && body.Error != nil:
		wrong("error", "only Failed has an error, and the status is %s", body.Status)
	}

	if body.Status != protocol.Completed && len(body.Outputs)+len(body.Events)+len(body.Tasks) > 0 {
		wrong("status", "%s commits nothing: outputs, events and tasks belong to Completed", body.Status)
	}
	if body.Unchanged && len(body.Outputs) > 0 {
		wrong("unchanged", "an unchanged completion publishes nothing: leave the outputs out")
	}
	return problems
}

// checkReport lists what is wrong with what a completion says about its run.
func (attempt *RemoteAttempt) checkReport(body protocol.Completion) (problems []fault.Problem) {
	wrong := func(where, format string, args ...any) {
		problems = append(problems, fault.Problem{Location: "body." + where, Message: fmt.Sprintf(format, args...)})
	}
	if len(body.Result) > maxResultBytes {
		wrong("result", "has %d bytes; at most %d are allowed", len(body.Result), maxResultBytes)
	} else if n := literal.StoredOver(maxResultBytes, body.Result); n > 0 && literal.Nesting(body.Result) == nil {
		wrong("result", "takes %d bytes in the database, where each value has a few of its own; at most %d are allowed",
			n, maxResultBytes)
	}
	if body.Cursor != nil && attempt.Assignment.Cursor == nil {
		wrong("cursor", "the job's outputs are not partitioned by cursor")
	} else if body.Cursor != nil && *body.Cursor == math.MaxInt64 {
		wrong("cursor", "nothing can follow %d, the highest number of 64 bits", *body.Cursor)
	}

	for i, o := range body.ColumnLineage {
		if o.Output < 0 || o.Output >= len(attempt.Assignment.Outputs) {
			wrong(fmt.Sprintf("column_lineage[%d].output", i), "the job has no output %d", o.Output)
		}
		if o.Input < 0 || o.Input >= len(attempt.Assignment.Inputs) {
			wrong(fmt.Sprintf("column_lineage[%d].input", i), "the job has no input %d", o.Input)
		}
	}
	if body.Error != nil && strings.ContainsRune(body.Error.Message, 0) {
		wrong("error.message", "holds a NUL, which cannot be stored")
	}
	return problems
}

// checkJSON lists what keeps a JSON text from being stored.
func checkJSON(where string, text json.RawMessage) []fault.Problem {
	if len(text) > maxStateBytes {
		message := fmt.Sprintf("has %d bytes; at most %d are allowed", len(text), maxStateBytes)
		return []fault.Problem{{Location: where, Message: message}}
	}
	if err := literal.Storable(text); err != nil {
		return []fault.Problem{{Location: where, Message: err.Error()}}
	}
	return nil
}

// checkAsked lists what keeps the tasks that an attempt asks for from being stored, whatever their jobs are.
func checkAsked(asked []protocol.EnqueuedTask) (problems []fault.Problem) {
	wrong := func(i int, field string, err error) {
		problems = append(problems, fault.Problem{Location: fmt.Sprintf("body.tasks[%d].%s", i, field),
			Message: err.Error()})
	}
	for i, t := range asked {
		if field, err := operators.EnqueuedTask(t).CheckNumbers(); err != nil {
			wrong(i, field, err)
		}
		if err := literal.Storable(t.Payload); err != nil {
			wrong(i, "payload", err)
		}
		if err := literal.Storable(t.Metadata); err != nil {
			wrong(i, "metadata", err)
		}
	}
	return problems
}

// refuse returns the problems of a request as one error, or nil where there are none.
func refuse(problems []fault.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	first := problems[0].Location + ": " + problems[0].Message
	return &fault.Error{Kind: fault.Invalid, Message: first, Problems: problems}
}

// runOf returns what a completion reports about its run.
func runOf(body protocol.Completion) operators.Result {
	r := operators.Result{Result: body.Result, State: body.OperatorState, SourceVersion: body.SourceVersion,
		Reading: body.Reading, Unchanged: body.Unchanged, Cursor: body.Cursor, Tasks: asksOf(body.Tasks)}
	for _, o := range body.ColumnLineage {
		r.Columns = append(r.Columns, operators.ColumnOrigin(o))
	}
	return r
}

func asksOf(tasks []protocol.EnqueuedTask) (asks []operators.EnqueuedTask) {
	for _, t := range tasks {
		asks = append(asks, operators.EnqueuedTask(t))
	}
	return asks
}
