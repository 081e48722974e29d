package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Complete ends an attempt, as Completed with what it has uploaded, as Failed or as Canceled, and answers how the task
// stands then. An attempt whose lease ran out is still heard while no newer one has begun. The same call again changes
// nothing; a call that says something else is a Conflict. Where what was uploaded cannot be published, whatever the reason
// in it, the attempt has failed, as one in the server's own process would have.
func (d *Dispatcher) Complete(ctx context.Context, c authz.Capability, body protocol.Completion, now time.Time) (state protocol.TaskState, err error) {
	g, err := d.reload(ctx, c, body.Fence)
	if err != nil {
		return state, err
	}
	hash, err := hashOf(body)
	if err != nil {
		return state, err
	}
	repeated, err := g.row.mayComplete(g.Fence, hash)
	if err != nil {
		return state, err
	}
	if !repeated {
		told, err := d.completeRemote(ctx, &g, body, hash, now)
		if err != nil {
			return state, fmt.Errorf("complete task %s: %w", g.TaskID, err)
		}
		d.dropUploads(ctx, &g)
		if told != nil {
			return *told, nil
		}
	}
	err = pg.InOrgTx(ctx, d.Requests, g.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		state, _, _, err = d.taskState(ctx, tx, g.TaskID)
		return err
	})
	return state, err
}

// hashOf recognises a body that is sent again.
func hashOf(body any) (string, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return "", fmt.Errorf("hash a request: %w", err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(text)), nil
}

// dropUploads removes what an ended attempt has uploaded. What stays, because storage was away, its sweep finds.
func (d *Dispatcher) dropUploads(ctx context.Context, g *Given) {
	if len(g.Assignment.Outputs) == 0 {
		return
	}
	if err := d.Storage.DropUploads(ctx, g.OrgID, g.TaskID, g.Attempt); err != nil {
		d.Log.Warn("the uploads of an ended attempt stay for now", "task", g.TaskID, "attempt", g.Attempt, "error", err)
	}
}

// completeRemote ends the attempt as a completion says. It returns how the task stands then where that was read with it.
func (d *Dispatcher) completeRemote(ctx context.Context, g *Given, body protocol.Completion, hash string, now time.Time) (*protocol.TaskState, error) {
	list, problems, err := d.sealings(ctx, g, body.Outputs, false)
	if err != nil {
		return nil, err
	}
	problems = append(problems, g.checkCompletion(body)...)
	if err := refuse(problems); err != nil {
		return nil, err
	}
	if err := d.revealFor(ctx, g); err != nil {
		return nil, err
	}
	switch body.Status {
	case "Failed":
		return nil, d.endRemote(ctx, g, g.failed(body), hash, now)
	case "Canceled":
		return nil, d.endRemote(ctx, g, func(row taskRow, asked bool, _ time.Time) ending {
			e := ending{status: "Canceled", reason: reasonCanceled, actor: "WORKER"}
			if asked && !row.cancelAsked { // by a cutover, which may want it again
				e.reason = reasonSuperseded
			}
			return e
		}, hash, now)
	}
	for try := 1; ; try++ {
		out, err := d.sealUploads(ctx, g, list, runOf(body))
		if err != nil {
			return nil, err
		}
		out = g.Assignment.Redact(out)
		if out.Err != nil {
			return nil, d.endRemote(ctx, g, failedBy(g, out.Err, false), hash, now)
		}
		told := new(protocol.TaskState)
		err = d.complete(ctx, g.task, completion{outcome: out, said: hash, emits: len(body.Events) > 0, also: also(d, body.Events, nil), tell: told}, now)
		switch {
		case err == nil:
			return told, nil
		case fault.Is(err, fault.Conflict), pg.Away(err), ctx.Err() != nil:
			return nil, err
		case errors.Is(err, errBaseMoved) && try < 3 && g.Assignment.Cursor == nil:
			// What it adds to was replaced meanwhile: its rows are sealed once more, on top of that.
			if *g, err = d.reload(ctx, authz.Capability{OrgID: g.OrgID, TaskID: g.TaskID, Attempt: g.Attempt}, body.Fence); err != nil {
				return nil, err
			}
		case errors.Is(err, errBaseMoved):
			from := now.Add(baseMovedAgain)
			return nil, d.endRemote(ctx, g, func(taskRow, bool, time.Time) ending {
				return ending{status: "Failed", reason: reasonHandedBack, state: errBaseMoved.Error(), actor: "SYSTEM", retryAt: &from}
			}, hash, now)
		case fault.Is(err, fault.Invalid) && len(body.Tasks) > 0: // it asks for what it may not ask for
			return nil, err
		case fault.Is(err, fault.Invalid):
			return nil, d.endRemote(ctx, g, failedBy(g, err, false), hash, now)
		default: // the work was done but cannot be committed: files gone, a foreign key, a full disk
			return nil, d.endRemote(ctx, g, failedBy(g, err, true), hash, now)
		}
	}
}

// endRemote ends an attempt that publishes nothing, in the transaction that checks its fence. asked tells whether its end
// was asked for.
func (d *Dispatcher) endRemote(ctx context.Context, g *Given, how func(row taskRow, asked bool, now time.Time) ending, hash string, now time.Time) error {
	err := pg.InOrgTx(ctx, d.Pool, g.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		row, err := lockTask(ctx, tx, g.Fence)
		if err != nil {
			return err
		}
		repeated, err := row.mayComplete(g.Fence, hash)
		if err != nil || repeated {
			return err
		}
		var asked bool
		if err := tx.QueryRow(ctx, `SELECT coalesce(bool_or(cancel_requested), false) FROM leases WHERE task_id = $1 AND lease_token = $2`,
			g.TaskID, g.LeaseToken).Scan(&asked); err != nil {
			return err
		}
		e := how(row, asked, now)
		e.hash = hash
		return d.finish(ctx, tx, row, row.unlessCanceled(e), now)
	})
	d.wake.send(d.progressed()...)
	return err
}

// failed is how an attempt ends that says it has failed.
func (g *Given) failed(body protocol.Completion) func(taskRow, bool, time.Time) ending {
	retryable := body.Error.Retryable == nil || *body.Error.Retryable
	return failedBy(g, g.Assignment.Redact(operators.Outcome{Err: errors.New(body.Error.Message)}).Err, retryable)
}

// failedBy is how an attempt ends for a cause. One whose lease had run out has been counted as failed before.
func failedBy(g *Given, cause error, retryable bool) func(taskRow, bool, time.Time) ending {
	return func(row taskRow, _ bool, now time.Time) ending {
		counts := 1
		if row.status != "Running" {
			counts = 0
		}
		return ending{status: "Failed", reason: reasonError, message: cause.Error(), actor: "WORKER", failed: counts,
			retryAt: failure(row, g.Job.Def.Retry, retryable, counts, now, rand.Float64())}
	}
}

// revealFor gives the assignment the values of the job's secrets, so that they can be taken out of what the attempt says.
func (d *Dispatcher) revealFor(ctx context.Context, g *Given) (err error) {
	if names := g.Job.Def.Secrets; len(names) > 0 && d.Vault != nil && dag.Trusted(g.Runtime, g.Job.Def.Operator) {
		g.Assignment.Secrets, err = d.Vault.Reveal(ctx, g.OrgID, g.Job.Address(), names)
		if fault.Is(err, fault.Forbidden) || fault.Is(err, fault.NotFound) { // it cannot have had them
			err = nil
		}
	}
	return err
}

// maxResultBytes is what the result and the operator state of a task may have, each.
const (
	maxResultBytes = 64 << 10
	maxStateBytes  = 1 << 20
)

// checkCompletion lists what is wrong with a completion, apart from its outputs. It is pure.
func (g *Given) checkCompletion(body protocol.Completion) (problems []fault.Problem) {
	wrong := func(where, format string, args ...any) {
		problems = append(problems, fault.Problem{Location: "body." + where, Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case body.Status == "Failed" && body.Error == nil:
		wrong("error", "Failed needs an error with a message")
	case body.Status != "Failed" && body.Error != nil:
		wrong("error", "is of status Failed, and this is %s", body.Status)
	}
	if body.Status != "Completed" && len(body.Outputs)+len(body.Events)+len(body.Tasks) > 0 {
		wrong("status", "%s commits nothing: outputs, events and tasks belong to Completed", body.Status)
	}
	if body.Unchanged && len(body.Outputs) > 0 {
		wrong("unchanged", "nothing is published where nothing is new: leave the outputs out")
	}
	if len(body.Result) > maxResultBytes {
		wrong("result", "it has %d bytes, and %d are allowed", len(body.Result), maxResultBytes)
	}
	if body.Cursor != nil && g.Assignment.Cursor == nil {
		wrong("cursor", "the job's outputs are not by cursor")
	}
	for i, o := range body.ColumnLineage {
		if o.Output < 0 || o.Output >= len(g.Assignment.Outputs) {
			wrong(fmt.Sprintf("column_lineage[%d].output", i), "the job has no output %d", o.Output)
		}
		if o.Input < 0 || o.Input >= len(g.Assignment.Inputs) {
			wrong(fmt.Sprintf("column_lineage[%d].input", i), "the job has no input %d", o.Input)
		}
	}
	for where, text := range map[string]json.RawMessage{"result": body.Result, "operator_state": body.OperatorState} {
		problems = append(problems, checkJSON("body."+where, text)...)
	}
	if body.Error != nil && strings.ContainsRune(body.Error.Message, 0) {
		wrong("error.message", "it holds a NUL, which cannot be stored")
	}
	return append(problems, g.checkEvents(body.Events)...)
}

// checkJSON says what of a JSON text cannot be stored.
func checkJSON(where string, text json.RawMessage) []fault.Problem {
	switch {
	case len(text) > maxStateBytes:
		return []fault.Problem{{Location: where, Message: fmt.Sprintf("it has %d bytes, and %d are allowed", len(text), maxStateBytes)}}
	case strings.Contains(strings.ReplaceAll(string(text), `\\`, ""), `\u0000`):
		return []fault.Problem{{Location: where, Message: "it holds a NUL, which cannot be stored"}}
	}
	return nil
}

// refuse makes one error of what is wrong with a request; nil where nothing is.
func refuse(problems []fault.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	return &fault.Error{Kind: fault.Invalid, Message: problems[0].Location + ": " + problems[0].Message, Problems: problems}
}

// runOf is what a completion says of its run.
func runOf(body protocol.Completion) operators.Result {
	r := operators.Result{Result: body.Result, State: body.OperatorState, SourceVersion: body.SourceVersion, Unchanged: body.Unchanged, Cursor: body.Cursor, Tasks: asksOf(body.Tasks)}
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
