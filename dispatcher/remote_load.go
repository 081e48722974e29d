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
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/worker/protocol"
)

// loading is an attempt on its way into a batch: calls that come at the same time load theirs together.
type loading struct {
	Given
	done chan struct{} // closed when err is the answer
	err  error

	read     bool // there is a record of what it was given
	record   givenRecord
	payload  []byte
	parts    []string // partitions of its task
	timeout  *time.Time
	lastText []byte
	text     []byte
	trace    string
}

// loadBatch is how many attempts one transaction may load, loadLanes how many such transactions are under way at once in a
// process.
const (
	loadBatch   = 250
	loadLanes   = 2
	loadTimeout = 30 * time.Second
)

// reload loads an attempt, running or not, whose fence need not hold any more.
func (d *Dispatcher) reload(ctx context.Context, c authz.Capability, f protocol.Fence) (Given, error) {
	if err := c.Covers(f); err != nil {
		return Given{}, err
	}
	x := &loading{Given: Given{Fence: Fence(f), OrgID: c.OrgID}, done: make(chan struct{})}
	d.loads.Add(x)
	var err error
	select {
	case <-x.done:
		err = x.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return Given{}, fmt.Errorf("attempt %d of task %s: %w", f.Attempt, f.TaskID, err)
	}
	return x.Given, nil
}

// loadAll loads a batch, each org's by itself: no transaction sees more than one.
func (d *Dispatcher) loadAll(batch []*loading) {
	byOrg := map[uuid.UUID][]*loading{}
	for _, x := range batch {
		byOrg[x.OrgID] = append(byOrg[x.OrgID], x)
	}
	var all sync.WaitGroup
	for org, some := range byOrg {
		all.Go(func() {
			d.loadTogether(org, some)
			for _, x := range some {
				close(x.done)
			}
		})
	}
	all.Wait()
}

// loadTogether loads attempts in one transaction. If that fails, for which one of them may be the cause, each has one of its
// own.
func (d *Dispatcher) loadTogether(org uuid.UUID, batch []*loading) {
	ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
	defer cancel()
	err := pg.InOrgTx(ctx, d.Requests, org, func(ctx context.Context, tx pgx.Tx) error { return d.loadTx(ctx, tx, batch) })
	switch {
	case err == nil:
	case len(batch) == 1:
		batch[0].err = err
	default:
		for _, x := range batch {
			d.loadTogether(org, []*loading{x})
		}
	}
}

// loadTx reads what the claims gave to the attempts that fences name. Of a newer attempt nothing is read but the task's row.
// What is wrong with one of them it is told itself; an error spoils all.
func (d *Dispatcher) loadTx(ctx context.Context, tx pgx.Tx, batch []*loading) error {
	tasks := make([]uuid.UUID, len(batch))
	for i, x := range batch {
		tasks[i] = x.TaskID
	}
	var b pg.Batch
	rows := queueReadTasks(&b, tasks)
	queueGiven(&b, batch)
	if err := b.Send(ctx, tx); err != nil {
		return err
	}
	var (
		open []*loading
		pins []registry.Pin
		jobs []uuid.UUID
	)
	for _, x := range batch {
		if x.err = x.decode(rows); x.err == nil {
			open, pins, jobs = append(open, x), append(pins, x.row.pins...), append(jobs, x.record.Job)
		}
	}
	if len(open) == 0 {
		return nil
	}
	byID, err := d.Registry.Jobs(ctx, tx, dedupeIDs(jobs))
	if err != nil {
		return err
	}
	contents, err := registry.Contents(ctx, tx, pins)
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

// queueGiven asks what was recorded of attempts.
func queueGiven(b *pg.Batch, batch []*loading) {
	type attempt struct {
		task   uuid.UUID
		number int
	}
	var (
		tasks    = make([]uuid.UUID, len(batch))
		attempts = make([]int, len(batch))
		of       = map[attempt][]*loading{} // calls of one attempt may come at the same time
		at       attempt
		r        loading
	)
	for i, x := range batch {
		at := attempt{x.TaskID, x.Attempt}
		tasks[i], attempts[i], of[at] = x.TaskID, x.Attempt, append(of[at], x)
		x.read = false
	}
	b.Query(fmt.Sprintf("load %d attempts", len(batch)), []any{&at.task, &at.number, &r.text, &r.lastText, &r.parts, &r.payload, &r.timeout, &r.trace}, func() error {
		for _, x := range of[at] {
			x.read, x.text, x.lastText, x.parts, x.payload, x.timeout, x.trace = true, r.text, r.lastText, r.parts, r.payload, r.timeout, r.trace
		}
		r = loading{} // what was read is theirs now
		return nil
	}, `
		SELECT a.task_id, a.attempt, a.given, coalesce(a.last_call, '{}'), coalesce(t.partitions, '{}'), t.payload, t.timeout_at,
			coalesce(t.metadata->>'traceparent', '')
		FROM unnest($1::uuid[], $2::int[]) AS w(task_id, attempt)
		CROSS JOIN LATERAL (SELECT * FROM task_attempts a WHERE a.task_id = w.task_id AND a.attempt = w.attempt LIMIT 1) AS a
		CROSS JOIN LATERAL (SELECT * FROM tasks t WHERE t.id = w.task_id LIMIT 1) AS t`, tasks, attempts)
}

// decode takes what was read, or says why the attempt is not what it was.
func (x *loading) decode(rows map[uuid.UUID]taskRow) (err error) {
	if x.row, err = rowOf(rows, x.TaskID); err != nil {
		return err
	}
	x.OrgID, x.Runtime = x.row.org, x.row.runtime
	if !x.row.holds(x.Fence) {
		return x.row.fencedOff(x.Fence)
	}
	if !x.read || len(x.text) == 0 {
		return fault.New(fault.Conflict, "attempt %d of task %s runs in a server's own process", x.Attempt, x.TaskID)
	}
	if err := json.Unmarshal(x.text, &x.record); err != nil {
		return err
	}
	return json.Unmarshal(x.lastText, &x.lastCall)
}

// assignAgain makes the assignment of a claim anew: from what the claim recorded, and what was pinned. What an append adds
// to is what is published now: rows are sealed on top of that at the completion.
func (d *Dispatcher) assignAgain(ctx context.Context, tx pgx.Tx, x *loading, job *registry.Job, contents map[registry.Pin]registry.Content) (err error) {
	x.Job = job
	x.task = claimed{Fence: x.Fence, kind: x.row.kind, runtime: x.row.runtime, job: job, slot: x.row.slot, trace: x.trace,
		lease: cmp.Or(job.Def.HeartbeatTimeout, d.Lease)}
	if x.timeout != nil {
		x.task.timeoutAt = *x.timeout
	}
	again := given{generations: map[uuid.UUID][]storage.Generation{job.ID: x.record.Generations}, contents: contents,
		states: map[uuid.UUID]json.RawMessage{}, cursor: x.record.Cursor}
	c := claimable{Task: x.TaskID, Org: x.OrgID, Origin: x.row.job, Slot: x.row.slot, Kind: x.row.kind, Attempt: x.Attempt,
		Partitions: x.parts, Payload: x.payload, job: job, pins: x.row.pins}
	x.task.assignment, _, err = d.assign(ctx, tx, x.task, c, again)
	x.Assignment = x.task.assignment
	return err
}
