package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/batch"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Completion is a worker's report on an attempt that did its work.
type Completion struct {
	Outcome operators.Outcome
	checks  []operators.CheckOutcome // of check tasks

	// Set for attempts outside of the server's process, and for commits on the way.
	requestHash string              // hash of the request; empty: the hash of the outcome counts
	emits       bool                // also commits events, which may number revisions
	extras      extras              // what else is committed
	mid         *midCommit          // the attempt goes on after it
	taskState   *protocol.TaskState // filled in with the task as it stands then; nil: nobody asks

	// Then makes the runner go on with a task that the completion claimed. If it is nil, none is claimed.
	Then func(Claimed)
}

// hash returns a hash by which a completion that is reported again is recognised.
func (c Completion) hash() (string, error) {
	if c.requestHash != "" {
		return c.requestHash, nil
	}

	body, err := json.Marshal(struct {
		Result  operators.Result
		Written []operators.Written
		Checks  []operators.CheckOutcome
	}{c.Outcome.Result, c.Outcome.Written, c.checks})
	if err != nil {
		return "", fmt.Errorf("hash completion: %w", err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(body)), nil
}

// Completing is a completion on its way into a batch.
type Completing struct {
	Claimed
	Completion
	hash string
	now  time.Time
	done chan struct{} // closed when err is the answer

	row   tasks.Row
	last  []int64 // the newest revision of each written output, before this completion
	split int64   // that of the marker, if its rows were split
	state unpublished
	notes []tasks.OutputNote

	acting *registry.Job // by which the job is run now, if its own row does not serve; nil: Job
	err    error

	asked askedAll    // tasks and timers to be made
	made  []uuid.UUID // their ids, in the order in which they were asked for
	leave bool        // whether it must leave its events to the router
	Next  *Claimed    // a task that the completion made ready, claimed for its runner

	cursors map[stale.Cursor]stale.CursorRow // the positions up to which it read the cursors that it follows

	slot    stateSlot         // the locked slot of the operator state that it writes
	columns [sha256.Size]byte // hash of its column lineage
}

// completeBatch is how many completions one transaction may commit; completeLanes is how many such transactions a
// process runs at once.
const (
	completeBatch = 250
	completeLanes = 2
)

// completeTimeout bounds one transaction of completions.
const completeTimeout = time.Minute

// CompleteAttempt commits the results of an attempt: outputs, lineage, operator state, results and the next events, all
// in the one transaction that checks the fence. A worker that lost its lease to a newer attempt changes nothing,
// however late or often it reports. Completions that come at the same time share a transaction; each is answered after
// its COMMIT.
func (d *Dispatcher) CompleteAttempt(ctx context.Context, t Claimed, c Completion, now time.Time) (err error) {
	_, end := d.tracing.step(ctx, "complete", &t)
	defer func() { end(err) }()

	// Objects are verified before the transaction: it must not wait for storage.
	for _, w := range c.Outcome.Written {
		if err := d.Storage.Verify(ctx, w.Manifest); err != nil {
			return fmt.Errorf("complete task %s: %w", t.TaskID, err)
		}
	}

	hash, err := c.hash()
	if err != nil {
		return err
	}

	x := &Completing{Claimed: t, Completion: c, hash: hash, now: now, done: make(chan struct{})}
	d.completions.Add(x)
	select {
	case <-x.done:
		err = x.err
	case <-ctx.Done():
		err = context.Cause(ctx) // the completion may be committed nevertheless
	}
	if pg.Away(err) {
		return fmt.Errorf("complete task %s: %w: %w", t.TaskID, errUnanswered, err)
	}
	if err != nil {
		return fmt.Errorf("complete task %s: %w", t.TaskID, err)
	}

	if x.Next != nil {
		c.Then(*x.Next)
	}
	return nil
}

// errUnanswered reports that the database went away, so that nobody knows whether a completion took effect. It is to be
// said again.
var errUnanswered = errors.New("the database did not answer")

// completeAll commits completions and answers each. Those of requests are split by org, because the database lets a
// request's transaction see one org only; those of runs in this process share transactions.
func (d *Dispatcher) completeAll(all []*Completing) {
	byOrg := map[uuid.UUID][]*Completing{}
	for _, x := range all {
		byOrg[x.requestOf()] = append(byOrg[x.requestOf()], x)
	}

	var orgs sync.WaitGroup
	for _, those := range byOrg {
		orgs.Go(func() {
			for _, some := range splitCompletions(those) {
				batch.Together(some, d.completeTogether, func(x *Completing, err error) { x.err = err })
				for _, x := range some {
					close(x.done)
				}
			}
		})
	}
	orgs.Wait()
}

// requestOf returns the org under whose row-level security the completion is committed, or Nil if the owner commits it:
// for a run in this process, and where rows of tables are written, which only the owner of the tables may do. The
// attempt of such a request was loaded under row-level security before.
func (x *Completing) requestOf() uuid.UUID {
	if x.requestHash == "" || x.writesTables() {
		return uuid.Nil
	}
	return x.Job.OrgID
}

// splitCompletions splits completions into parts for one transaction each. No part has two completions for one slot. A
// completion that is not plain is alone, and so is one that writes rows of tables, which may take long.
func splitCompletions(all []*Completing) (parts [][]*Completing) {
	var together []*Completing
	taken := map[tasks.Slot]bool{}
	for _, x := range all {
		slot := tasks.Slot{Origin: x.Job.Origin, Key: x.Slot}
		if taken[slot] || x.writesTables() || !x.isPlain() {
			parts = append(parts, []*Completing{x})
			continue
		}
		taken[slot] = true
		together = append(together, x)
	}

	if len(together) > 0 {
		parts = append([][]*Completing{together}, parts...)
	}
	return parts
}

// isPlain reports whether the completion commits only outputs, result, state and lineage.
func (x *Completing) isPlain() bool {
	return len(x.asks()) == 0 && x.extras == nil && x.mid == nil && !x.emits
}

// asks returns the tasks that the completion asks for. A build asks for none: it repeats work whose tasks were asked
// for before.
func (x *Completing) asks() []operators.EnqueuedTask {
	if x.kind == tasks.KindBuild {
		return nil
	}
	return x.Outcome.Tasks
}

func (x *Completing) writesTables() bool {
	return slices.ContainsFunc(x.Job.Outputs, func(o registry.OutputGeneration) bool {
		return o.Generation.Kind == storage.Postgres
	})
}

// completeTogether commits completions in one transaction. It returns the error of the transaction; the error of a
// single completion is stored with that completion.
func (d *Dispatcher) completeTogether(some []*Completing) error {
	ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
	defer cancel()
	defer d.Metrics.Batch("complete", time.Now(), len(some))

	var follows wakeup.Topics
	err := d.inCompletion(ctx, some[0].requestOf(), func(ctx context.Context, tx pgx.Tx) (err error) {
		if x := some[0]; x.isPlain() {
			follows, err = d.commitMany(ctx, tx, some)
		} else {
			follows, err = d.commitOne(ctx, tx, x)
		}
		if err != nil {
			return err
		}
		return d.fillStates(ctx, tx, some)
	})
	if x := some[0]; err != nil && len(some) == 1 && x.mid == nil && x.extras == nil && d.mayRoute(x) {
		x.leave = true // the cause may lie in the routing, which must not fail the completion
		return d.completeTogether(some)
	}
	if pg.Away(err) { // what it claimed, if it took effect, nobody runs; nor is anything claimed when it is said again
		for _, x := range some {
			d.unanswered.note(d.WorkerID, x.now)
			x.Then = nil
		}
	}
	if err != nil {
		return err
	}

	for _, x := range some {
		if len(x.Outcome.Columns) > 0 && x.err == nil {
			d.columns.Put(x.columns, true)
		}
	}
	if d.Building.Load() {
		follows = append(follows, wakeup.Build)
	}
	d.Wakeups.Send(follows...)
	return nil
}

// inCompletion runs fn in a transaction of requests of an org, or of the owner where org is Nil.
func (d *Dispatcher) inCompletion(
	ctx context.Context, org uuid.UUID, fn func(ctx context.Context, tx pgx.Tx) error,
) error {
	if org == uuid.Nil {
		return pg.InTx(ctx, d.Pool, fn)
	}
	return pg.InOrgTxByKey(ctx, d.Requests, org, fn)
}

// Progressed returns the topics to wake after tasks have ended: claimers have room, and a build may be able to go on.
func (d *Dispatcher) Progressed() wakeup.Topics {
	if d.Building.Load() {
		return wakeup.Topics{wakeup.Claim, wakeup.Build}
	}
	return wakeup.Topics{wakeup.Claim}
}
