package dispatcher

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Claimant is a worker outside of the server's process that claims tasks.
type Claimant struct {
	WorkerID    string
	Incarnation string       // of the process, if it named one
	Worker      authz.Worker // what its token lets it claim; any other task does not exist for it
	Runtimes    []string     // the runtimes it serves; none: every runtime that its token names
	// What the worker says it runs; if both are empty, everything. An operator without a version has the server's.
	Operators []protocol.Operator
	Handlers  []string
}

// holder returns the claimant as the holder of leases.
func (c Claimant) holder() Holder {
	return Holder{Worker: c.WorkerID, Remote: true, token: tokenOf(c.Worker), incarnation: c.Incarnation}
}

// needs returns the values of tasks.needs that the claimant can run; nil means every value.
func (c Claimant) needs(known *operators.Registry) []string {
	if len(c.Operators)+len(c.Handlers) == 0 {
		return nil
	}

	out := make([]string, 0, len(c.Operators)+len(c.Handlers))
	for _, o := range c.Operators {
		version := o.Version
		if op, ok := known.Get(o.Name); ok && version == "" {
			version = op.Spec().Version
		}
		out = append(out, o.Name+"@"+version)
		if _, folder, ok := strings.Cut(dag.FolderExport, o.Name+" "); ok { // it has folders of its own
			out = append(out, o.Name+"@"+version+" "+folder)
		}
	}
	for _, h := range c.Handlers {
		out = append(out, dag.Handler+":"+h)
	}
	return out
}

// takes reports whether the claimant may claim a task and runs it.
func (c Claimant) takes(org uuid.UUID, runtime, needs string, known *operators.Registry) bool {
	runs := c.needs(known)
	return needs != tasks.NeedCheck && c.Worker.MayClaim(org, runtime, tasks.OperatorOf(needs)) &&
		(len(c.Runtimes) == 0 || slices.Contains(c.Runtimes, runtime)) && (runs == nil || slices.Contains(runs, needs))
}

// NotClaimed returns the answer to a claim that got no task.
func NotClaimed(reason string) protocol.Claim {
	return protocol.Claim{Status: protocol.NotClaimed, Reason: reason}
}

// notClaimable returns the reason why a task that is not in the ready set cannot be claimed. It is pure.
func notClaimable(status tasks.Status, waiting tasks.Wait) string {
	switch {
	case status == tasks.Running:
		return protocol.AlreadyRunning
	case status == tasks.Queued, status == tasks.Failed && waiting == tasks.WaitBackoff:
		return protocol.Throttled
	}
	return string(status) // Completed, Failed or Canceled
}

// ClaimMany claims up to max tasks that the claimant takes. See tasks.Take for their order.
func (d *Dispatcher) ClaimMany(ctx context.Context, c Claimant, max int, now time.Time) ([]protocol.Claim, error) {
	if err := d.MayIssue(); err != nil {
		return nil, err
	}

	scope := c.scope(d.Operators)
	tasks, err := d.ClaimTaken(ctx, c.holder(), now,
		func(ctx context.Context, tx pgx.Tx) ([]tasks.Taken, error) {
			return d.Tasks.Take(ctx, tx, scope, max)
		})
	if err != nil {
		return nil, fmt.Errorf("claim tasks of %s: %w", strings.Join(scope.Runtimes, ", "), err)
	}

	claims := make([]protocol.Claim, len(tasks))
	for i, t := range tasks {
		if claims[i], err = d.WireClaim(t, now); err != nil {
			return nil, err // the tasks are ready again when their leases run out
		}
	}
	return claims, nil
}

// scope returns the queues that the claimant serves.
func (c Claimant) scope(known *operators.Registry) tasks.Scope {
	runtimes := c.Runtimes
	if len(runtimes) == 0 {
		runtimes = c.Worker.Runtimes
	}
	if allowed := c.Worker.Runtimes; len(allowed) > 0 {
		runtimes = slices.DeleteFunc(slices.Clone(runtimes), func(r string) bool {
			return !slices.Contains(allowed, r)
		})
	}

	s := tasks.Scope{Runtimes: runtimes, Needs: c.needs(known), Orgs: c.Worker.Orgs, NoChecks: true}
	if s.Orgs == nil {
		s.Orgs = []uuid.UUID{} // nil would be all orgs
	}
	if len(c.Worker.Operators) > 0 {
		s.Operators = c.Worker.Operators
	}
	return s
}

// CapabilityFor is how long a capability token is valid, at least. It is longer than any lease, because a completion
// that comes after the lease ran out must get an answer with the task's state.
const CapabilityFor = time.Hour

// MayIssue returns an error if this server cannot issue capability tokens.
func (d *Dispatcher) MayIssue() error {
	if d.Signer.CanIssue() {
		return nil
	}
	return fault.New(fault.Unavailable,
		"this server has no key for capability tokens, so no task can run outside of it").
		WithHint("give the server's config a key for them")
}

// capability returns a token with which an attempt identifies itself in its calls.
func (d *Dispatcher) capability(t Claimed, now time.Time) (string, error) {
	c := authz.Capability{OrgID: t.Job.OrgID, TaskID: t.TaskID, Attempt: t.Attempt,
		ExpiresAt: now.Add(max(CapabilityFor, 2*t.lease)), Prefixes: []string{}}
	for _, in := range t.Assignment.Inputs {
		c.Datasets = append(c.Datasets, in.Generation.Dataset)
	}
	for _, out := range t.Assignment.Outputs {
		c.Datasets = append(c.Datasets, out.Generation.Dataset)
		if prefix := d.uploadPrefix(t, out.Index); prefix != "" {
			c.Prefixes = append(c.Prefixes, prefix)
		}
	}

	c.Datasets = tasks.SortedIDs(c.Datasets)
	return d.Signer.Issue(c, now)
}

// uploadPrefix returns the prefix under which an attempt may put an output's files with storage credentials. It is
// empty if the storage is not a bucket.
func (d *Dispatcher) uploadPrefix(t Claimed, output int) string {
	key := storage.UploadKey{Org: t.Job.OrgID, Task: t.TaskID, Attempt: t.Attempt, Output: output}
	return d.Storage.UploadPrefix(key)
}

// WireClaim returns a claimed task in the form that the worker gets.
func (d *Dispatcher) WireClaim(t Claimed, now time.Time) (protocol.Claim, error) {
	token, err := d.capability(t, now)
	if err != nil {
		return protocol.Claim{}, err
	}
	task, err := d.wireTask(t, now)
	if err != nil {
		return protocol.Claim{}, err
	}
	expires := now.Add(t.lease)
	return protocol.Claim{Status: protocol.Claimed, Attempt: t.Attempt, LeaseToken: &t.LeaseToken,
		LeaseExpiresAt: &expires, CapabilityToken: token, BaseURL: d.BaseURL, Task: &task}, nil
}

// wireTask returns a claimed task in the form that the worker gets at a time.
func (d *Dispatcher) wireTask(t Claimed, now time.Time) (protocol.Task, error) {
	a := t.Assignment
	by, err := json.Marshal(a.PartitionBy)
	if err != nil {
		return protocol.Task{}, fmt.Errorf("task %s: %w", t.TaskID, err)
	}

	w := protocol.Task{TaskID: t.TaskID, Attempt: t.Attempt, Org: a.OrgSlug,
		Job: protocol.Job{DAGName: a.DAG, Name: a.Job}, Kind: string(t.kind),
		Operator: a.Operator, OperatorVersion: a.OperatorVersion, Config: protocol.Config(a.Config),
		Payload: a.Payload, Metadata: a.Metadata, PartitionBy: by,
		Inputs: []protocol.Input{}, Outputs: []protocol.Output{},
		OperatorState: a.State, Reading: a.Reading, Secrets: t.Job.Def.Secrets, TimeoutAt: t.TimeoutAt,
		TimeoutSeconds: max(t.TimeoutAt.Sub(now).Seconds(), 0.001),
		LeaseSeconds:   int(t.lease.Seconds()), Traceparent: t.trace}

	if udf := t.Job.Def.UDF; udf != nil {
		w.UDF = &protocol.UDF{Hash: cmp.Or(udf.Hash, udf.Bundle), Entrypoint: udf.Entrypoint}
	}
	if p := a.Partition; p != nil {
		w.Partition = &protocol.Partition{Key: p.Key, Start: p.Start, End: p.End}
	}
	if c := a.Cursor; c != nil {
		w.Cursor = &protocol.Cursor{Epoch: c.Epoch, From: c.Value}
	}

	for _, in := range a.Inputs {
		w.Inputs = append(w.Inputs, wireInput(in))
	}
	for _, out := range a.Outputs {
		w.Outputs = append(w.Outputs, protocol.Output{Index: out.Index, Name: out.Name,
			DatasetUUID: out.Generation.Dataset, DatasetVersion: out.Generation.Version,
			UpdateStrategy: string(out.UpdateStrategy), Storage: string(out.Generation.Kind),
			Schema: wireColumns(out.Standing), Purged: out.Purged, Prefix: d.uploadPrefix(t, out.Index)})
	}
	return w, nil
}

func wireInput(in operators.AssignedInput) protocol.Input {
	w := protocol.Input{Index: in.Index, As: in.As, DatasetUUID: in.Generation.Dataset,
		DatasetVersion: in.Generation.Version, Partitions: []protocol.InputPartition{}}
	for _, p := range in.Partitions {
		one := protocol.InputPartition{Key: p.Key, Revision: p.Revision}
		for _, f := range p.Files {
			one.Rows, one.Bytes = one.Rows+f.Rows, one.Bytes+f.Bytes
		}
		w.Partitions = append(w.Partitions, one)
	}

	w.Schema = wireColumns(in.Schema)
	return w
}

func wireColumns(columns []storage.Column) (list []protocol.Column) {
	for _, c := range columns {
		list = append(list, protocol.Column{Name: c.Name, Type: c.Type})
	}
	return list
}

// claimRecord is the part of a claim that the task's row does not hold. It is stored for attempts outside of the
// server's process, so that any server can answer their calls.
type claimRecord struct {
	Job         uuid.UUID                  `json:"job"`                   // the job row that acted for the origin
	Generations []registry.InputGeneration `json:"generations,omitempty"` // that the inputs are read from
	Cursor      *operators.CursorPosition  `json:"cursor,omitempty"`      // where the next segment begins
	Worker      string                     `json:"worker,omitempty"`      // the token of its worker, as tokenOf returns it
	Reading     json.RawMessage            `json:"reading,omitempty"`     // how files were read when it was claimed
	Standing    [][]storage.Column         `json:"standing,omitempty"`    // of a program, by output, when it was claimed
}

// record returns the claimRecord of a remote attempt as JSON, and nil for an attempt in the server's process.
func (h Holder) record(t Claimed, inputs claimInputs) ([]byte, error) {
	if !h.Remote {
		return nil, nil
	}
	generations := inputs.generations[t.Job.ID]
	return json.Marshal(claimRecord{Job: t.Job.ID, Generations: generations, Cursor: t.Assignment.Cursor,
		Reading: t.Assignment.Reading, Standing: standingOf(t), Worker: h.token})
}

// standingOf returns the columns that stood when a program's task was claimed, by output; nil for other operators.
func standingOf(t Claimed) (columns [][]storage.Column) {
	if !operators.AnyColumns(t.Job.Def.Operator) {
		return nil
	}
	for _, o := range t.Assignment.Outputs {
		columns = append(columns, o.Standing)
	}
	return columns
}

// FetchTask returns the state of a task to a worker that may claim it.
func (d *Dispatcher) FetchTask(
	ctx context.Context, w authz.Worker, task uuid.UUID,
) (state protocol.TaskState, err error) {
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		var needs string
		var org uuid.UUID
		state, org, needs, err = d.taskState(ctx, tx, task)
		if err == nil && (needs == tasks.NeedCheck || !w.MayClaim(org, state.Runtime, tasks.OperatorOf(needs))) {
			err = noSuchTask(task)
		}
		return err
	})
	return state, err
}

func noSuchTask(id uuid.UUID) error { return fault.New(fault.NotFound, "there is no task %s", id) }

// taskState returns the state of a task, with its org and what a worker needs to run it.
func (d *Dispatcher) taskState(
	ctx context.Context, tx pgx.Tx, id uuid.UUID,
) (s protocol.TaskState, org uuid.UUID, needs string, err error) {
	states, err := d.taskStates(ctx, tx, []uuid.UUID{id})
	if err != nil {
		return s, org, "", err
	}
	if len(states) == 0 {
		return s, org, "", noSuchTask(id)
	}
	return states[0].TaskState, states[0].org, states[0].needs, nil
}

// taskStanding is the state of a task, with the fields that decide who may read it.
type taskStanding struct {
	protocol.TaskState
	org, origin uuid.UUID
	needs       string
}

// taskStates returns the states of tasks, in no order. Tasks that do not exist are left out.
func (d *Dispatcher) taskStates(ctx context.Context, tx pgx.Tx, list []uuid.UUID) ([]taskStanding, error) {
	rows, err := tx.Query(ctx, `
		SELECT t.id, t.org_id, t.job_id, t.status, coalesce(t.reason, ''), coalesce(l.state, t.state, ''), t.attempt,
			t.runtime, t.needs, t.payload, coalesce(l.progress, t.progress),
			t.cancel_requested_at IS NOT NULL OR coalesce(l.cancel_requested, false),
			coalesce(w.available_at, t.next_retry_at), l.expires_at
		FROM unnest($1::uuid[]) AS wanted
		CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = wanted LIMIT 1) AS t
		LEFT JOIN LATERAL (SELECT * FROM leases WHERE task_id = wanted LIMIT 1) AS l ON true
		LEFT JOIN LATERAL (SELECT * FROM waiting WHERE task_id = wanted LIMIT 1) AS w ON true`, list)
	if err != nil {
		return nil, fmt.Errorf("read %d tasks: %w", len(list), err)
	}

	var origins []uuid.UUID
	states, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s taskStanding, err error) {
		err = row.Scan(&s.TaskID, &s.org, &s.origin, &s.Status, &s.Reason, &s.State, &s.Attempt, &s.Runtime,
			&s.needs, &s.Payload, &s.Progress, &s.CancelRequested, &s.NextRetryAt, &s.LeaseExpiresAt)
		origins = append(origins, s.origin)
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("read %d tasks: %w", len(list), err)
	}

	jobs, err := d.Registry.Jobs(ctx, tx, tasks.SortedIDs(origins))
	if err != nil {
		return nil, err
	}
	for i := range states {
		s := &states[i]
		job := jobs[s.origin]
		s.Org, s.Job = job.OrgSlug, protocol.Job{DAGName: job.DAG, Name: job.Name}
		s.Operator = tasks.OperatorOf(s.needs)
	}
	return states, nil
}

// fillStates fills in the states of tasks for the completions that ask for them.
func (d *Dispatcher) fillStates(ctx context.Context, tx pgx.Tx, batch []*Completing) error {
	var tasks []uuid.UUID
	asking := map[uuid.UUID]*Completing{}
	for _, x := range batch {
		if x.taskState != nil && x.err == nil {
			tasks, asking[x.TaskID] = append(tasks, x.TaskID), x
		}
	}

	if len(tasks) == 0 {
		return nil
	}

	states, err := d.taskStates(ctx, tx, tasks)
	for _, s := range states {
		*asking[s.TaskID].taskState = s.TaskState
	}
	return err
}
