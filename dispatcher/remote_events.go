package dispatcher

import (
	"cmp"
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
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker/protocol"
)

// CommitEvents commits outputs, events, tasks and operator state of an attempt that goes on, all of it or nothing, in
// the transaction that checks its fence and its lease. Where the attempt repeats its last call, CommitEvents returns
// the same answer and changes nothing.
func (d *Dispatcher) CommitEvents(
	ctx context.Context, c authz.Capability, body protocol.Events, now time.Time,
) (protocol.EventsAnswer, error) {
	hash, err := hashOf(body)
	if err != nil {
		return protocol.EventsAnswer{}, err
	}

	answer, err := d.commitEvents(ctx, c, body, hash, now)
	if fault.Is(err, fault.Invalid) || fault.Is(err, fault.Conflict) || fault.Is(err, fault.Unavailable) {
		// An earlier copy of the same call may have been under way: it committed the uploads that this one misses,
		// moved the base that this one was to append to, or published what now waits for its checks.
		if attempt, gone := d.loadAttempt(ctx, c, body.Fence); gone == nil && attempt.lastCall.Hash == hash {
			return attempt.lastCall.Answer, nil
		}
	}
	return answer, err
}

func (d *Dispatcher) commitEvents(
	ctx context.Context, c authz.Capability, body protocol.Events, hash string, now time.Time,
) (protocol.EventsAnswer, error) {
	answer := protocol.EventsAnswer{Events: []protocol.EventOutcome{}, Tasks: []uuid.UUID{}}
	attempt, err := d.loadAttempt(ctx, c, body.Fence)
	if err != nil {
		return answer, err
	}
	if attempt.lastCall.Hash == hash {
		return attempt.lastCall.Answer, nil
	}
	if err := attempt.row.MustRun(attempt.Fence); err != nil {
		return answer, err
	}

	list, problems, err := d.sealings(ctx, &attempt, body.Outputs, true)
	if err != nil {
		return answer, cmp.Or(d.Spared(ctx, c.TaskID, err), err)
	}
	problems = append(problems, attempt.checkEvents(body.Events)...)
	problems = append(problems, checkJSON("body.operator_state", body.OperatorState)...)
	problems = append(problems, checkAsked(body.Tasks)...)
	if err := refuse(problems); err != nil {
		return answer, err
	}

	answer, err = d.commitOnTheWay(ctx, &attempt, list, body, hash, now)
	if err == nil {
		d.dropCommitted(ctx, &attempt, list)
	}
	return answer, cmp.Or(d.Spared(ctx, c.TaskID, err), err)
}

// commitOnTheWay seals the outputs of an attempt that goes on and commits them with the rest of the call, all of it or
// nothing. Workers' calls and runs in this process both use it. Unavailable means that the same can be committed later;
// a Conflict of ErrBaseMoved means that it never can, because somebody else moved a cursor.
func (d *Dispatcher) commitOnTheWay(
	ctx context.Context, attempt *RemoteAttempt, list []sealing, body protocol.Events, hash string, now time.Time,
) (protocol.EventsAnswer, error) {
	mid := &midCommit{hash: hash}
	if err := d.baseStands(ctx, attempt, list); err != nil {
		return mid.answer, err
	}

	if err := d.redactFor(ctx, attempt); err != nil {
		return mid.answer, err
	}
	result := operators.Result{State: body.OperatorState, Tasks: asksOf(body.Tasks)}
	if err := attempt.Assignment.RefuseSecrets(result.Tasks); err != nil {
		return mid.answer, err
	}
	out, err := d.sealUploads(ctx, attempt, list, result, false)
	if err == nil {
		out = attempt.Assignment.Redact(out)
		err = out.Err
	}
	if err != nil {
		return mid.answer, fmt.Errorf("commit of task %s: %w", attempt.TaskID, err)
	}

	out.Unchanged = len(out.Written) == 0
	err = d.CompleteAttempt(ctx, attempt.Task, Completion{Outcome: out, requestHash: hash, emits: len(body.Events) > 0,
		extras: eventExtras(d, body.Events, &mid.answer), mid: mid}, now)
	if errors.Is(err, ErrStateMoved) {
		moved := fault.New(fault.Conflict, "commit of task %s: %w", attempt.TaskID, ErrStateMoved)
		return mid.answer, attempt.row.WithState(moved)
	}
	if errors.Is(err, ErrBaseMoved) {
		if err = d.baseStands(ctx, attempt, list); err == nil { // the checks that it had to wait for have just ended
			err = fault.New(fault.Unavailable, "commit of task %s: %w", attempt.TaskID, ErrBaseMoved)
		}
	}
	return mid.answer, err
}

// baseStands returns an error where a commit cannot be made on top of the newest revisions: Unavailable while those
// wait for their checks, and Conflict where another attempt has moved the cursor that this one goes on from. It saves
// the work of sealing what could not be published; the commit's own transaction decides.
func (d *Dispatcher) baseStands(ctx context.Context, attempt *RemoteAttempt, list []sealing) error {
	if len(list) == 0 || attempt.Assignment.Cursor == nil && attempt.Job.Def.UpdateStrategy != dag.Append {
		return nil
	}

	var moved, held bool
	err := pg.InOrgTx(ctx, d.Requests, attempt.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		if attempt.Assignment.Cursor != nil {
			moved, held, err = cursorMoved(ctx, tx, attempt)
			return err
		}

		moved, held = false, false
		var refs []registry.Ref
		for _, s := range list {
			refs = append(refs, registry.Ref{Version: attempt.Job.Outputs[s.output].Generation.Version, Key: s.key})
		}
		last, err := registry.LastMade(new(pg.Batch), refs, nil).Get(ctx, tx)
		for _, made := range last {
			held = held || made.State == "Held"
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case moved:
		return attempt.row.WithState(fault.New(fault.Conflict, "commit of task %s: %w", attempt.TaskID, ErrBaseMoved))
	case held:
		return fault.New(fault.Unavailable, "commit of task %s: the revision before it waits for its checks",
			attempt.TaskID)
	}
	return nil
}

// cursorMoved reports whether the cursor that an attempt began at has moved since, and whether the newest segment waits
// for its checks.
func cursorMoved(ctx context.Context, tx pgx.Tx, attempt *RemoteAttempt) (moved, held bool, err error) {
	began := attempt.Assignment.Cursor
	now, err := stale.CursorPosition(ctx, tx, attempt.Job)
	if err != nil {
		return false, false, err
	}
	moved = *now != *began
	for _, o := range attempt.Job.Outputs {
		head, err := registry.CursorHead(ctx, tx, o.Generation.Version)
		if err != nil {
			return false, false, err
		}
		moved, held = moved || head.Position > began.Value, held || head.Held
	}
	return moved, held, nil
}

// dropCommitted removes the uploads that a commit has sealed, for an attempt that goes on for days commits many.
// Uploads that stay because storage is away are removed at the attempt's end.
func (d *Dispatcher) dropCommitted(ctx context.Context, attempt *RemoteAttempt, list []sealing) {
	for _, s := range list {
		for _, file := range s.files {
			key := attempt.uploads(s.output)
			key.Name = file.Name
			if err := d.Storage.DropUpload(ctx, key); err != nil {
				d.Log.Warn("cannot remove committed uploads yet",
					"task", attempt.TaskID, "attempt", attempt.Attempt, "error", err)
				return
			}
		}
	}
}

// midCommit is a commit of an attempt that goes on afterwards.
type midCommit struct {
	hash   string
	answer protocol.EventsAnswer
}

// lastCall is an attempt's last commit on the way.
type lastCall struct {
	Hash   string                `json:"hash"`
	Answer protocol.EventsAnswer `json:"answer"`
}

// mayCommit checks the fence of a commit on the way: the attempt must be running, and its lease must hold.
func (d *Dispatcher) mayCommit(ctx context.Context, tx pgx.Tx, row tasks.Row, f tasks.Fence, now time.Time) error {
	if err := row.MustRun(f); err != nil {
		return err
	}
	var holds bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM leases WHERE task_id = $1 AND lease_token = $2 AND `+held("$3", "$4")+`)`,
		f.TaskID, f.LeaseToken, now, d.contact.regained()).Scan(&holds)
	if err != nil {
		return fmt.Errorf("lease of task %s: %w", f.TaskID, err)
	}
	if !holds {
		gone := fault.New(fault.Conflict, "the lease of attempt %d of task %s has run out", f.Attempt, f.TaskID)
		return row.WithState(gone)
	}
	return nil
}

// noteCommit records the call, its answer, and the position that a cursor goes on from. The locations written to belong
// to revisions now, so it removes them from the attempt's record: an attempt that goes on for days commits many.
func noteCommit(ctx context.Context, tx pgx.Tx, x *Completing) error {
	cursor, err := stale.CursorPosition(ctx, tx, x.Job)
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
	for _, w := range x.Outcome.Written {
		written = append(written, w.Manifest.Location)
	}
	_, err = tx.Exec(ctx, `
		UPDATE task_attempts SET
			last_call = $3,
			given = CASE WHEN $4::jsonb = 'null' THEN given ELSE jsonb_set(given, '{cursor}', $4::jsonb) END,
			staging = CASE WHEN $5::text[] = '{}' THEN staging
				ELSE ARRAY(SELECT s FROM unnest(staging) AS s WHERE s <> ALL($5)) END
		WHERE task_id = $1 AND attempt = $2`, x.TaskID, x.Attempt, text, string(at), written)
	if err != nil {
		return fmt.Errorf("note a commit of task %s: %w", x.TaskID, err)
	}
	return nil
}

// extras commit more in the transaction of a completion, after its outputs.
type extras func(ctx context.Context, tx pgx.Tx, x *Completing, now time.Time) (wakeup.Topics, error)

// eventExtras returns extras that commit events after the outputs, and fill in the answer: the outcome of each event,
// and the tasks that were made. It returns nil where there are no events and no answer is wanted.
func eventExtras(d *Dispatcher, events []protocol.Event, answer *protocol.EventsAnswer) extras {
	if len(events) == 0 && answer == nil {
		return nil
	}
	return func(ctx context.Context, tx pgx.Tx, x *Completing, now time.Time) (follow wakeup.Topics, err error) {
		all := protocol.EventsAnswer{Accepted: true,
			Events: []protocol.EventOutcome{}, Tasks: append([]uuid.UUID{}, x.made...)}
		for _, e := range events {
			outcome, err := d.emit(ctx, tx, x, e, now)
			if err != nil {
				return nil, err
			}
			if outcome.EventID != nil {
				follow = wakeup.Topics{wakeup.Route}
			}
			all.Events = append(all.Events, outcome)
		}

		if answer != nil {
			*answer = all
		}
		return follow, nil
	}
}

// checkEvents lists what is wrong with events. It is pure.
func (attempt *RemoteAttempt) checkEvents(events []protocol.Event) (problems []fault.Problem) {
	for i, e := range events {
		wrong := func(field, message string) {
			where := fmt.Sprintf("body.events[%d].%s", i, field)
			problems = append(problems, fault.Problem{Location: where, Message: message})
		}
		if field, err := attempt.checkEvent(e); err != nil {
			wrong(field, err.Error())
		}
		if e.Reason != "" && e.Scope == "" {
			wrong("reason", "only an invalidation has a reason: give its scope")
		}
	}
	return problems
}

// checkEvent returns the first field of an event that is wrong, and why. It looks at the words that an event may use,
// then at what each scope needs, then at what identifies a partition.
func (attempt *RemoteAttempt) checkEvent(e protocol.Event) (field string, err error) {
	byCursor := attempt.Job.Def.PartitionBy.Kind == dag.ByCursor
	switch {
	case e.Output < 0 || e.Output >= len(attempt.Assignment.Outputs):
		return "output", fmt.Errorf("the job has %d outputs, none with index %d",
			len(attempt.Assignment.Outputs), e.Output)
	case e.Scope != "" && e.Scope != "partition" && e.Scope != "range":
		return "scope", fmt.Errorf("%q is not a scope: use partition or range", e.Scope)
	case e.Reason != "" && !slices.Contains([]string{"reorg", "correction", "manual", "schema"}, e.Reason):
		return "reason", fmt.Errorf("%q is not a reason: use reorg, correction, manual or schema", e.Reason)
	case e.Scope == "range":
		return checkRangeEvent(e, byCursor)
	case e.From != nil || e.To != nil:
		return "from", errors.New("from and to belong to the scope range")
	case byCursor:
		return checkPositionEvent(e)
	}
	return attempt.checkPartitionEvent(e)
}

func checkRangeEvent(e protocol.Event, byCursor bool) (field string, err error) {
	switch {
	case !byCursor:
		return "scope", errors.New("only outputs partitioned by cursor have ranges")
	case e.From == nil:
		return "from", errors.New("a range needs its first position")
	}
	return "", nil
}

func checkPositionEvent(e protocol.Event) (field string, err error) {
	switch {
	case e.Scope != "":
		return "scope", errors.New("an output partitioned by cursor is invalidated by range")
	case e.Key != "":
		return "partition_key", errors.New("the job's outputs are partitioned by cursor: give a position")
	}
	return "", nil
}

func (attempt *RemoteAttempt) checkPartitionEvent(e protocol.Event) (field string, err error) {
	if e.Cursor != nil {
		return "cursor", errors.New("the job's outputs are not partitioned by cursor")
	}
	if attempt.Job.Def.Splits() {
		return "output", errors.New("the job splits its rows, and its completion says which partitions have changed")
	}
	key, err := attempt.partitionOf(protocol.CommittedOutput{Partition: e.Key})
	if err != nil {
		return "partition_key", err
	}

	by := attempt.Job.Def.PartitionBy
	if by.Kind != dag.ByTime || e.Start == nil || e.End == nil {
		return "", nil
	}
	start, end, err := by.Bounds(key)
	if err == nil && (!start.Equal(*e.Start) || !end.Equal(*e.End)) {
		err = fmt.Errorf("partition %s begins at %s and ends at %s",
			key, start.Format(time.RFC3339), end.Format(time.RFC3339))
	}
	return "partition_key", err
}

func rejectedEvent(format string, args ...any) protocol.EventOutcome {
	return protocol.EventOutcome{Outcome: "rejected", Reason: fmt.Sprintf(format, args...)}
}

// emit commits one event about the task's own outputs, at the generation that the task was given. A partition that the
// same call publishes has its own event; any other that exists gets a new revision with the content it has, so that
// consumers are stale by what they were made from. The caller holds the DAG's lock.
func (d *Dispatcher) emit(
	ctx context.Context, tx pgx.Tx, x *Completing, e protocol.Event, now time.Time,
) (protocol.EventOutcome, error) {
	generation := x.Job.Outputs[e.Output].Generation
	e.Key = cmp.Or(e.Key, partitionOf(x.Assignment))
	if e.Scope == "" {
		if x.notesCover(e) {
			return protocol.EventOutcome{Outcome: "accepted"}, nil
		}
		if e.Cursor != nil {
			return positionOutcome(ctx, tx, generation.Version, *e.Cursor)
		}
	}

	live, err := registry.LiveGeneration(ctx, tx, x.Job.OrgID, generation.Dataset)
	if err != nil {
		return protocol.EventOutcome{}, err
	}
	if live != generation.Version {
		return rejectedEvent("the task was given version %s of the output, which readers do not see",
			generation.Version), nil
	}

	caller := authz.Caller{OrgID: x.Job.OrgID, OrgSlug: x.Job.OrgSlug, Actor: "task:" + x.TaskID.String()}
	e.Reason = cmp.Or(e.Reason, "correction")
	if e.Scope == "range" {
		return d.emitRange(ctx, tx, caller, x, e, generation.Dataset, now)
	}
	return d.emitRenewed(ctx, tx, caller, x, e, generation.Dataset, now)
}

// notesCover reports whether the completion itself publishes what an event is about.
func (x *Completing) notesCover(e protocol.Event) bool {
	return slices.ContainsFunc(x.notes, func(n tasks.OutputNote) bool {
		if n.Output != e.Output {
			return false
		}
		if x.Job.Def.PartitionBy.Kind != dag.ByCursor {
			return n.Partition == e.Key
		}
		after, upTo, err := dag.SegmentEnd(n.Partition)
		return err == nil && e.Cursor != nil && *e.Cursor > after && *e.Cursor <= upTo
	})
}

// positionOutcome returns the outcome of an event about a position that the call itself does not publish.
func positionOutcome(ctx context.Context, tx pgx.Tx, generation uuid.UUID, at int64) (protocol.EventOutcome, error) {
	head, err := registry.CursorHead(ctx, tx, generation)
	switch {
	case err != nil:
		return protocol.EventOutcome{}, err
	case at <= head.Position:
		return protocol.EventOutcome{Outcome: "duplicate"}, nil
	}
	return rejectedEvent("the cursor is at %d: only rows, or `cursor` of the completion, move it", head.Position), nil
}

// emitRenewed gives a partition a new revision with the content it has, and stores its event: an invalidation where the
// event has a scope.
func (d *Dispatcher) emitRenewed(
	ctx context.Context, tx pgx.Tx, caller authz.Caller,
	x *Completing, e protocol.Event, dataset uuid.UUID, now time.Time,
) (protocol.EventOutcome, error) {
	renewed, err := registry.Renew(ctx, tx, x.Job.OrgID, dataset, e.Key, e.Key, now)
	if err != nil {
		return protocol.EventOutcome{}, err
	}
	if len(renewed) == 0 {
		return rejectedEvent("the output has no partition %q: an event brings no data", e.Key), nil
	}
	r := renewed[0]
	if err := d.Storage.Renumber(ctx, tx, r.Generation, r.Key, r.Revision); err != nil {
		return protocol.EventOutcome{}, err
	}

	if e.Scope != "" {
		id, err := invalidated(ctx, tx, caller, r, e.Reason, now)
		return protocol.EventOutcome{Outcome: "accepted", EventID: &id}, err
	}
	id := uuid.Must(uuid.NewV7())
	var b pg.Batch
	Accept(&b, []Event{{ID: id, OrgID: x.Job.OrgID, Dataset: r.Dataset, Version: r.Version, Key: r.Key,
		Revision: r.Revision, Producer: x.TaskID,
		trace: d.tracing.published(ctx, x.Claimed, r.Key, r.Revision)}}, ByRouter, now)
	return protocol.EventOutcome{Outcome: "accepted", EventID: &id}, b.Send(ctx, tx)
}

// emitRange invalidates positions of a cursor, and rewinds every job that follows it.
func (d *Dispatcher) emitRange(
	ctx context.Context, tx pgx.Tx, caller authz.Caller,
	x *Completing, e protocol.Event, dataset uuid.UUID, now time.Time,
) (protocol.EventOutcome, error) {
	req := InvalidateRequest{From: fmt.Sprint(*e.From), Reason: e.Reason}
	if e.To != nil {
		req.To = fmt.Sprint(*e.To)
	}

	of := registry.Dataset{ID: dataset, DAG: x.Job.DAG, Job: x.Job.Name}
	made, err := d.invalidateSegments(ctx, tx, caller, of, req, now)
	switch {
	case fault.Is(err, fault.Invalid):
		return rejectedEvent("%s", err), nil
	case err != nil:
		return protocol.EventOutcome{}, err
	case len(made) == 0:
		return protocol.EventOutcome{Outcome: "duplicate"}, nil // none of these positions has a segment
	}
	return protocol.EventOutcome{Outcome: "accepted", EventID: &made[0].ID}, nil
}
