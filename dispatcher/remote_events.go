package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker/protocol"
)

// CommitEvents commits outputs, events, tasks and operator state of an attempt that goes on, all of it or nothing, in the
// transaction that checks its fence and its lease. The attempt's last call again is answered as it was, and changes nothing.
func (d *Dispatcher) CommitEvents(ctx context.Context, c authz.Capability, body protocol.Events, now time.Time) (protocol.EventsAnswer, error) {
	hash, err := hashOf(body)
	if err != nil {
		return protocol.EventsAnswer{}, err
	}
	answer, err := d.commitEvents(ctx, c, body, hash, now)
	if fault.Is(err, fault.Invalid) || fault.Is(err, fault.Conflict) || fault.Is(err, fault.Unavailable) {
		// The same call may have been on its way before this one: it has committed the uploads that this one misses, moved
		// the base that this one was to append to, or has its checks to wait for.
		if g, gone := d.reload(ctx, c, body.Fence); gone == nil && g.lastCall.Hash == hash {
			return g.lastCall.Answer, nil
		}
	}
	return answer, err
}

func (d *Dispatcher) commitEvents(ctx context.Context, c authz.Capability, body protocol.Events, hash string, now time.Time) (protocol.EventsAnswer, error) {
	answer := protocol.EventsAnswer{Events: []protocol.EventOutcome{}, Tasks: []uuid.UUID{}}
	g, err := d.reload(ctx, c, body.Fence)
	if err != nil {
		return answer, err
	}
	if g.lastCall.Hash == hash {
		return g.lastCall.Answer, nil
	}
	if err := g.row.mustRun(g.Fence); err != nil {
		return answer, err
	}
	list, problems, err := d.sealings(ctx, &g, body.Outputs, true)
	if err != nil {
		return answer, err
	}
	problems = append(append(problems, g.checkEvents(body.Events)...), checkJSON("body.operator_state", body.OperatorState)...)
	if err := refuse(problems); err != nil {
		return answer, err
	}
	answer, err = d.commitOnTheWay(ctx, &g, list, body, hash, now)
	if err == nil {
		d.dropCommitted(ctx, &g, list)
	}
	return answer, err
}

// commitOnTheWay seals the outputs of an attempt that goes on and commits them with the rest of the call, all of it or
// nothing. It is the way of workers' calls and of runs in this process. Unavailable says that the same can be committed
// later; a Conflict of errBaseMoved that it cannot, as a cursor was moved by somebody else.
func (d *Dispatcher) commitOnTheWay(ctx context.Context, g *Given, list []sealing, body protocol.Events, hash string, now time.Time) (protocol.EventsAnswer, error) {
	mid := &midCommit{hash: hash}
	if err := d.baseStands(ctx, g, list); err != nil {
		return mid.answer, err
	}
	if err := d.revealFor(ctx, g); err != nil {
		return mid.answer, err
	}
	out, err := d.sealUploads(ctx, g, list, operators.Result{State: body.OperatorState, Tasks: asksOf(body.Tasks)})
	if err == nil {
		out = g.Assignment.Redact(out)
		err = out.Err
	}
	if err != nil {
		return mid.answer, fmt.Errorf("commit of task %s: %w", g.TaskID, err)
	}
	out.Unchanged = len(out.Written) == 0
	err = d.complete(ctx, g.task, completion{outcome: out, said: hash, emits: len(body.Events) > 0, also: also(d, body.Events, &mid.answer), mid: mid}, now)
	if errors.Is(err, errBaseMoved) {
		if err = d.baseStands(ctx, g, list); err == nil { // what it was to wait for has just ended
			err = fault.New(fault.Unavailable, "commit of task %s: %w", g.TaskID, errBaseMoved)
		}
	}
	return mid.answer, err
}

// baseStands reports whether a commit can be made on top of what is there: not while that waits for its checks, which is
// Unavailable, and never where another has moved the cursor that it goes on from, which is a Conflict. What it says is a
// guess, and the commit's own transaction decides; it spares sealing what could not be published.
func (d *Dispatcher) baseStands(ctx context.Context, g *Given, list []sealing) error {
	if len(list) == 0 || g.Assignment.Cursor == nil && g.Job.Def.UpdateStrategy != dag.Append {
		return nil
	}
	var moved, held bool
	err := pg.InOrgTx(ctx, d.Requests, g.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		moved, held = false, false
		if began := g.Assignment.Cursor; began != nil {
			now, err := cursorPosition(ctx, tx, g.Job)
			if err != nil {
				return err
			}
			moved = *now != *began
			for _, o := range g.Job.Outputs {
				head, err := registry.CursorHead(ctx, tx, o.Generation.Version)
				if err != nil {
					return err
				}
				moved, held = moved || head.Position > began.Value, held || head.Held
			}
			return nil
		}
		var (
			b    pg.Batch
			refs []registry.Ref
		)
		for _, s := range list {
			refs = append(refs, registry.Ref{Version: g.Job.Outputs[s.output].Generation.Version, Key: s.key})
		}
		last := queueLastMadeOf(&b, refs, nil)
		err := b.Send(ctx, tx)
		for _, made := range last {
			held = held || made.State == "Held"
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case moved:
		return g.row.stands(fault.New(fault.Conflict, "commit of task %s: %w", g.TaskID, errBaseMoved))
	case held:
		return fault.New(fault.Unavailable, "commit of task %s: what was committed before waits for its checks", g.TaskID)
	}
	return nil
}

// dropCommitted removes the uploads that a commit has sealed: an attempt that goes on for days commits many. What stays,
// because storage was away, the attempt's end removes.
func (d *Dispatcher) dropCommitted(ctx context.Context, g *Given, list []sealing) {
	for _, s := range list {
		for _, file := range s.files {
			key := g.uploads(s.output)
			key.Name = file.Name
			if err := d.Storage.DropUpload(ctx, key); err != nil {
				d.Log.Warn("uploads that are committed stay for now", "task", g.TaskID, "attempt", g.Attempt, "error", err)
				return
			}
		}
	}
}

// midCommit is a commit of an attempt that goes on.
type midCommit struct {
	hash   string
	answer protocol.EventsAnswer
}

// lastCall is an attempt's last commit on the way.
type lastCall struct {
	Hash   string                `json:"hash"`
	Answer protocol.EventsAnswer `json:"answer"`
}

// mayCommit checks the fence of a commit on the way: the attempt runs, and its lease has not run out.
func mayCommit(ctx context.Context, tx pgx.Tx, row taskRow, f Fence, now time.Time) error {
	if err := row.mustRun(f); err != nil {
		return err
	}
	var held bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM leases WHERE task_id = $1 AND lease_token = $2 AND expires_at > $3)`,
		f.TaskID, f.LeaseToken, now).Scan(&held); err != nil {
		return fmt.Errorf("lease of task %s: %w", f.TaskID, err)
	}
	if !held {
		return row.stands(fault.New(fault.Conflict, "the lease of attempt %d of task %s has run out", f.Attempt, f.TaskID))
	}
	return nil
}

// noteCommit remembers the call and its answer, and where a cursor goes on from. Where it was written to is a revision's
// by now, so the attempt's record need not name it any more: one that goes on for days commits many.
func noteCommit(ctx context.Context, tx pgx.Tx, x *completing) error {
	cursor, err := cursorPosition(ctx, tx, x.job)
	if err != nil {
		return err
	}
	if cursor != nil {
		x.mid.answer.Cursor = &protocol.Cursor{Epoch: cursor.Epoch, From: cursor.Value}
	}
	text, err := json.Marshal(lastCall{x.mid.hash, x.mid.answer})
	if err != nil {
		return err
	}
	at, err := json.Marshal(cursor)
	if err != nil {
		return err
	}
	written := []string{}
	for _, w := range x.outcome.Written {
		written = append(written, w.Manifest.Location)
	}
	_, err = tx.Exec(ctx, `
		UPDATE task_attempts SET last_call = $3, given = CASE WHEN $4::jsonb = 'null' THEN given ELSE jsonb_set(given, '{cursor}', $4::jsonb) END,
			staging = CASE WHEN $5::text[] = '{}' THEN staging ELSE ARRAY(SELECT s FROM unnest(staging) AS s WHERE s <> ALL($5)) END
		WHERE task_id = $1 AND attempt = $2`, x.TaskID, x.Attempt, text, string(at), written)
	if err != nil {
		return fmt.Errorf("note a commit of task %s: %w", x.TaskID, err)
	}
	return nil
}

// extras commit more in the transaction of a completion, after its outputs.
type extras func(ctx context.Context, tx pgx.Tx, x *completing, now time.Time) (topics, error)

// also commits events after the outputs, and answers what became of each and which tasks were made; nil where there are
// none, and nobody asks.
func also(d *Dispatcher, events []protocol.Event, answer *protocol.EventsAnswer) extras {
	if len(events) == 0 && answer == nil {
		return nil
	}
	return func(ctx context.Context, tx pgx.Tx, x *completing, now time.Time) (follow topics, err error) {
		told := protocol.EventsAnswer{Accepted: true, Events: []protocol.EventOutcome{}, Tasks: append([]uuid.UUID{}, x.made...)}
		for _, e := range events {
			outcome, err := d.emit(ctx, tx, x, e, now)
			if err != nil {
				return nil, err
			}
			if outcome.EventID != nil {
				follow = topics{topicRoute}
			}
			told.Events = append(told.Events, outcome)
		}
		if answer != nil {
			*answer = told
		}
		return follow, nil
	}
}

// checkEvents lists what is wrong with events. It is pure.
func (g *Given) checkEvents(events []protocol.Event) (problems []fault.Problem) {
	for i, e := range events {
		wrong := func(field, format string, args ...any) {
			problems = append(problems, fault.Problem{Location: fmt.Sprintf("body.events[%d].%s", i, field), Message: fmt.Sprintf(format, args...)})
		}
		by := g.Job.Def.PartitionBy
		switch {
		case e.Output < 0 || e.Output >= len(g.Assignment.Outputs):
			wrong("output", "the job has %d outputs, and none with the index %d", len(g.Assignment.Outputs), e.Output)
		case e.Scope != "" && e.Scope != "partition" && e.Scope != "range":
			wrong("scope", "%q is none: an invalidation is of a partition or a range", e.Scope)
		case e.Reason != "" && !slices.Contains([]string{"reorg", "correction", "manual", "schema"}, e.Reason):
			wrong("reason", "%q is none of reorg, correction, manual and schema", e.Reason)
		case e.Scope == "range" && by.Kind != dag.ByCursor:
			wrong("scope", "a range is of outputs by cursor")
		case e.Scope == "range" && e.From == nil:
			wrong("from", "a range needs its first position")
		case e.Scope == "range":
		case e.From != nil || e.To != nil:
			wrong("from", "from and to belong to the scope range")
		case by.Kind == dag.ByCursor && e.Scope != "":
			wrong("scope", "what is by cursor is invalidated by range")
		case by.Kind == dag.ByCursor && e.Key != "":
			wrong("partition_key", "the job's outputs are by cursor: give the position")
		case by.Kind != dag.ByCursor && e.Cursor != nil:
			wrong("cursor", "the job's outputs are not by cursor")
		case by.Kind != dag.ByCursor:
			key, err := g.partitionOf(protocol.CommittedOutput{Partition: e.Key})
			if err == nil && e.Start != nil && e.End != nil && by.Kind == dag.ByTime {
				var start, end time.Time
				if start, end, err = by.Bounds(key); err == nil && (!start.Equal(*e.Start) || !end.Equal(*e.End)) {
					err = fmt.Errorf("partition %s is from %s to %s", key, start.Format(time.RFC3339), end.Format(time.RFC3339))
				}
			}
			if err != nil {
				wrong("partition_key", "%v", err)
			}
		}
		if e.Reason != "" && e.Scope == "" {
			wrong("reason", "is of an invalidation, which has a scope")
		}
	}
	return problems
}

// emit commits one event of the task's own outputs, at the version that the task was given. What the same call publishes is
// its own event; otherwise a partition that is there gets a new revision with the content it has, so that consumers are
// stale by what they were made from. The caller holds the DAG's lock.
func (d *Dispatcher) emit(ctx context.Context, tx pgx.Tx, x *completing, e protocol.Event, now time.Time) (protocol.EventOutcome, error) {
	rejected := func(format string, args ...any) (protocol.EventOutcome, error) {
		return protocol.EventOutcome{Outcome: "rejected", Reason: fmt.Sprintf(format, args...)}, nil
	}
	generation := x.job.Outputs[e.Output].Generation
	key := e.Key
	if key == "" {
		key = partitionOf(x.assignment)
	}
	if e.Scope == "" {
		for _, n := range x.notes {
			if n.Output != e.Output {
				continue
			}
			if x.job.Def.PartitionBy.Kind == dag.ByCursor {
				if after, upTo, err := dag.SegmentEnd(n.Partition); err == nil && e.Cursor != nil && *e.Cursor > after && *e.Cursor <= upTo {
					return protocol.EventOutcome{Outcome: "accepted"}, nil
				}
			} else if n.Partition == key {
				return protocol.EventOutcome{Outcome: "accepted"}, nil
			}
		}
		if e.Cursor != nil {
			head, err := registry.CursorHead(ctx, tx, generation.Version)
			switch {
			case err != nil:
				return protocol.EventOutcome{}, err
			case *e.Cursor <= head.Position:
				return protocol.EventOutcome{Outcome: "duplicate"}, nil
			}
			return rejected("the cursor is at %d: a position is reached by rows, or by `cursor` of the completion", head.Position)
		}
	}
	live, err := registry.LiveGeneration(ctx, tx, x.job.OrgID, generation.Dataset)
	if err != nil {
		return protocol.EventOutcome{}, err
	}
	if live != generation.Version {
		return rejected("the task was given version %s of the output, which readers do not see", generation.Version)
	}
	caller := authz.Caller{OrgID: x.job.OrgID, OrgSlug: x.job.OrgSlug, Actor: "task:" + x.TaskID.String()}
	reason := e.Reason
	if reason == "" {
		reason = "correction"
	}
	if e.Scope == "range" {
		return d.emitRange(ctx, tx, caller, x, e, generation.Dataset, reason, now)
	}
	renewed, err := registry.Renew(ctx, tx, x.job.OrgID, generation.Dataset, key, key, now)
	if err != nil {
		return protocol.EventOutcome{}, err
	}
	if len(renewed) == 0 {
		return rejected("the output has no partition %q: an event brings no data", key)
	}
	r := renewed[0]
	if err := d.Storage.Renumber(ctx, tx, r.Generation, r.Key, r.Revision); err != nil {
		return protocol.EventOutcome{}, err
	}
	if e.Scope != "" {
		id, err := invalidated(ctx, tx, caller, r, reason, now)
		return protocol.EventOutcome{Outcome: "accepted", EventID: &id}, err
	}
	id := uuid.Must(uuid.NewV7())
	err = accept(ctx, tx, []Event{{ID: id, OrgID: x.job.OrgID, Dataset: r.Dataset, Version: r.Version, Key: r.Key, Revision: r.Revision,
		Producer: x.TaskID, trace: d.tracing.published(ctx, x.claimed, r.Key, r.Revision)}}, now)
	return protocol.EventOutcome{Outcome: "accepted", EventID: &id}, err
}

// emitRange invalidates positions of a cursor, and puts back everyone who follows it.
func (d *Dispatcher) emitRange(ctx context.Context, tx pgx.Tx, caller authz.Caller, x *completing, e protocol.Event, dataset uuid.UUID, reason string, now time.Time) (protocol.EventOutcome, error) {
	req := InvalidateRequest{From: fmt.Sprint(*e.From), Reason: reason}
	if e.To != nil {
		req.To = fmt.Sprint(*e.To)
	}
	made, err := d.invalidateSegments(ctx, tx, caller, registry.Dataset{ID: dataset, DAG: x.job.DAG, Job: x.job.Name}, req, now)
	switch {
	case fault.Is(err, fault.Invalid):
		return protocol.EventOutcome{Outcome: "rejected", Reason: err.Error()}, nil
	case err != nil:
		return protocol.EventOutcome{}, err
	case len(made) == 0:
		return protocol.EventOutcome{Outcome: "duplicate"}, nil // nothing there is of these positions
	}
	return protocol.EventOutcome{Outcome: "accepted", EventID: &made[0].ID}, nil
}
