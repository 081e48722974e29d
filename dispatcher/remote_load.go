package dispatcher

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/batch"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker/protocol"
)

// loading is an attempt on its way into a batch: calls that come at the same time load their attempts together.
type loading struct {
	RemoteAttempt
	done chan struct{} // closed when err is the answer
	err  error

	read   attemptRow
	record claimRecord
}

// attemptRow holds the stored columns of an attempt and its task.
type attemptRow struct {
	claim    []byte // a claimRecord; empty: none was recorded
	lastCall []byte
	parts    []string // partitions of its task
	payload  []byte
	metadata []byte
	timeout  *time.Time
	trace    string
	revoked  bool // the token of its worker
}

// attemptOf names an attempt.
type attemptOf struct {
	task   uuid.UUID
	number int
}

// loadBatch is how many attempts one transaction may load; loadLanes is how many such transactions a process runs at
// once.
const (
	loadBatch   = 250
	loadLanes   = 2
	loadTimeout = 30 * time.Second
)

// loadAttempt loads an attempt that is the newest of its task, whether it still runs or not.
func (d *Dispatcher) loadAttempt(ctx context.Context, c authz.Capability, f protocol.Fence) (RemoteAttempt, error) {
	if err := c.Covers(f); err != nil {
		return RemoteAttempt{}, err
	}

	x := &loading{RemoteAttempt: RemoteAttempt{Fence: tasks.Fence(f), OrgID: c.OrgID}, done: make(chan struct{})}
	d.loads.Add(x)
	var err error
	select {
	case <-x.done:
		err = x.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return RemoteAttempt{}, fmt.Errorf("attempt %d of task %s: %w", f.Attempt, f.TaskID, err)
	}
	return x.RemoteAttempt, nil
}

// loadAll loads attempts, those of each org in transactions of their own: no transaction sees more than one org.
func (d *Dispatcher) loadAll(all []*loading) {
	byOrg := map[uuid.UUID][]*loading{}
	for _, x := range all {
		byOrg[x.OrgID] = append(byOrg[x.OrgID], x)
	}

	var orgs sync.WaitGroup
	for org, some := range byOrg {
		orgs.Go(func() {
			batch.Together(some, func(some []*loading) error { return d.loadTogether(org, some) },
				func(x *loading, err error) { x.err = err })
			for _, x := range some {
				close(x.done)
			}
		})
	}
	orgs.Wait()
}

// loadTogether loads attempts of one org in one transaction.
func (d *Dispatcher) loadTogether(org uuid.UUID, some []*loading) error {
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	return pg.InOrgTxByKey(ctx, d.Requests, org, func(ctx context.Context, tx pgx.Tx) error {
		return d.loadTx(ctx, tx, some)
	})
}

// loadTx loads attempts as their claims assigned them. For an attempt that is not the newest of its task it reads only
// the task's row. The error of a single attempt is stored with that attempt; a returned error is that of all.
func (d *Dispatcher) loadTx(ctx context.Context, tx pgx.Tx, some []*loading) error {
	list := make([]uuid.UUID, len(some))
	for i, x := range some {
		list[i] = x.TaskID
	}

	var b pg.Batch
	tasksRead, attemptsRead := tasks.ReadTasks(&b, list), readAttempts(&b, some)
	rows, err := tasksRead.Get(ctx, tx)
	if err != nil {
		return err
	}
	attempts, err := attemptsRead.Get(ctx, tx)
	if err != nil {
		return err
	}

	var (
		open []*loading
		pins []registry.Pin
		jobs []uuid.UUID
	)
	for _, x := range some {
		x.read = attempts[attemptOf{x.TaskID, x.Attempt}]
		if x.err = x.decode(rows); x.err == nil {
			open, pins, jobs = append(open, x), append(pins, x.row.Pins...), append(jobs, x.record.Job)
		}
	}
	if len(open) == 0 {
		return nil
	}

	byID, err := d.Registry.Jobs(ctx, tx, tasks.SortedIDs(jobs))
	if err != nil {
		return err
	}
	contents, err := registry.Contents(new(pg.Batch), pins).Get(ctx, tx)
	if err != nil {
		return err
	}

	for _, x := range open {
		if err := d.assignAgain(ctx, tx, x, byID[x.record.Job], contents); err != nil {
			return err
		}
	}
	return nil
}

// readAttempts returns the stored rows of attempts. An attempt may occur twice: its calls may come at the same time.
func readAttempts(b *pg.Batch, some []*loading) *pg.Later[map[attemptOf]attemptRow] {
	var (
		tasks    = make([]uuid.UUID, len(some))
		attempts = make([]int, len(some))
		found    = make(map[attemptOf]attemptRow, len(some))
		at       attemptOf
		r        attemptRow
	)
	for i, x := range some {
		tasks[i], attempts[i] = x.TaskID, x.Attempt
	}

	targets := []any{&at.task, &at.number, &r.claim, &r.lastCall, &r.parts, &r.payload, &r.metadata, &r.timeout,
		&r.trace, &r.revoked}
	b.Query(fmt.Sprintf("load %d attempts", len(some)), targets, func() error {
		found[at] = r
		r = attemptRow{} // the next row must not be scanned into its slices
		return nil
	}, `
		SELECT a.task_id, a.attempt, a.given, coalesce(a.last_call, '{}'), coalesce(t.partitions, '{}'), t.payload,
			t.metadata, t.timeout_at, coalesce(t.metadata->>'traceparent', ''),
			coalesce(worker_token_revoked(a.given->>'worker'), false)
		FROM unnest($1::uuid[], $2::int[]) AS w(task_id, attempt)
		CROSS JOIN LATERAL (
			SELECT * FROM task_attempts a WHERE a.task_id = w.task_id AND a.attempt = w.attempt LIMIT 1) AS a
		CROSS JOIN LATERAL (SELECT * FROM tasks t WHERE t.id = w.task_id LIMIT 1) AS t`, tasks, attempts)
	return pg.Answer(b, &found)
}

// decode takes over the rows that were read. It returns an error if the attempt's fence does not hold any more.
func (x *loading) decode(rows map[uuid.UUID]tasks.Row) (err error) {
	if x.row, err = tasks.RowOf(rows, x.TaskID); err != nil {
		return err
	}
	x.OrgID, x.Runtime = x.row.Org, x.row.Runtime
	if x.read.revoked {
		return fault.New(fault.Unauthenticated,
			"the token of the worker that claimed attempt %d of task %s was revoked", x.Attempt, x.TaskID).
			WithHint("stop: the task goes to a worker with a valid token")
	}
	if !x.row.Holds(x.Fence) {
		return x.row.FencedOff(x.Fence)
	}

	if len(x.read.claim) == 0 {
		return fault.New(fault.Conflict, "attempt %d of task %s runs in a server's own process", x.Attempt, x.TaskID)
	}
	if err := json.Unmarshal(x.read.claim, &x.record); err != nil {
		return err
	}
	return json.Unmarshal(x.read.lastCall, &x.lastCall)
}

// assignAgain makes the assignment of a claim anew, from the claim's record and the pinned inputs. The base of an
// append is the revision that is published now: the completion seals the rows on top of that.
func (d *Dispatcher) assignAgain(
	ctx context.Context, tx pgx.Tx, x *loading, job *registry.Job, contents map[registry.Pin]registry.Content,
) (err error) {
	x.Job = job
	x.Task = Claimed{Fence: x.Fence, kind: x.row.Kind, runtime: x.row.Runtime, Job: job, Slot: x.row.Slot,
		trace: x.read.trace, lease: cmp.Or(job.Def.HeartbeatTimeout, d.Lease)}
	if x.read.timeout != nil {
		x.Task.TimeoutAt = *x.read.timeout
	}

	inputs := claimInputs{generations: map[uuid.UUID][]registry.InputGeneration{job.ID: x.record.Generations},
		contents: contents, cursor: x.record.Cursor,
		readings: map[uuid.UUID]json.RawMessage{job.ID: x.record.Reading}}
	c := tasks.Taken{Task: x.TaskID, Org: x.OrgID, Origin: x.row.Origin, Slot: x.row.Slot, Kind: x.row.Kind,
		Attempt: x.Attempt, Partitions: x.read.parts, Payload: x.read.payload, Metadata: x.read.metadata, Job: job,
		Pins: x.row.Pins}
	if inputs.columns, err = columnsOfUnread(ctx, tx, []tasks.Taken{c}, inputs.generations, contents); err != nil {
		return err
	}
	x.Task.Assignment, _, err = d.assign(ctx, tx, x.Task, c, inputs)
	x.Assignment, x.standing = x.Task.Assignment, x.record.Standing
	return err
}
