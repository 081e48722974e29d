package dispatcher

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// Claimed is a task under a lease, with everything that its run needs.
type Claimed struct {
	tasks.Fence
	kind       tasks.Kind
	runtime    string
	Job        *registry.Job
	Slot       string
	lease      time.Duration
	TimeoutAt  time.Time
	Assignment operators.Assignment
	trace      string         // traceparent of its latest span
	Check      *revisionCheck // set for check tasks
}

// Claim takes up to max ready tasks of some runtimes, pins the inputs of each, and leases the tasks to the worker. A
// task is canceled instead if its output is up to date by now or no version uses its origin any more: it has nothing to
// do.
func (d *Dispatcher) Claim(
	ctx context.Context, runtimes []string, worker string, max int, now time.Time,
) ([]Claimed, error) {
	return d.claimShare(ctx, runtimes, worker, max, tasks.Holding{}, now)
}

// claimShare is Claim for a process in which orgs hold slots already.
func (d *Dispatcher) claimShare(
	ctx context.Context, runtimes []string, worker string, max int, holding tasks.Holding, now time.Time,
) ([]Claimed, error) {
	out, err := d.ClaimTaken(ctx, Holder{Worker: worker}, now,
		func(ctx context.Context, tx pgx.Tx) ([]tasks.Taken, error) {
			return d.Tasks.TakeReady(ctx, tx, runtimes, max, holding)
		})
	if err != nil {
		return nil, fmt.Errorf("claim tasks of %s: %w", strings.Join(runtimes, ", "), err)
	}
	return out, nil
}

// Holder is the worker that gets leases.
type Holder struct {
	Worker string
	Remote bool // outside of the server's process: its claims are recorded, so that any server can answer its calls

	token, incarnation string // as in workers; empty: the server itself, or a function that it invokes
}

// ClaimTaken leases the tasks that take removes from the ready set, in the same transaction.
func (d *Dispatcher) ClaimTaken(
	ctx context.Context, by Holder, now time.Time, take func(context.Context, pgx.Tx) ([]tasks.Taken, error),
) ([]Claimed, error) {
	var (
		out     []Claimed
		dropped bool
		began   = time.Now()
	)

	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		out, dropped = nil, false
		taken, err := take(ctx, tx)
		if err != nil || len(taken) == 0 {
			return err
		}
		out, err = d.leaseTaken(ctx, tx, taken, by, now)
		dropped = len(out) < len(taken)
		return err
	})
	if err != nil {
		return nil, err
	}

	if dropped {
		d.Wakeups.Send(d.Progressed()...)
	}
	d.Metrics.Batch("claim", began, len(out))
	d.tracing.claimed(out, began)
	return out, nil
}

// leaseTaken pins the inputs of tasks that were taken from the ready set, and leases the tasks. It cancels those that
// have nothing to do.
func (d *Dispatcher) leaseTaken(
	ctx context.Context, tx pgx.Tx, taken []tasks.Taken, by Holder, now time.Time,
) ([]Claimed, error) {
	origins := make([]uuid.UUID, len(taken))
	for i, c := range taken {
		origins[i] = c.Origin
	}
	acting, err := d.Registry.ActingJobs(ctx, tx, tasks.SortedIDs(origins))
	if err != nil {
		return nil, err
	}

	pins, obsolete, err := d.pin(ctx, tx, taken, acting)
	if err != nil {
		return nil, err
	}

	var idle, leased []tasks.Taken
	for i, c := range taken {
		if reason, ok := obsolete[c.Task]; ok {
			c.Idle = reason
			idle = append(idle, c)
			continue
		}
		c.Pins, c.Job = pins[i], acting[c.Origin].Job
		leased = append(leased, c)
	}

	if err := d.cancelClaimed(ctx, tx, idle, now); err != nil {
		return nil, err
	}
	return d.lease(ctx, tx, leased, nil, by, now)
}

// pin returns the input revisions that each task is to read, and the tasks that have become obsolete, with the reasons.
func (d *Dispatcher) pin(
	ctx context.Context, tx pgx.Tx, taken []tasks.Taken, acting map[uuid.UUID]registry.Acting,
) ([][]registry.Pin, map[uuid.UUID]string, error) {
	pins := make([][]registry.Pin, len(taken))
	obsolete := map[uuid.UUID]string{}

	var (
		targets []stale.Target
		index   []int
	)
	for i, c := range taken {
		a, ok := acting[c.Origin]
		if !ok {
			obsolete[c.Task] = "no version uses this job any more"
			continue
		}
		if a.Job.Def.Activation == dag.ActivationReactive && c.Kind != tasks.KindCheck {
			targets, index = append(targets, stale.Target{Job: a.Job, Key: c.Slot}), append(index, i)
		}
	}

	if err := d.Stale.LockCursors(ctx, tx, targets); err != nil {
		return nil, nil, err
	}
	findings, err := d.Stale.Examine(ctx, tx, targets)
	if err != nil {
		return nil, nil, err
	}
	var notes pg.Batch
	stale.NoteAwaited(&notes, findings)
	if err := notes.SendLast(ctx, tx); err != nil {
		return nil, nil, err
	}

	for n, f := range findings {
		c := taken[index[n]]
		switch f.Verdict {
		case stale.Stale:
			pins[index[n]] = f.Pins
		case stale.Current:
			if c.Kind == tasks.KindBackfill { // it was asked for although the output is up to date
				pins[index[n]] = f.Pins
				continue
			}
			obsolete[c.Task] = "the output is up to date"
		case stale.Incomplete, stale.Blocked:
			obsolete[c.Task] = f.Missing
		}
	}
	return pins, obsolete, nil
}

// cancelClaimed ends tasks that were taken from the ready set and have nothing to do. If their work is wanted again,
// the same rows are used again.
func (d *Dispatcher) cancelClaimed(ctx context.Context, tx pgx.Tx, idle []tasks.Taken, now time.Time) error {
	if len(idle) == 0 {
		return nil
	}

	freed := map[tasks.Limit]int{}
	list, reasons := make([]uuid.UUID, len(idle)), make([]string, len(idle))
	for i, c := range idle {
		list[i], reasons[i] = c.Task, c.Idle
		tasks.AddFreed(freed, c.Org, c.Limits)
	}

	_, err := tx.Exec(ctx, `
		WITH done AS (
			UPDATE tasks t
			SET status = 'Canceled', reason = 'superseded', state = w.reason, completed_at = $3, version = version + 1
			FROM unnest($1::uuid[], $2::text[]) AS w(id, reason)
			WHERE t.id = w.id AND t.status = 'Queued' RETURNING t.id, t.org_id, t.attempt, t.state)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, at)
		SELECT uuid_v7(), org_id, id, attempt, 'Queued', 'Canceled', 'SYSTEM', state, $3 FROM done`, list, reasons, now)
	if err != nil {
		return fmt.Errorf("cancel %d tasks: %w", len(idle), err)
	}
	return d.Tasks.ReleaseAll(ctx, tx, freed, now)
}

// lease makes tasks Running, each under a new token, and records where their attempts may write before they write
// anything. loaded holds the inputs of the claim, without their generations; where it is nil, lease loads them.
func (d *Dispatcher) lease(
	ctx context.Context, tx pgx.Tx, taken []tasks.Taken, loaded *pg.Later[claimInputs], by Holder, now time.Time,
) ([]Claimed, error) {
	if len(taken) == 0 {
		return nil, nil
	}
	if err := fixRanges(ctx, tx, taken); err != nil {
		return nil, err
	}
	inputs, err := d.loadInputs(ctx, tx, taken, loaded)
	if err != nil {
		return nil, err
	}

	var (
		out                    = make([]Claimed, len(taken))
		list, orgs, origins    []uuid.UUID
		tokens                 []uuid.UUID
		slots, pins, staging   []string
		records                []string // the claim records of remote attempts
		attempts, leaseSeconds []int
		expires, timeouts      []time.Time
		states                 []int64 // the versions of the operator states
	)
	for i, c := range taken {
		t := Claimed{kind: c.Kind, runtime: c.Runtime, trace: c.Trace, Job: c.Job, Slot: c.Slot,
			lease:     cmp.Or(c.Job.Def.HeartbeatTimeout, d.Lease),
			TimeoutAt: now.Add(cmp.Or(c.Job.Def.Timeout, noTimeout)),
			Fence:     tasks.Fence{TaskID: c.Task, Attempt: c.Attempt, LeaseToken: uuid.New()}}
		if c.Started {
			t.Attempt++ // the attempt before lost its lease, failed or was handed back
		}

		if t.Assignment, t.Check, err = d.assign(ctx, tx, t, c, inputs); err != nil {
			return nil, err
		}
		locations := []string{}
		for _, o := range d.staged(c.Job, t.Assignment.Outputs) {
			locations = append(locations, d.Storage.Location(storage.Attempt{Generation: o.Generation,
				Partition: partitionOf(t.Assignment), Task: c.Task, Number: t.Attempt, Output: o.Index}))
		}
		pinned, err := json.Marshal(inputs.stamp(c.Pins))
		if err != nil {
			return nil, err
		}
		record, err := by.record(t, inputs)
		if err != nil {
			return nil, err
		}

		list, orgs, origins = append(list, c.Task), append(orgs, c.Org), append(origins, c.Origin)
		slots, attempts, tokens = append(slots, c.Slot), append(attempts, t.Attempt), append(tokens, t.LeaseToken)
		leaseSeconds = append(leaseSeconds, int(t.lease.Seconds()))
		expires, timeouts = append(expires, now.Add(t.lease)), append(timeouts, t.TimeoutAt)
		pins = append(pins, string(pinned))
		staging = append(staging, strings.Join(locations, "\n")) // a location has no newline: it is escaped
		records = append(records, string(record))
		states = append(states, inputs.states[c.Origin].version)
		out[i] = t
	}

	var b pg.Batch
	b.Exec(fmt.Sprintf("lease %d tasks", len(taken)), `
		WITH w AS (
			SELECT * FROM unnest($3::uuid[], $4::uuid[], $5::uuid[], $6::text[], $7::int[], $8::uuid[], $9::int[],
				$10::timestamptz[], $11::timestamptz[], $12::text[], $13::text[], $14::text[],
				$17::bigint[])
				AS w(task, org, origin, slot, attempt, token, seconds, expires_at, timeout_at, pins, staging, given,
					state_version)),
		leased AS (
			INSERT INTO leases (task_id, org_id, origin_job_id, slot, attempt, lease_token, worker_id, lease_seconds,
				expires_at, timeout_at, heartbeat_at, worker_token, incarnation, state_version, staging)
			SELECT task, org, origin, slot, attempt, token, $1, seconds, expires_at, timeout_at, $2, $15, $16, state_version,
				CASE WHEN attempt = 1 AND given = '' THEN string_to_array(staging, E'\n') ELSE '{}' END FROM w),
		tried AS (
			INSERT INTO task_attempts (task_id, attempt, org_id, worker_id, started_at, staging, given)
			SELECT task, attempt, org, $1, $2, string_to_array(staging, E'\n'), NULLIF(given, '')::jsonb
			FROM w WHERE attempt > 1 OR given <> '')
		UPDATE tasks t SET status = 'Running', attempt = w.attempt, worker_id = $1, lease_token = w.token,
			lease_expires_at = w.expires_at, last_heartbeat = $2, timeout_at = w.timeout_at, started_at = $2,
			completed_at = NULL, next_retry_at = NULL, input_versions = w.pins::jsonb, progress = 0, state = NULL,
			version = version + 1
		FROM w WHERE t.id = w.task`,
		by.Worker, now, list, orgs, origins, slots, attempts, tokens, leaseSeconds,
		expires, timeouts, pins, staging, records, by.token, by.incarnation, states)
	return out, b.SendLast(ctx, tx)
}

// staged returns the outputs that an attempt may write files for: none if the operator writes no files.
func (d *Dispatcher) staged(job *registry.Job, outputs []operators.AssignedOutput) []operators.AssignedOutput {
	if op, ok := d.Operators.Get(job.Def.Operator); ok && op.Spec().NoFiles {
		return nil
	}
	return outputs
}

// noTimeout is the timeout of jobs that declare none.
const noTimeout = 24 * time.Hour

// claimInputs holds the inputs and operator states of a batch of claimed tasks, loaded for all of them at once.
type claimInputs struct {
	generations map[uuid.UUID][]registry.InputGeneration // by job row: the generation that each input reads
	contents    map[registry.Pin]registry.Content
	columns     map[uuid.UUID][]storage.Column // of generations of which a task reads no partition
	states      map[uuid.UUID]operatorState    // by origin
	readings    map[uuid.UUID]json.RawMessage  // how files are read, by job row
	cursor      *operators.CursorPosition      // where the attempt began, if it is loaded again after its claim
}

// loadInputs returns the inputs of taken tasks. loaded holds them without their generations, unless it is nil.
func (d *Dispatcher) loadInputs(
	ctx context.Context, tx pgx.Tx, taken []tasks.Taken, loaded *pg.Later[claimInputs],
) (claimInputs, error) {
	var (
		pins    []registry.Pin
		origins []uuid.UUID
		jobs    []*registry.Job
	)
	for _, c := range taken {
		pins, origins, jobs = append(pins, c.Pins...), append(origins, c.Origin), append(jobs, c.Job)
	}

	generations, err := d.Registry.InputGenerations(ctx, tx, jobs...)
	if err != nil {
		return claimInputs{}, err
	}
	if loaded == nil {
		loaded = queryInputs(new(pg.Batch), pins, origins)
	}
	inputs, err := loaded.Get(ctx, tx)
	if err != nil {
		return inputs, err
	}
	inputs.generations = generations
	if inputs.readings, err = registry.Readings(ctx, tx, d.readingsOf(jobs)); err != nil {
		return inputs, err
	}
	inputs.columns, err = columnsOfUnread(ctx, tx, taken, generations, inputs.contents)
	return inputs, err
}

// columnsOfUnread returns the columns of those generations that taken tasks have as inputs, and read nothing of: where
// one of several inputs suffices, the others may lack the partition, and what a check reads may be purged by then.
func columnsOfUnread(
	ctx context.Context, tx pgx.Tx, taken []tasks.Taken,
	generations map[uuid.UUID][]registry.InputGeneration, contents map[registry.Pin]registry.Content,
) (map[uuid.UUID][]storage.Column, error) {
	var unread []uuid.UUID
	for _, c := range taken {
		for i, g := range generations[c.Job.ID] {
			reads := func(p registry.Pin) bool { return p.Input == i && p.Content(contents).Schema != nil }
			if !slices.ContainsFunc(c.Pins, reads) {
				unread = append(unread, g.Version)
			}
		}
	}
	if len(unread) == 0 {
		return nil, nil
	}
	return registry.ColumnsOf(ctx, tx, unread)
}

// queryInputs returns the contents of pins, and the operator states of origins.
func queryInputs(b *pg.Batch, pins []registry.Pin, origins []uuid.UUID) *pg.Later[claimInputs] {
	var (
		states = map[uuid.UUID]operatorState{}
		origin uuid.UUID
		state  operatorState
	)

	contents := registry.Contents(b, pins)
	b.Query("operator states", []any{&origin, &state.text, &state.version}, func() error {
		states[origin] = operatorState{slices.Clone(state.text), state.version}
		return nil
	}, `SELECT job_id, state, version FROM operator_state
		WHERE job_id = ANY($1) AND state_key = 'default' AND version > 0`, // 0: nobody has written it yet
		tasks.SortedIDs(origins))

	return pg.Then(pg.Answer(b, &states),
		func(ctx context.Context, tx pgx.Tx, states map[uuid.UUID]operatorState) (claimInputs, error) {
			found, err := contents.Get(ctx, tx)
			return claimInputs{contents: found, states: states}, err
		})
}

// stamp returns pins with the times at which their revisions were made.
func (g claimInputs) stamp(pins []registry.Pin) []registry.Pin {
	stamped := make([]registry.Pin, len(pins))
	for i, p := range pins {
		stamped[i] = p
		stamped[i].At = p.Content(g.contents).At
	}
	return stamped
}

// partitionOf returns the key of the output partition that a run makes.
func partitionOf(a operators.Assignment) string {
	if a.Partition == nil {
		return dag.WholeKey
	}
	return a.Partition.Key
}

// assign returns everything that a run needs: config, pinned inputs with their committed files, outputs at the
// generations of the job's version, operator state. For a check task it also returns the revision to check.
func (d *Dispatcher) assign(
	ctx context.Context, tx pgx.Tx, t Claimed, c tasks.Taken, g claimInputs,
) (operators.Assignment, *revisionCheck, error) {
	job := t.Job
	a := operators.Assignment{TaskID: t.TaskID, Attempt: t.Attempt, OrgID: job.OrgID, OrgSlug: job.OrgSlug,
		DAG: job.DAG, Job: job.Name, Operator: job.Def.Operator, OperatorVersion: job.Def.OperatorVersion,
		Config: job.Def.Config, Payload: c.Payload, PartitionBy: job.Def.PartitionBy,
		Roots: d.Roots(job.OrgSlug, job.DAG), TimeoutAt: t.TimeoutAt}
	if c.Kind == tasks.KindCheck {
		check, err := d.assignCheck(ctx, tx, &a, job, c)
		return a, check, err
	}

	var err error

	cursor := g.cursor
	if cursor == nil {
		if cursor, err = stale.CursorPosition(ctx, tx, job); err != nil {
			return a, nil, err
		}
	}
	a.Cursor = cursor
	if len(c.Partitions) > 0 && cursor == nil {
		if err := setPartition(&a, job, c.Partitions[0]); err != nil {
			return a, nil, err
		}
	}

	assignInputs(&a, job, c.Pins, g)
	a.Outputs, err = assignOutputs(ctx, tx, job, partitionOf(a))
	a.State, a.Reading = g.states[job.Origin].text, g.readings[job.ID]
	return a, nil, err
}

// assignOutputs returns the outputs of a run; those that append come with the revision that they add to.
func assignOutputs(
	ctx context.Context, tx pgx.Tx, job *registry.Job, key string,
) (outputs []operators.AssignedOutput, err error) {
	for i, o := range job.Outputs {
		out := operators.AssignedOutput{Index: i, Name: o.Name, Generation: o.Generation,
			UpdateStrategy: job.Def.UpdateStrategy}
		if job.Def.UpdateStrategy == dag.Append {
			ref := registry.Ref{Version: o.Generation.Version, Key: key}
			if out.Base, err = publishedPartition(ctx, tx, ref); err != nil {
				return nil, err
			}
		}
		if operators.AnyColumns(job.Def.Operator) {
			if out.Standing, err = registry.StandingColumns(ctx, tx, o.Generation, key); err != nil {
				return nil, err
			}
		}
		outputs = append(outputs, out)
	}
	return outputs, nil
}

// setPartition sets the output partition that a task makes and, where the job is partitioned by time, its bounds.
func setPartition(a *operators.Assignment, job *registry.Job, key string) error {
	a.Partition = &operators.PartitionRange{Key: key}
	if job.Def.PartitionBy.Kind != dag.ByTime {
		return nil
	}
	start, end, err := job.Def.PartitionBy.Bounds(key)
	a.Partition.Start, a.Partition.End = &start, &end
	return err
}

// assignInputs adds the inputs, each with its pinned partitions.
func assignInputs(a *operators.Assignment, job *registry.Job, pins []registry.Pin, g claimInputs) {
	schemas := maps.Clone(g.columns)
	if schemas == nil {
		schemas = map[uuid.UUID][]storage.Column{}
	}
	kept, mixed := map[uuid.UUID]bool{}, map[uuid.UUID]bool{}
	for _, p := range pins {
		content := p.Content(g.contents)
		if content.Schema != nil && (content.Mixed || !mixed[p.Version]) {
			schemas[p.Version] = content.Schema
		}
		kept[p.Version] = kept[p.Version] || content.Kept
		mixed[p.Version] = mixed[p.Version] || content.Mixed
	}
	generations := g.generations[job.ID]

	for i, in := range job.Inputs {
		version := generations[i].Version
		a.Inputs = append(a.Inputs, operators.AssignedInput{Index: i, As: in.Def.As, Map: in.Def.Map.Kind,
			Where: in.Def.Where, PartitionBy: generations[i].PartitionBy, Generation: generations[i].Generation,
			Schema: schemas[version], Kept: kept[version], Mixed: mixed[version]})
	}

	for _, p := range pins {
		in := &a.Inputs[p.Input]
		in.Partitions = append(in.Partitions, p.Content(g.contents).Partition)
	}
}
