package dispatcher

import (
	"context"
	"fmt"
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
	job        *registry.Job
	slot       string
	lease      time.Duration
	timeoutAt  time.Time
	assignment operators.Assignment
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
}

// claim takes up to max ready tasks of a runtime, pins what each is to read, and leases them to the worker. A task whose
// output is up to date by now, or whose origin nobody uses any more, is canceled instead: it has nothing to do.
func (d *Dispatcher) claim(ctx context.Context, runtime, worker string, max int, now time.Time) ([]claimed, error) {
	var (
		out     []claimed
		dropped bool
	)
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		out, dropped = nil, false
		taken, err := takeReady(ctx, tx, runtime, max)
		if err != nil || len(taken) == 0 {
			return err
		}
		origins := make([]uuid.UUID, len(taken))
		for i, c := range taken {
			origins[i] = c.Origin
		}
		acting, err := d.Registry.ActingJobs(ctx, tx, dedupeIDs(origins))
		if err != nil {
			return err
		}
		pins, obsolete, err := d.pin(ctx, tx, taken, acting)
		if err != nil {
			return err
		}
		for i, c := range taken {
			if reason, ok := obsolete[c.Task]; ok {
				dropped = true
				if err := d.cancelClaimed(ctx, tx, c, reason, now); err != nil {
					return err
				}
				continue
			}
			t, err := d.lease(ctx, tx, c, acting[c.Origin].Job, pins[i], worker, now)
			if err != nil {
				return err
			}
			out = append(out, t)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("claim tasks of runtime %s: %w", runtime, err)
	}
	if dropped {
		d.wake.send(topicClaim, topicBuild)
	}
	return out, nil
}

// takeReady removes rows from the claimable set. The CTE is materialised: without that the plan may lock and delete more
// rows than the limit says. It relies on idx_ready_claim.
func takeReady(ctx context.Context, tx pgx.Tx, runtime string, max int) ([]claimable, error) {
	rows, err := tx.Query(ctx, `
		WITH picked AS MATERIALIZED (
			SELECT task_id FROM ready WHERE runtime = $1
			ORDER BY class, priority DESC, task_id LIMIT $2
			FOR UPDATE SKIP LOCKED),
		taken AS (DELETE FROM ready r USING picked p WHERE r.task_id = p.task_id RETURNING r.task_id, r.class, r.priority)
		SELECT t.id, t.org_id, t.job_id, t.slot, t.kind, t.attempt, t.started_at IS NOT NULL, coalesce(t.partitions, '{}'), t.payload, t.limits
		FROM taken k JOIN tasks t ON t.id = k.task_id
		ORDER BY k.class, k.priority DESC, t.id`, runtime, max)
	if err != nil {
		return nil, fmt.Errorf("take ready tasks: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[claimable])
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

// cancelClaimed ends a task that was taken from the ready set and has nothing to do. Should its work be wanted again, the
// row is taken up again.
func (d *Dispatcher) cancelClaimed(ctx context.Context, tx pgx.Tx, c claimable, reason string, now time.Time) error {
	_, err := tx.Exec(ctx, `
		WITH done AS (
			UPDATE tasks SET status = 'Canceled', reason = 'superseded', state = $3, completed_at = $4, version = version + 1
			WHERE id = $1 AND org_id = $2 AND status = 'Queued' RETURNING id, org_id, attempt)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, at)
		SELECT uuid_v7(), org_id, id, attempt, 'Queued', 'Canceled', 'SYSTEM', $3, $4 FROM done`, c.Task, c.Org, reason, now)
	if err != nil {
		return fmt.Errorf("cancel task %s: %w", c.Task, err)
	}
	return release(ctx, tx, c.Org, c.Limits, now)
}

// lease makes the task Running under a new token, and records where the attempt may write before anything is written.
func (d *Dispatcher) lease(ctx context.Context, tx pgx.Tx, c claimable, job *registry.Job, pins []registry.Pin, worker string, now time.Time) (claimed, error) {
	t := claimed{kind: c.Kind, job: job, slot: c.Slot, lease: job.Def.HeartbeatTimeout,
		Fence: Fence{TaskID: c.Task, Attempt: c.Attempt, LeaseToken: uuid.New()}}
	if c.Started {
		t.Attempt++ // a lost lease, a failure or a hand-back lies between
	}
	if t.lease <= 0 {
		t.lease = d.Lease
	}
	timeout := job.Def.Timeout
	if timeout <= 0 {
		timeout = 24 * time.Hour
	}
	t.timeoutAt = now.Add(timeout)
	var err error
	if t.assignment, t.check, err = d.assign(ctx, tx, t, c, pins); err != nil {
		return t, err
	}
	staging := make([]string, len(t.assignment.Outputs))
	for i, o := range t.assignment.Outputs {
		staging[i] = d.Storage.Location(storage.Attempt{Generation: o.Generation, Partition: partitionOf(t.assignment),
			Task: c.Task, Number: t.Attempt, Output: o.Index})
	}
	_, err = tx.Exec(ctx, `
		WITH leased AS (
			INSERT INTO leases (task_id, org_id, job_id, slot, attempt, lease_token, worker_id, lease_seconds, expires_at, timeout_at, heartbeat_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
			RETURNING task_id),
		started AS (
			UPDATE tasks SET status = 'Running', attempt = $5, worker_id = $7, lease_token = $6, lease_expires_at = $9,
				last_heartbeat = $11, timeout_at = $10, started_at = $11, completed_at = NULL, next_retry_at = NULL,
				input_versions = $12, progress = 0, state = NULL, version = version + 1
			FROM leased WHERE tasks.id = leased.task_id
			RETURNING tasks.id),
		tried AS (
			INSERT INTO task_attempts (task_id, attempt, org_id, worker_id, started_at, staging)
			SELECT id, $5, $2, $7, $11, $13 FROM started)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, at)
		SELECT uuid_v7(), $2, id, $5, 'Queued', 'Running', $7, $11 FROM started`,
		c.Task, c.Org, c.Origin, c.Slot, t.Attempt, t.LeaseToken, worker, int(t.lease.Seconds()), now.Add(t.lease), t.timeoutAt, now,
		pins, staging)
	if err != nil {
		return t, fmt.Errorf("lease task %s: %w", c.Task, err)
	}
	return t, nil
}

func partitionOf(a operators.Assignment) string {
	if a.Partition == nil {
		return dag.WholeKey
	}
	return a.Partition.Key
}

// assign gathers what the run needs: config, pinned inputs with their committed files, outputs at the generations of
// the job's version, operator state.
func (d *Dispatcher) assign(ctx context.Context, tx pgx.Tx, t claimed, c claimable, pins []registry.Pin) (operators.Assignment, *revisionCheck, error) {
	job := t.job
	a := operators.Assignment{TaskID: t.TaskID, Attempt: t.Attempt, OrgID: job.OrgID, OrgSlug: job.OrgSlug, DAG: job.DAG, Job: job.Name,
		Operator: job.Def.Operator, OperatorVersion: job.Def.OperatorVersion, Config: job.Def.Config, Payload: c.Payload,
		PartitionBy: job.Def.PartitionBy, Roots: d.Roots(job.OrgSlug, job.DAG), TimeoutAt: t.timeoutAt}
	if c.Kind == "check" {
		check, err := d.assignCheck(ctx, tx, &a, job, c)
		return a, check, err
	}
	if len(c.Partitions) > 0 {
		if err := setPartition(&a, job, c.Partitions[0]); err != nil {
			return a, nil, err
		}
	}
	if err := d.assignInputs(ctx, tx, &a, job, pins); err != nil {
		return a, nil, err
	}
	for i, o := range job.Outputs {
		out := operators.AssignedOutput{Index: i, Name: o.Name, Generation: o.Generation, UpdateStrategy: job.Def.UpdateStrategy}
		if job.Def.UpdateStrategy == dag.Append {
			base, err := publishedPartition(ctx, tx, registry.Ref{Version: o.Generation.Version, Key: partitionOf(a)})
			if err != nil {
				return a, nil, err
			}
			out.Base = base
		}
		a.Outputs = append(a.Outputs, out)
	}
	err := tx.QueryRow(ctx, `SELECT state FROM operator_state WHERE org_id = $1 AND job_id = $2 AND state_key = 'default'`,
		job.OrgID, job.Origin).Scan((*[]byte)(&a.State))
	if err != nil && err != pgx.ErrNoRows {
		return a, nil, fmt.Errorf("operator state of %s: %w", job.Address(), err)
	}
	return a, nil, nil
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

func (d *Dispatcher) assignInputs(ctx context.Context, tx pgx.Tx, a *operators.Assignment, job *registry.Job, pins []registry.Pin) error {
	generations, err := d.Registry.InputGenerations(ctx, tx, job)
	if err != nil {
		return err
	}
	files, schemas, err := registry.Files(ctx, tx, pins)
	if err != nil {
		return err
	}
	for i, in := range job.Inputs {
		a.Inputs = append(a.Inputs, operators.AssignedInput{Index: i, As: in.Def.As, Map: in.Def.Map.Kind, Where: in.Def.Where,
			PartitionBy: in.PartitionBy, Generation: generations[i], Schema: schemas[generations[i].Version]})
	}
	for _, p := range pins {
		in := &a.Inputs[p.Input]
		in.Partitions = append(in.Partitions, files[registry.Ref{Version: p.Version, Key: p.Key}])
	}
	return nil
}

// publishedPartition loads the revision that an appending task adds to; nil where there is none yet.
func publishedPartition(ctx context.Context, tx pgx.Tx, ref registry.Ref) (*storage.Partition, error) {
	revisions, err := registry.PublishedAt(ctx, tx, []registry.Ref{ref})
	if err != nil || len(revisions) == 0 {
		return nil, err
	}
	files, _, err := registry.Files(ctx, tx, []registry.Pin{{Version: ref.Version, Key: ref.Key, Revision: revisions[ref]}})
	if err != nil {
		return nil, err
	}
	p := files[ref]
	return &p, nil
}
