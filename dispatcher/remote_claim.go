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

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Claimant is who claims tasks from outside of the server's process.
type Claimant struct {
	WorkerID string
	Worker   authz.Worker // what its token lets it claim; anything else does not exist for it
	Runtimes []string     // that it serves; none: every one that its token names
	// What it says it runs. Where both are empty that is everything; an operator without a version is meant at the
	// server's own.
	Operators []protocol.Operator
	Handlers  []string
}

// needCheck is what a check task needs: the server itself.
const needCheck = "check"

// needsOf is what a worker has to run for a job's tasks of a kind: OPERATOR@VERSION, handler:NAME, or check. It follows
// from what the origin's fingerprint is of, so it never changes while a task waits.
func needsOf(job *dag.Job, kind string) string {
	if kind == needCheck {
		return needCheck
	}
	if job.Operator == dag.Handler {
		name, _ := job.Config["handler"].(string)
		return dag.Handler + ":" + name
	}
	return job.Operator + "@" + job.OperatorVersion
}

// operatorOf is the operator in what a task needs.
func operatorOf(needs string) string {
	if strings.HasPrefix(needs, dag.Handler+":") {
		return dag.Handler
	}
	name, _, _ := strings.Cut(needs, "@")
	return name
}

// needs lists what the claimant runs, for comparing; nil is everything.
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
	}
	for _, h := range c.Handlers {
		out = append(out, dag.Handler+":"+h)
	}
	return out
}

// takes reports whether a task is one for the claimant.
func (c Claimant) takes(org uuid.UUID, runtime, needs string, known *operators.Registry) bool {
	runs := c.needs(known)
	return needs != needCheck && c.Worker.MayClaim(org, runtime, operatorOf(needs)) &&
		(len(c.Runtimes) == 0 || slices.Contains(c.Runtimes, runtime)) && (runs == nil || slices.Contains(runs, needs))
}

func notClaimed(reason string) protocol.Claim {
	return protocol.Claim{Status: protocol.NotClaimed, Reason: reason}
}

// notClaimable says why a task that is not in the ready set cannot be claimed. It is pure.
func notClaimable(status, waiting string) string {
	switch {
	case status == "Running":
		return protocol.AlreadyRunning
	case status == "Queued", status == "Failed" && waiting == "backoff":
		return protocol.Throttled
	}
	return status // Completed, Failed or Canceled
}

// ClaimMany claims up to max tasks that are for the claimant, the orgs in turns. Tasks of others that stand before its own
// in an org's queue are passed by one by one: where there are very many of them, a runtime of its own is the better place.
func (d *Dispatcher) ClaimMany(ctx context.Context, c Claimant, max int, now time.Time) ([]protocol.Claim, error) {
	if err := d.mayIssue(); err != nil {
		return nil, err
	}
	runtimes := c.Runtimes
	if len(runtimes) == 0 {
		runtimes = c.Worker.Runtimes
	}
	tasks, err := d.claimTaken(ctx, holder{c.WorkerID, true}, now, func(ctx context.Context, tx pgx.Tx) ([]claimable, error) {
		return d.takeFor(ctx, tx, c, runtimes, max)
	})
	if err != nil {
		return nil, fmt.Errorf("claim tasks of %s: %w", strings.Join(runtimes, ", "), err)
	}
	claims := make([]protocol.Claim, len(tasks))
	for i, t := range tasks {
		if claims[i], err = d.wireClaim(t, now); err != nil {
			return nil, err // their leases run out
		}
	}
	return claims, nil
}

// turns remembers, of each runtime, which org's turn was last.
type turns struct {
	mu   sync.Mutex
	last map[string]uuid.UUID
}

func (t *turns) of(runtime string) uuid.UUID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last[runtime]
}

func (t *turns) took(taken []claimable) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = map[string]uuid.UUID{}
	}
	for _, c := range taken {
		t.last[c.runtime] = c.Org
	}
}

// takeFor removes tasks from the ready set that are for a claimant.
func (d *Dispatcher) takeFor(ctx context.Context, tx pgx.Tx, c Claimant, runtimes []string, max int) ([]claimable, error) {
	where, args := "q.needs <> '"+needCheck+"'", []any(nil)
	if runs := c.needs(d.Operators); runs != nil {
		where += fmt.Sprintf(" AND q.needs = ANY($%d)", 5+len(args))
		args = append(args, runs)
	}
	if ops := c.Worker.Operators; len(ops) > 0 {
		where += fmt.Sprintf(" AND "+operatorColumn+" = ANY($%d)", 5+len(args))
		args = append(args, ops)
	}
	queues, _, err := queuesReady(ctx, tx, runtimes)
	if err != nil {
		return nil, err
	}
	queues = slices.DeleteFunc(queues, func(h head) bool {
		return !slices.Contains(c.Worker.Orgs, h.org) || len(c.Worker.Runtimes) > 0 && !slices.Contains(c.Worker.Runtimes, h.runtime)
	})
	return d.takeInTurn(ctx, tx, queues, max, where, args...)
}

// takeInTurn removes up to max tasks from queues that meet a condition, as takeFrom has it: of each org its share, and what
// that leaves of the rest.
func (d *Dispatcher) takeInTurn(ctx context.Context, tx pgx.Tx, queues []head, max int, where string, args ...any) ([]claimable, error) {
	queues = d.inTurn(queues)
	var taken []claimable
	for len(queues) > 0 && len(taken) < max {
		some := queues[:min(len(queues), headsAtOnce, max-len(taken))]
		queues = queues[len(some):]
		ranks := make([]int64, len(some))
		for i := range ranks {
			ranks[i] = -1 << 62
		}
		got, err := takeFrom(ctx, tx, some, ranks, (max-len(taken))/len(some), where, args...)
		if err != nil {
			return nil, err
		}
		taken = append(taken, got...)
	}
	d.turns.took(taken)
	return taken, nil
}

// inTurn orders queues so that each org comes behind the one whose turn was last.
func (d *Dispatcher) inTurn(queues []head) []head {
	slices.SortStableFunc(queues, func(a, b head) int {
		x, y := slices.Compare(a.org[:], orgAfter(d, a)) <= 0, slices.Compare(b.org[:], orgAfter(d, b)) <= 0
		switch {
		case x && !y:
			return 1
		case y && !x:
			return -1
		}
		return slices.Compare(a.org[:], b.org[:])
	})
	return queues
}

func orgAfter(d *Dispatcher, h head) []byte {
	last := d.turns.of(h.runtime)
	return last[:]
}

// capabilityFor is how long a capability token lives, at least. It is longer than any lease: a completion that comes after
// the lease ran out is to be heard, and told how things stand.
const capabilityFor = time.Hour

func (d *Dispatcher) mayIssue() error {
	if d.Signer.CanIssue() {
		return nil
	}
	return fault.New(fault.Unavailable, "this server has no key for capability tokens, so no task can run outside of it").
		WithHint("give the server's config a key for them")
}

// capability is what an attempt may show for itself from now on.
func (d *Dispatcher) capability(t claimed, now time.Time) (string, error) {
	c := authz.Capability{OrgID: t.job.OrgID, TaskID: t.TaskID, Attempt: t.Attempt, ExpiresAt: now.Add(max(capabilityFor, 2*t.lease)),
		Prefixes: []string{}}
	for _, in := range t.assignment.Inputs {
		c.Datasets = append(c.Datasets, in.Generation.Dataset)
	}
	for _, out := range t.assignment.Outputs {
		c.Datasets = append(c.Datasets, out.Generation.Dataset)
		if prefix := d.uploadPrefix(t, out.Index); prefix != "" {
			c.Prefixes = append(c.Prefixes, prefix)
		}
	}
	c.Datasets = dedupeIDs(c.Datasets)
	return d.Signer.Issue(c, now)
}

// uploadPrefix is where an attempt may put an output's files with storage credentials; empty where the storage is no bucket.
func (d *Dispatcher) uploadPrefix(t claimed, output int) string {
	return d.Storage.UploadPrefix(storage.UploadKey{Org: t.job.OrgID, Task: t.TaskID, Attempt: t.Attempt, Output: output})
}

// wireClaim is a claimed task as the worker is told of it.
func (d *Dispatcher) wireClaim(t claimed, now time.Time) (protocol.Claim, error) {
	token, err := d.capability(t, now)
	if err != nil {
		return protocol.Claim{}, err
	}
	task, err := d.wireTask(t)
	if err != nil {
		return protocol.Claim{}, err
	}
	expires := now.Add(t.lease)
	return protocol.Claim{Status: protocol.Claimed, Attempt: t.Attempt, LeaseToken: &t.LeaseToken, LeaseExpiresAt: &expires,
		CapabilityToken: token, BaseURL: d.BaseURL, Task: &task}, nil
}

func (d *Dispatcher) wireTask(t claimed) (protocol.Task, error) {
	a := t.assignment
	by, err := json.Marshal(a.PartitionBy)
	if err != nil {
		return protocol.Task{}, fmt.Errorf("task %s: %w", t.TaskID, err)
	}
	w := protocol.Task{TaskID: t.TaskID, Attempt: t.Attempt, Org: a.OrgSlug, Job: protocol.Job{DAGName: a.DAG, Name: a.Job}, Kind: t.kind,
		Operator: a.Operator, OperatorVersion: a.OperatorVersion, Config: a.Config, Payload: a.Payload, PartitionBy: by,
		Inputs: []protocol.Input{}, Outputs: []protocol.Output{}, OperatorState: a.State, Secrets: t.job.Def.Secrets,
		TimeoutAt: t.timeoutAt, LeaseSeconds: int(t.lease.Seconds()), Traceparent: t.trace}
	if udf := t.job.Def.UDF; udf != nil {
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
		w.Outputs = append(w.Outputs, protocol.Output{Index: out.Index, Name: out.Name, DatasetUUID: out.Generation.Dataset,
			DatasetVersion: out.Generation.Version, UpdateStrategy: string(out.UpdateStrategy), Storage: string(out.Generation.Kind),
			Prefix: d.uploadPrefix(t, out.Index)})
	}
	return w, nil
}

func wireInput(in operators.AssignedInput) protocol.Input {
	w := protocol.Input{Index: in.Index, As: in.As, DatasetUUID: in.Generation.Dataset, DatasetVersion: in.Generation.Version,
		Partitions: []protocol.InputPartition{}}
	for _, p := range in.Partitions {
		one := protocol.InputPartition{Key: p.Key, Revision: p.Revision}
		for _, f := range p.Files {
			one.Rows, one.Bytes = one.Rows+f.Rows, one.Bytes+f.Bytes
		}
		w.Partitions = append(w.Partitions, one)
	}
	for _, c := range in.Schema {
		w.Schema = append(w.Schema, protocol.Column{Name: c.Name, Type: c.Type})
	}
	return w
}

// givenRecord is what a claim decided for an attempt outside of the server's process and its task's row does not say, so
// that any server can answer the attempt's calls.
type givenRecord struct {
	Job         uuid.UUID                 `json:"job"`                   // the row by which the origin was run
	Generations []storage.Generation      `json:"generations,omitempty"` // that the inputs are read at
	Cursor      *operators.CursorPosition `json:"cursor,omitempty"`      // where the next segment begins
}

func (h holder) record(t claimed, g given) ([]byte, error) {
	if !h.remote {
		return nil, nil
	}
	return json.Marshal(givenRecord{Job: t.job.ID, Generations: g.generations[t.job.ID], Cursor: t.assignment.Cursor})
}

// FetchTask is a task as it stands, for a worker that may claim it.
func (d *Dispatcher) FetchTask(ctx context.Context, w authz.Worker, task uuid.UUID) (state protocol.TaskState, err error) {
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		var needs string
		var org uuid.UUID
		state, org, needs, err = d.taskState(ctx, tx, task)
		if err == nil && (needs == needCheck || !w.MayClaim(org, state.Runtime, operatorOf(needs))) {
			err = noSuchTask(task)
		}
		return err
	})
	return state, err
}

func noSuchTask(id uuid.UUID) error { return fault.New(fault.NotFound, "there is no task %s", id) }

// taskState reads a task as it stands.
func (d *Dispatcher) taskState(ctx context.Context, tx pgx.Tx, id uuid.UUID) (s protocol.TaskState, org uuid.UUID, needs string, err error) {
	states, err := d.taskStates(ctx, tx, ids(id))
	if err != nil {
		return s, org, "", err
	}
	if len(states) == 0 {
		return s, org, "", noSuchTask(id)
	}
	return states[0].TaskState, states[0].org, states[0].needs, nil
}

// taskStanding is a task as it stands, and what decides who may know.
type taskStanding struct {
	protocol.TaskState
	org, origin uuid.UUID
	needs       string
}

// taskStates reads tasks as they stand, in no order; those that do not exist are left out.
func (d *Dispatcher) taskStates(ctx context.Context, tx pgx.Tx, tasks []uuid.UUID) ([]taskStanding, error) {
	rows, err := tx.Query(ctx, `
		SELECT t.id, t.org_id, t.job_id, t.status, coalesce(t.reason, ''), coalesce(l.state, t.state, ''), t.attempt, t.runtime,
			t.needs, t.payload, coalesce(l.progress, t.progress), t.cancel_requested_at IS NOT NULL OR coalesce(l.cancel_requested, false),
			coalesce(w.available_at, t.next_retry_at), l.expires_at
		FROM unnest($1::uuid[]) AS wanted
		CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = wanted LIMIT 1) AS t
		LEFT JOIN LATERAL (SELECT * FROM leases WHERE task_id = wanted LIMIT 1) AS l ON true
		LEFT JOIN LATERAL (SELECT * FROM waiting WHERE task_id = wanted LIMIT 1) AS w ON true`, tasks)
	if err != nil {
		return nil, fmt.Errorf("read %d tasks: %w", len(tasks), err)
	}
	var origins []uuid.UUID
	states, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s taskStanding, err error) {
		err = row.Scan(&s.TaskID, &s.org, &s.origin, &s.Status, &s.Reason, &s.State, &s.Attempt, &s.Runtime,
			&s.needs, &s.Payload, &s.Progress, &s.CancelRequested, &s.NextRetryAt, &s.LeaseExpiresAt)
		origins = append(origins, s.origin)
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("read %d tasks: %w", len(tasks), err)
	}
	jobs, err := d.Registry.Jobs(ctx, tx, dedupeIDs(origins))
	if err != nil {
		return nil, err
	}
	for i := range states {
		s := &states[i]
		job := jobs[s.origin]
		s.Org, s.Job = job.OrgSlug, protocol.Job{DAGName: job.DAG, Name: job.Name}
		s.Operator = operatorOf(s.needs)
	}
	return states, nil
}

// tellStates fills in how the tasks of a batch stand, for those that ask.
func (d *Dispatcher) tellStates(ctx context.Context, tx pgx.Tx, batch []*completing) error {
	var tasks []uuid.UUID
	asking := map[uuid.UUID]*completing{}
	for _, x := range batch {
		if x.tell != nil && x.err == nil {
			tasks, asking[x.TaskID] = append(tasks, x.TaskID), x
		}
	}
	if len(tasks) == 0 {
		return nil
	}
	states, err := d.taskStates(ctx, tx, tasks)
	for _, s := range states {
		*asking[s.TaskID].tell = s.TaskState
	}
	return err
}
