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

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// Fence is what a worker has to show to commit anything: the attempt it was given, and the token only it was given.
type Fence struct {
	TaskID     uuid.UUID `json:"task_id"`
	Attempt    int       `json:"attempt"`
	LeaseToken uuid.UUID `json:"lease_token"`
}

// claimed is a task under a lease, with all that its run needs.
type claimed struct {
	Fence
	kind       string
	runtime    string
	job        *registry.Job
	slot       string
	lease      time.Duration
	timeoutAt  time.Time
	assignment operators.Assignment
	trace      string         // traceparent of what it did last
	check      *revisionCheck // of check tasks
}

// claimable is a row of the ready set that this transaction took.
type claimable struct {
	Task, Org, Origin uuid.UUID
	Slot              string
	Kind              string
	Attempt           int
	Started           bool // an attempt was made before
	Partitions        []string
	Payload           []byte
	Limits            []string

	runtime string
	rank    int64
	trace   string // traceparent

	job  *registry.Job  // the acting one
	pins []registry.Pin // what it is to read
	idle string         // why it has nothing to do
}

// claim takes up to max ready tasks of some runtimes, pins what each is to read, and leases them to the worker. A task whose
// output is up to date by now, or whose origin nobody uses any more, is canceled instead: it has nothing to do.
func (d *Dispatcher) claim(ctx context.Context, runtimes []string, worker string, max int, now time.Time) ([]claimed, error) {
	out, err := d.claimTaken(ctx, holder{worker: worker}, now, func(ctx context.Context, tx pgx.Tx) ([]claimable, error) {
		return d.takeReady(ctx, tx, runtimes, max)
	})
	if err != nil {
		return nil, fmt.Errorf("claim tasks of %s: %w", strings.Join(runtimes, ", "), err)
	}
	return out, nil
}

// holder is who gets leases. What an attempt outside of the server's process was given is recorded with it.
type holder struct {
	worker string
	remote bool
}

// claimTaken leases what take removes from the ready set, in its transaction.
func (d *Dispatcher) claimTaken(ctx context.Context, by holder, now time.Time, take func(context.Context, pgx.Tx) ([]claimable, error)) ([]claimed, error) {
	var (
		out     []claimed
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
		d.wake.send(d.progressed()...)
	}
	d.metrics.batch("claim", began, len(out))
	d.tracing.claimed(out, began)
	return out, nil
}

// leaseTaken pins what tasks are to read that were taken from the ready set, and leases them; those that have nothing to do
// are canceled.
func (d *Dispatcher) leaseTaken(ctx context.Context, tx pgx.Tx, taken []claimable, by holder, now time.Time) ([]claimed, error) {
	origins := make([]uuid.UUID, len(taken))
	for i, c := range taken {
		origins[i] = c.Origin
	}
	acting, err := d.Registry.ActingJobs(ctx, tx, dedupeIDs(origins))
	if err != nil {
		return nil, err
	}
	pins, obsolete, err := d.pin(ctx, tx, taken, acting)
	if err != nil {
		return nil, err
	}
	var idle, leased []claimable
	for i, c := range taken {
		if reason, ok := obsolete[c.Task]; ok {
			c.idle = reason
			idle = append(idle, c)
			continue
		}
		c.pins, c.job = pins[i], acting[c.Origin].Job
		leased = append(leased, c)
	}
	if err := d.cancelClaimed(ctx, tx, idle, now); err != nil {
		return nil, err
	}
	return d.lease(ctx, tx, leased, by, now)
}

// pin decides for each task what it reads, and which tasks have become obsolete, with the reason.
func (d *Dispatcher) pin(ctx context.Context, tx pgx.Tx, taken []claimable, acting map[uuid.UUID]registry.Acting) ([][]registry.Pin, map[uuid.UUID]string, error) {
	pins := make([][]registry.Pin, len(taken))
	obsolete := map[uuid.UUID]string{}
	var (
		targets []target
		index   []int
	)
	for i, c := range taken {
		a, ok := acting[c.Origin]
		if !ok {
			obsolete[c.Task] = "no version uses this job any more"
			continue
		}
		if a.Job.Def.Activation == dag.ActivationReactive && c.Kind != "check" {
			targets, index = append(targets, target{a.Job, c.Slot}), append(index, i)
		}
	}
	if err := d.lockCursors(ctx, tx, targets); err != nil {
		return nil, nil, err
	}
	findings, err := d.examine(ctx, tx, targets)
	if err != nil {
		return nil, nil, err
	}
	for n, f := range findings {
		c := taken[index[n]]
		switch f.verdict {
		case stale:
			pins[index[n]] = f.pins
		case current:
			if c.Kind == "backfill" { // somebody wants it computed again
				pins[index[n]] = f.pins
				continue
			}
			obsolete[c.Task] = "the output is up to date"
		case incomplete:
			obsolete[c.Task] = f.missing
		}
	}
	return pins, obsolete, nil
}

// cancelClaimed ends tasks that were taken from the ready set and have nothing to do. Should their work be wanted again,
// the rows are taken up again.
func (d *Dispatcher) cancelClaimed(ctx context.Context, tx pgx.Tx, idle []claimable, now time.Time) error {
	if len(idle) == 0 {
		return nil
	}
	freed := map[limit]int{}
	tasks, reasons := make([]uuid.UUID, len(idle)), make([]string, len(idle))
	for i, c := range idle {
		tasks[i], reasons[i] = c.Task, c.idle
		countLimits(freed, c.Org, c.Limits)
	}
	_, err := tx.Exec(ctx, `
		WITH done AS (
			UPDATE tasks t SET status = 'Canceled', reason = 'superseded', state = w.reason, completed_at = $3, version = version + 1
			FROM unnest($1::uuid[], $2::text[]) AS w(id, reason)
			WHERE t.id = w.id AND t.status = 'Queued' RETURNING t.id, t.org_id, t.attempt, t.state)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, at)
		SELECT uuid_v7(), org_id, id, attempt, 'Queued', 'Canceled', 'SYSTEM', state, $3 FROM done`, tasks, reasons, now)
	if err != nil {
		return fmt.Errorf("cancel %d tasks: %w", len(idle), err)
	}
	return d.releaseAll(ctx, tx, freed, now)
}

// lease makes tasks Running, each under a new token, and records where their attempts may write before anything is written.
func (d *Dispatcher) lease(ctx context.Context, tx pgx.Tx, taken []claimable, by holder, now time.Time) ([]claimed, error) {
	if len(taken) == 0 {
		return nil, nil
	}
	if err := fixRanges(ctx, tx, taken); err != nil {
		return nil, err
	}
	given, err := d.given(ctx, tx, taken)
	if err != nil {
		return nil, err
	}
	return d.leaseGiven(ctx, tx, taken, given, by, now)
}

// leaseGiven is lease where it is known what the tasks are given.
func (d *Dispatcher) leaseGiven(ctx context.Context, tx pgx.Tx, taken []claimable, given given, by holder, now time.Time) (_ []claimed, err error) {
	var (
		out                    = make([]claimed, len(taken))
		tasks, orgs, origins   []uuid.UUID
		tokens                 []uuid.UUID
		slots, pins, staging   []string
		records                []string // of what remote attempts are given
		attempts, leaseSeconds []int
		expires, timeouts      []time.Time
	)
	for i, c := range taken {
		t := claimed{kind: c.Kind, runtime: c.runtime, trace: c.trace, job: c.job, slot: c.Slot, lease: cmp.Or(c.job.Def.HeartbeatTimeout, d.Lease),
			timeoutAt: now.Add(cmp.Or(c.job.Def.Timeout, noTimeout)),
			Fence:     Fence{TaskID: c.Task, Attempt: c.Attempt, LeaseToken: uuid.New()}}
		if c.Started {
			t.Attempt++ // a lost lease, a failure or a hand-back lies between
		}
		if t.assignment, t.check, err = d.assign(ctx, tx, t, c, given); err != nil {
			return nil, err
		}
		locations := []string{}
		for _, o := range d.staged(c.job, t.assignment.Outputs) {
			locations = append(locations, d.Storage.Location(storage.Attempt{Generation: o.Generation, Partition: partitionOf(t.assignment),
				Task: c.Task, Number: t.Attempt, Output: o.Index}))
		}
		pinned, err := json.Marshal(given.stamp(c.pins))
		if err != nil {
			return nil, err
		}
		tasks, orgs, origins, slots = append(tasks, c.Task), append(orgs, c.Org), append(origins, c.Origin), append(slots, c.Slot)
		attempts, tokens, leaseSeconds = append(attempts, t.Attempt), append(tokens, t.LeaseToken), append(leaseSeconds, int(t.lease.Seconds()))
		expires, timeouts = append(expires, now.Add(t.lease)), append(timeouts, t.timeoutAt)
		pins, staging = append(pins, string(pinned)), append(staging, strings.Join(locations, "\n")) // which are escaped
		record, err := by.record(t, given)
		if err != nil {
			return nil, err
		}
		records = append(records, string(record))
		out[i] = t
	}
	var b pg.Batch
	b.Exec(fmt.Sprintf("lease %d tasks", len(taken)), `
		WITH w AS (
			SELECT * FROM unnest($3::uuid[], $4::uuid[], $5::uuid[], $6::text[], $7::int[], $8::uuid[], $9::int[], $10::timestamptz[],
				$11::timestamptz[], $12::text[], $13::text[], $14::text[])
				AS w(task, org, origin, slot, attempt, token, seconds, expires_at, timeout_at, pins, staging, given)),
		leased AS (
			INSERT INTO leases (task_id, org_id, job_id, slot, attempt, lease_token, worker_id, lease_seconds, expires_at, timeout_at, heartbeat_at, staging)
			SELECT task, org, origin, slot, attempt, token, $1, seconds, expires_at, timeout_at, $2,
				CASE WHEN attempt = 1 AND given = '' THEN string_to_array(staging, E'\n') ELSE '{}' END FROM w),
		tried AS (
			INSERT INTO task_attempts (task_id, attempt, org_id, worker_id, started_at, staging, given)
			SELECT task, attempt, org, $1, $2, string_to_array(staging, E'\n'), NULLIF(given, '')::jsonb
			FROM w WHERE attempt > 1 OR given <> '')
		UPDATE tasks t SET status = 'Running', attempt = w.attempt, worker_id = $1, lease_token = w.token, lease_expires_at = w.expires_at,
			last_heartbeat = $2, timeout_at = w.timeout_at, started_at = $2, completed_at = NULL, next_retry_at = NULL,
			input_versions = w.pins::jsonb, progress = 0, state = NULL, version = version + 1
		FROM w WHERE t.id = w.task`,
		by.worker, now, tasks, orgs, origins, slots, attempts, tokens, leaseSeconds, expires, timeouts, pins, staging, records)
	return out, b.SendLast(ctx, tx)
}

// staged are the outputs that an attempt may write to: none where the operator writes nothing.
func (d *Dispatcher) staged(job *registry.Job, outputs []operators.AssignedOutput) []operators.AssignedOutput {
	if op, ok := d.Operators.Get(job.Def.Operator); ok && op.Spec().NoFiles {
		return nil
	}
	return outputs
}

// noTimeout is the timeout of jobs that declare none.
const noTimeout = 24 * time.Hour

// given is what a batch of claimed tasks is given, loaded for all of them at once.
type given struct {
	generations map[uuid.UUID][]storage.Generation // by job row: what each input reads
	contents    map[registry.Pin]registry.Content
	states      map[uuid.UUID]json.RawMessage // operator state, by origin
	cursor      *operators.CursorPosition     // of an attempt that is loaded again: as it was given before
}

func (d *Dispatcher) given(ctx context.Context, tx pgx.Tx, taken []claimable) (given, error) {
	var (
		pins    []registry.Pin
		origins []uuid.UUID
		jobs    []*registry.Job
		b       pg.Batch
	)
	for _, c := range taken {
		pins, origins, jobs = append(pins, c.pins...), append(origins, c.Origin), append(jobs, c.job)
	}
	generations, err := d.Registry.InputGenerations(ctx, tx, jobs...)
	if err != nil {
		return given{}, err
	}
	g := queueLoaded(&b, pins, origins)
	g.generations = generations
	return g, b.Send(ctx, tx)
}

// queueLoaded asks for what is in pins and for operator states; both are filled in when b is sent.
func queueLoaded(b *pg.Batch, pins []registry.Pin, origins []uuid.UUID) given {
	g := given{states: map[uuid.UUID]json.RawMessage{}}
	var (
		origin uuid.UUID
		state  []byte
	)
	g.contents = registry.QueueContents(b, pins)
	b.Query("operator states", []any{&origin, &state}, func() error {
		g.states[origin] = slices.Clone(state)
		return nil
	}, `SELECT job_id, state FROM operator_state WHERE job_id = ANY($1) AND state_key = 'default'`, dedupeIDs(origins))
	return g
}

// stamp adds to pins when the revisions were made.
func (g given) stamp(pins []registry.Pin) []registry.Pin {
	stamped := make([]registry.Pin, len(pins))
	for i, p := range pins {
		stamped[i] = p
		stamped[i].At = p.Content(g.contents).At
	}
	return stamped
}

func partitionOf(a operators.Assignment) string {
	if a.Partition == nil {
		return dag.WholeKey
	}
	return a.Partition.Key
}

// assign gathers what the run needs: config, pinned inputs with their committed files, outputs at the generations of
// the job's version, operator state.
func (d *Dispatcher) assign(ctx context.Context, tx pgx.Tx, t claimed, c claimable, g given) (operators.Assignment, *revisionCheck, error) {
	job := t.job
	a := operators.Assignment{TaskID: t.TaskID, Attempt: t.Attempt, OrgID: job.OrgID, OrgSlug: job.OrgSlug, DAG: job.DAG, Job: job.Name,
		Operator: job.Def.Operator, OperatorVersion: job.Def.OperatorVersion, Config: job.Def.Config, Payload: c.Payload,
		PartitionBy: job.Def.PartitionBy, Roots: d.Roots(job.OrgSlug, job.DAG), TimeoutAt: t.timeoutAt}
	if c.Kind == "check" {
		check, err := d.assignCheck(ctx, tx, &a, job, c)
		return a, check, err
	}
	var err error
	cursor := g.cursor
	if cursor == nil {
		if cursor, err = cursorPosition(ctx, tx, job); err != nil {
			return a, nil, err
		}
	}
	a.Cursor = cursor
	if len(c.Partitions) > 0 && cursor == nil {
		if err := setPartition(&a, job, c.Partitions[0]); err != nil {
			return a, nil, err
		}
	}
	assignInputs(&a, job, c.pins, g.generations[job.ID], g.contents)
	a.Outputs, err = assignOutputs(ctx, tx, job, partitionOf(a))
	a.State = g.states[job.Origin]
	return a, nil, err
}

// assignOutputs gives a run its outputs, and to those that append what they add to.
func assignOutputs(ctx context.Context, tx pgx.Tx, job *registry.Job, key string) (outputs []operators.AssignedOutput, err error) {
	for i, o := range job.Outputs {
		out := operators.AssignedOutput{Index: i, Name: o.Name, Generation: o.Generation, UpdateStrategy: job.Def.UpdateStrategy}
		if job.Def.UpdateStrategy == dag.Append {
			if out.Base, err = publishedPartition(ctx, tx, registry.Ref{Version: o.Generation.Version, Key: key}); err != nil {
				return nil, err
			}
		}
		outputs = append(outputs, out)
	}
	return outputs, nil
}

// setPartition says which output partition a task makes and, where partitions are of time, when that is.
func setPartition(a *operators.Assignment, job *registry.Job, key string) error {
	a.Partition = &operators.PartitionRange{Key: key}
	if job.Def.PartitionBy.Kind != dag.ByTime {
		return nil
	}
	start, end, err := job.Def.PartitionBy.Bounds(key)
	a.Partition.Start, a.Partition.End = &start, &end
	return err
}

// assignInputs adds the inputs, each with the partitions that are pinned of it.
func assignInputs(a *operators.Assignment, job *registry.Job, pins []registry.Pin, generations []storage.Generation, contents map[registry.Pin]registry.Content) {
	schemas := map[uuid.UUID][]storage.Column{}
	for _, p := range pins {
		schemas[p.Version] = p.Content(contents).Schema
	}
	for i, in := range job.Inputs {
		a.Inputs = append(a.Inputs, operators.AssignedInput{Index: i, As: in.Def.As, Map: in.Def.Map.Kind, Where: in.Def.Where,
			PartitionBy: in.PartitionBy, Generation: generations[i], Schema: schemas[generations[i].Version]})
	}
	for _, p := range pins {
		in := &a.Inputs[p.Input]
		in.Partitions = append(in.Partitions, p.Content(contents).Partition)
	}
}

// publishedPartition loads the revision that an appending task adds to; nil where there is none yet.
func publishedPartition(ctx context.Context, tx pgx.Tx, ref registry.Ref) (*storage.Partition, error) {
	revisions, err := registry.PublishedAt(ctx, tx, []registry.Ref{ref})
	if err != nil || len(revisions) == 0 {
		return nil, err
	}
	pin := registry.Pin{Version: ref.Version, Key: ref.Key, Revision: revisions[ref]}
	contents, err := registry.Contents(ctx, tx, []registry.Pin{pin})
	if err != nil {
		return nil, err
	}
	partition := contents[pin].Partition
	return &partition, nil
}
