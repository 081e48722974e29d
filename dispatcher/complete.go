package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/worker/protocol"
)

// completion is what a worker reports of an attempt that did its work.
type completion struct {
	outcome operators.Outcome
	checks  []operators.CheckOutcome // of check tasks

	// Of attempts outside of the server's process.
	said  string              // hash of the request; empty: of what it came to
	emits bool                // also commits events, which may number revisions
	also  extras              // what else is committed
	mid   *midCommit          // the attempt goes on after it
	tell  *protocol.TaskState // filled in with how the task stands then; nil: nobody asks

	// then has its runner go on with a task that the completion made; nil: it goes on with none.
	then func(claimed)
}

// hash recognises a completion that is reported again.
func (c completion) hash() (string, error) {
	if c.said != "" {
		return c.said, nil
	}
	body, err := json.Marshal(struct {
		Result  operators.Result
		Written []operators.Written
		Checks  []operators.CheckOutcome
	}{c.outcome.Result, c.outcome.Written, c.checks})
	if err != nil {
		return "", fmt.Errorf("hash completion: %w", err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(body)), nil
}

// completing is a completion on its way into a batch.
type completing struct {
	claimed
	completion
	hash string
	now  time.Time
	done chan struct{} // closed when err is the answer

	row   taskRow
	last  []int64 // of each written output: the newest revision there is
	state string  // why it publishes nothing
	notes []outputNote
	err   error

	asked  []askedOf   // tasks to be made
	made   []uuid.UUID // those tasks, in the order in which they were asked for
	routes bool        // it routes its events itself
	leave  bool        // it is not to
	next   *claimed    // of what that made: claimed for its runner

	cursors map[consumed]cursorRow // up to where it has read the cursors that it follows

	columns [sha256.Size]byte // hash of its column lineage
}

// completeBatch is how many completions one transaction may commit, completeLanes how many such transactions are under
// way at once in a process.
const (
	completeBatch = 250
	completeLanes = 2
)

// completeTimeout bounds one transaction of completions.
const completeTimeout = time.Minute

// complete commits what an attempt made: outputs, lineage, operator state, results and the next events, all in the one
// transaction that checks the fence. A worker that lost its lease to a newer attempt changes nothing, however late or
// often it reports. Completions that come at the same time share a transaction; each is answered after its COMMIT.
func (d *Dispatcher) complete(ctx context.Context, t claimed, c completion, now time.Time) (err error) {
	_, told := d.tracing.step(ctx, "complete", &t)
	defer func() { told(err) }()
	// Objects are looked at before the transaction: it must not wait for storage.
	for _, w := range c.outcome.Written {
		if err := d.Storage.Verify(ctx, w.Manifest); err != nil {
			return fmt.Errorf("complete task %s: %w", t.TaskID, err)
		}
	}
	hash, err := c.hash()
	if err != nil {
		return err
	}
	x := &completing{claimed: t, completion: c, hash: hash, now: now, done: make(chan struct{})}
	d.completions.Add(x)
	select {
	case <-x.done:
		err = x.err
	case <-ctx.Done():
		err = context.Cause(ctx) // it may be committed all the same
	}
	if err != nil { // what was claimed with a completion that was not waited for comes back when its lease runs out
		return fmt.Errorf("complete task %s: %w", t.TaskID, err)
	}
	if x.next != nil {
		c.then(*x.next)
	}
	return nil
}

// completeAll commits a batch and answers each of its completions.
func (d *Dispatcher) completeAll(batch []*completing) {
	for _, some := range apart(batch) {
		d.completeTogether(some)
		for _, x := range some {
			close(x.done)
		}
	}
}

// apart splits a batch so that no part has two completions for one slot, and those that write rows of tables, which may
// take long, are each by themselves.
func apart(batch []*completing) (parts [][]*completing) {
	var together []*completing
	taken := map[slotOf]bool{}
	for _, x := range batch {
		slot := slotOf{x.job.Origin, x.slot}
		if taken[slot] || x.writesTables() || len(x.asks()) > 0 || x.also != nil || x.mid != nil {
			parts = append(parts, []*completing{x})
			continue
		}
		taken[slot] = true
		together = append(together, x)
	}
	if len(together) > 0 {
		parts = append([][]*completing{together}, parts...)
	}
	return parts
}

// asks are the tasks that it asks for. A build makes again what was made: what that asked for has been asked for.
func (x *completing) asks() []operators.EnqueuedTask {
	if x.kind == "build" {
		return nil
	}
	return x.outcome.Tasks
}

func (x *completing) writesTables() bool {
	return slices.ContainsFunc(x.job.Outputs, func(o registry.OutputGeneration) bool { return o.Generation.Kind == storage.Postgres })
}

// completeTogether commits completions in one transaction. If that fails, for which one of them may be the cause, each
// has one of its own.
func (d *Dispatcher) completeTogether(batch []*completing) {
	ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
	defer cancel()
	defer d.metrics.batch("complete", time.Now(), len(batch))
	var follows topics
	err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		if follows, err = d.completeTx(ctx, tx, batch); err != nil {
			return err
		}
		return d.tellStates(ctx, tx, batch)
	})
	switch {
	case err == nil:
		for _, x := range batch {
			if len(x.outcome.Columns) > 0 && x.err == nil {
				d.columns.Store(x.columns, true)
			}
		}
		if d.building.Load() {
			follows = append(follows, topicBuild)
		}
		d.wake.send(follows...)
	case len(batch) == 1 && batch[0].routes && !batch[0].leave:
		batch[0].leave = true // that events cannot be routed is not the completion's fault
		d.completeTogether(batch)
	case len(batch) == 1:
		batch[0].err = err
	default:
		for _, x := range batch {
			d.completeTogether([]*completing{x})
		}
	}
}

// completeTx writes a batch; an error spoils all of it, those of single completions are told by them.
func (d *Dispatcher) completeTx(ctx context.Context, tx pgx.Tx, batch []*completing) (follows topics, err error) {
	now := batch[0].now
	keys, fences := make([]string, len(batch)), make([]uuid.UUID, len(batch))
	for i, x := range batch {
		keys[i], fences[i], x.next = x.job.LockKey(), x.TaskID, nil // next is of a try that failed
		if x.now.After(now) {
			now = x.now
		}
	}
	if x := batch[0]; x.emits { // it may number revisions that are other tasks', and is by itself
		if err := registry.LockDAG(ctx, tx, x.job.OrgID, x.job.DAG); err != nil {
			return nil, err
		}
	}
	if asks := batch[0].asks(); len(asks) > 0 { // it is alone
		x := batch[0]
		jobs, err := d.lockAsked(ctx, tx, x.job, asks)
		if err == nil {
			x.asked, err = d.resolveAsked(jobs, asks, x.trace)
		}
		if err != nil {
			return nil, err
		}
	}
	var b pg.Batch
	registry.QueueLockDAGsShared(&b, keys)
	rows := queueLockTasks(&b, fences)
	last := queueLastMade(&b, batch)
	next := d.queueAtOnce(&b, batch)
	if err := b.Send(ctx, tx); err != nil {
		return nil, err
	}
	var open []*completing
	for _, x := range batch {
		row, err := rowOf(rows, x.TaskID)
		repeated := false
		if err == nil {
			if x.mid != nil {
				err = mayCommit(ctx, tx, row, x.Fence, x.now)
			} else {
				repeated, err = row.mayComplete(x.Fence, x.hash)
			}
		}
		x.row, x.err, x.state, x.notes = row, err, "", nil
		if err == nil && !repeated {
			open = append(open, x)
		}
	}
	if open, err = d.compareBases(ctx, tx, open, last); err != nil || len(open) == 0 {
		return nil, err
	}
	if x := open[0]; x.mid != nil && x.state != "" && !x.outcome.Unchanged {
		x.err = x.row.stands(fault.New(fault.Conflict, "task %s: %s", x.TaskID, x.state))
		return nil, nil
	}
	events, follow, err := d.commitOutputs(ctx, tx, &b, open, now)
	if err != nil {
		return nil, err
	}
	for _, x := range open {
		if x.check == nil {
			continue
		}
		if err := b.Send(ctx, tx); err != nil {
			return nil, err
		}
		e, err := d.decideHeld(ctx, tx, x.claimed, x.checks, now)
		if err != nil {
			return nil, err
		}
		if e != nil {
			e.trace = d.tracing.published(ctx, x.claimed, e.Key, e.Revision)
			events = append(events, *e)
		}
	}
	if x := open[0]; len(x.asked) > 0 && !strings.HasPrefix(x.state, "superseded") {
		if err := b.Send(ctx, tx); err != nil {
			return nil, err
		}
		if err := lockLimitsOf(ctx, tx, x.row, x.asked); err != nil {
			return nil, err
		}
		if x.made, err = d.enqueueAsked(ctx, tx, x.asked, now); err != nil {
			return nil, err
		}
		follows = append(follows, topicClaim)
	}
	routes, err := next.queueLocks(ctx, tx, d, &b, events)
	if err != nil {
		return nil, err
	}
	queueEvents(&b, events, now, !routes)
	if err := d.recordRuns(&b, open); err != nil {
		return nil, err
	}
	again := false
	if x := open[0]; x.mid == nil { // what it reads it has read when it ends
		if again, err = advanceCursors(ctx, tx, open, now); err != nil {
			return nil, err
		}
	}
	if len(events) > 0 && !routes || again {
		follows = append(follows, topicRoute)
	}
	if len(follow) > 0 { // their slots are their own, so no origin lock is needed
		if err := b.Send(ctx, tx); err != nil {
			return nil, err
		}
		made, err := d.create(ctx, tx, follow, now)
		if err != nil {
			return nil, err
		}
		follows = append(follows, made.topics()...)
	}
	if x := open[0]; x.also != nil {
		if err := b.Send(ctx, tx); err != nil {
			return nil, err
		}
		told, err := x.also(ctx, tx, x, now)
		if err != nil {
			return nil, err
		}
		follows = append(follows, told...)
	}
	if x := open[0]; x.mid != nil {
		if err := b.Send(ctx, tx); err != nil {
			return nil, err
		}
		return follows, noteCommit(ctx, tx, x)
	}
	done := make([]ended, len(open))
	for i, x := range open {
		done[i] = ended{x.row, ending{status: "Completed", state: x.state, hash: x.hash, outputs: x.notes, spare: !x.publishes(), actor: "WORKER"}}
	}
	if !routes {
		let := &nextClaim{}
		if err := d.finishWith(context.WithValue(ctx, nextClaimKey{}, let), tx, &b, done, now); err != nil {
			return follows, err
		}
		jobs := make([]*registry.Job, len(open))
		for i, x := range open {
			jobs[i] = x.job
		}
		return follows, let.give(ctx, tx, d, open, jobs, now)
	}
	if err := d.finishWith(ctx, tx, &b, done, now); err != nil {
		return follows, err
	}
	made, err := next.route(ctx, tx, d, events, now)
	return append(follows, made...), err
}
