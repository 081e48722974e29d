package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// commit is a transaction of completions that goes through stages. Most stages add statements to the batch, which go to
// the server together with those of a later stage. A stage that must see the effects of earlier ones sends the batch
// first.
type commit struct {
	d     *Dispatcher
	tx    pgx.Tx
	batch *pg.Batch
	now   time.Time     // the latest of the completions
	all   []*Completing // no two of one slot
	open  []*Completing // those that go on

	rows *pg.Later[map[uuid.UUID]tasks.Row] // locked
	last *pg.Later[map[registry.Ref]registry.Made]
	own  *ownRouting // routes the events in this transaction if it can; nil: the router routes them

	// The rows by which jobs are run now whose own rows do not serve
	acting *pg.Later[map[uuid.UUID]registry.Acting]

	events []Event         // of the published outputs
	checks []tasks.Request // the check tasks that the outputs need

	routes  bool // own routes the events, in this transaction
	follows wakeup.Topics
	over    bool // nothing is left to commit
}

// stage is one step of a commit. Its error ends the whole transaction; the error of a single completion is stored with
// that completion.
type stage func(context.Context) error

func (d *Dispatcher) newCommit(tx pgx.Tx, all []*Completing) *commit {
	c := &commit{d: d, tx: tx, batch: new(pg.Batch), all: all}
	for _, x := range all {
		x.Next = nil // left over from a try that failed
		if x.now.After(c.now) {
			c.now = x.now
		}
	}
	return c
}

// commitMany commits plain completions. One that is alone may route its own events.
func (d *Dispatcher) commitMany(ctx context.Context, tx pgx.Tx, all []*Completing) (wakeup.Topics, error) {
	c := d.newCommit(tx, all)
	return c.run(ctx,
		c.lockTasks,
		c.askConsumers,
		c.checkFences,
		c.compareBases,
		c.recordOutputs,
		c.settleHeld,
		c.lockConsumers,
		c.storeEvents,
		c.recordRuns,
		c.advanceCursors,
		c.makeChecks,
		c.finish)
}

// commitOne commits a completion that asks for tasks or emits events, or a commit of an attempt that goes on.
func (d *Dispatcher) commitOne(ctx context.Context, tx pgx.Tx, x *Completing) (wakeup.Topics, error) {
	c := d.newCommit(tx, []*Completing{x})
	before := []stage{
		c.lockDAG,
		c.lockAsked,
		c.lockTasks,
		c.checkFences,
		c.compareBases,
		c.refuseUnpublished,
		c.recordOutputs,
		c.settleHeld,
		c.makeAsked,
		c.storeEvents,
		c.recordRuns}
	if x.mid != nil { // cursors of inputs advance when the attempt ends
		return c.run(ctx, append(before, c.makeChecks, c.commitExtras, c.noteCommit)...)
	}

	return c.run(ctx, append(before, c.advanceCursors, c.makeChecks, c.commitExtras, c.finish)...)
}

// run goes through the stages, and returns the wake-ups to send after COMMIT.
func (c *commit) run(ctx context.Context, stages ...stage) (wakeup.Topics, error) {
	for _, stage := range stages {
		if err := stage(ctx); err != nil || c.over {
			return nil, err
		}
	}
	return c.follows, nil
}

// only returns the one completion of commitOne.
func (c *commit) only() *Completing { return c.all[0] }

// lockDAG locks the DAG of a completion that emits events, because it may number revisions that other tasks made.
func (c *commit) lockDAG(ctx context.Context) error {
	x := c.only()
	if !x.emits {
		return nil
	}
	return registry.LockDAG(ctx, c.tx, x.Job.OrgID, x.Job.DAG)
}

// lockAsked takes the locks for making the tasks that are asked for. It runs before task rows are locked.
func (c *commit) lockAsked(ctx context.Context) error {
	x := c.only()
	asks := x.asks()
	if len(asks) == 0 {
		return nil
	}
	jobs, err := c.d.lockAsked(ctx, c.tx, x.Job, asks)
	if err != nil {
		return err
	}
	x.asked, err = c.d.resolveAsked(jobs, asks, x.TaskID, x.trace)
	return err
}

// lockTasks locks the DAGs and the tasks' rows, and asks what the outputs were last made from.
func (c *commit) lockTasks(context.Context) error {
	keys, list := make([]string, len(c.all)), make([]uuid.UUID, len(c.all))
	for i, x := range c.all {
		keys[i], list[i] = x.Job.LockKey(), x.TaskID
	}

	registry.LockDAGsShared(c.batch, keys)
	c.rows = tasks.LockTasks(c.batch, list)
	c.last = lastMade(c.batch, c.all)
	c.acting = c.d.askActing(c.batch, c.all)
	return nil
}

// askConsumers asks for the consumers of the outputs, if the completion commits alone and may route its own events.
func (c *commit) askConsumers(context.Context) error {
	if len(c.all) == 1 && c.d.mayRoute(c.all[0]) {
		c.own = c.d.routeAtOnce(c.batch, c.all[0])
	}
	return nil
}

// checkFences sets aside the completions whose attempts may not complete, and those that completed before.
func (c *commit) checkFences(ctx context.Context) error {
	rows, err := c.rows.Get(ctx, c.tx)
	if err != nil {
		return err
	}
	acting, err := c.acting.Get(ctx, c.tx)
	if err != nil {
		return err
	}

	for _, x := range c.all {
		x.state, x.notes, x.acting = unpublished{}, nil, acting[x.Job.Origin].Job
		var repeated bool
		if repeated, x.err = c.admit(ctx, x, rows); x.err == nil && !repeated {
			c.open = append(c.open, x)
		}
	}
	return nil
}

// admit returns an error if a completion's attempt may not complete; repeated reports whether it completed before.
func (c *commit) admit(ctx context.Context, x *Completing, rows map[uuid.UUID]tasks.Row) (repeated bool, err error) {
	if x.row, err = tasks.RowOf(rows, x.TaskID); err != nil {
		return false, err
	}
	if x.mid != nil {
		return false, c.d.mayCommit(ctx, c.tx, x.row, x.Fence, x.now)
	}
	return x.row.MayComplete(x.Fence, x.hash)
}

// compareBases sets aside the completions that cannot be committed on top of the newest revisions.
func (c *commit) compareBases(ctx context.Context) error {
	last, err := c.last.Get(ctx, c.tx)
	if err != nil {
		return err
	}
	c.open, err = c.d.compareBases(ctx, c.tx, c.open, last)
	c.over = len(c.open) == 0
	return err
}

// refuseUnpublished refuses a commit on the way that would publish none of its outputs.
func (c *commit) refuseUnpublished(context.Context) error {
	x := c.only()
	if x.mid != nil && x.state.kind != publishable && !x.Outcome.Unchanged {
		x.err, c.over = x.row.WithState(fault.New(fault.Conflict, "task %s: %s", x.TaskID, x.state)), true
	}
	return nil
}

// recordOutputs records the revisions that the completions made.
func (c *commit) recordOutputs(ctx context.Context) (err error) {
	c.events, c.checks, err = c.d.commitOutputs(ctx, c.tx, c.batch, c.open, c.now)
	return err
}

// settleHeld publishes or rejects the revisions that were checked: by the runs that made them, or by check tasks.
func (c *commit) settleHeld(ctx context.Context) error {
	for _, x := range c.open {
		for _, made := range x.decisions() {
			if err := c.batch.Send(ctx, c.tx); err != nil {
				return err
			}
			state, e, err := c.d.settle(ctx, c.tx, x.Claimed, made.revisionCheck, made.outcomes, c.now)
			if err != nil {
				return err
			}
			if e != nil {
				c.events = append(c.events, *e)
			}
			if made.note != nil && state != "" {
				made.note.State = state
			}
		}
	}
	return nil
}

// makeAsked makes the tasks and timers that are asked for, unless the attempt was overtaken: then its work does not
// count.
func (c *commit) makeAsked(ctx context.Context) (err error) {
	x := c.only()
	if x.asked.len() == 0 || x.state.kind == superseded {
		return nil
	}
	if err := c.batch.Send(ctx, c.tx); err != nil {
		return err
	}
	if err := lockLimitsOf(ctx, c.tx, x.row, x.asked.tasks); err != nil {
		return err
	}
	c.follows = append(c.follows, wakeup.Claim)
	x.made, err = c.d.makeAsked(ctx, c.tx, x.asked, c.now)
	return err
}

// lockConsumers tries to lock the consumers of the events, so that these can be routed here.
func (c *commit) lockConsumers(ctx context.Context) (err error) {
	if c.own != nil {
		c.routes, err = c.own.tryLocks(ctx, c.tx, c.d, c.batch, c.events)
	}
	return err
}

// storeEvents stores the events, and leaves them to the router unless they are routed here.
func (c *commit) storeEvents(context.Context) error {
	Accept(c.batch, c.events, routedBy(!c.routes), c.now)
	if len(c.events) > 0 && !c.routes {
		c.follows = append(c.follows, wakeup.Route)
	}
	return nil
}

func (c *commit) recordRuns(context.Context) error { return c.d.recordRuns(c.batch, c.open) }

// advanceCursors moves the cursors that the completed tasks follow.
func (c *commit) advanceCursors(ctx context.Context) error {
	again, err := advanceCursors(ctx, c.tx, c.open, c.now)
	if again {
		c.follows = append(c.follows, wakeup.Route)
	}
	return err
}

// makeChecks makes the check tasks of the outputs. Their slots are their own, so no origin lock is needed.
func (c *commit) makeChecks(ctx context.Context) error {
	if len(c.checks) == 0 {
		return nil
	}
	if err := c.batch.Send(ctx, c.tx); err != nil {
		return err
	}
	made, err := c.d.Tasks.Create(ctx, c.tx, tasks.Creation{Wanted: c.checks}, c.now)
	c.follows = append(c.follows, made.Topics()...)
	return err
}

// commitExtras commits the further parts of a worker's call, such as its events.
func (c *commit) commitExtras(ctx context.Context) error {
	x := c.only()
	if x.extras == nil {
		return nil
	}
	if err := c.batch.Send(ctx, c.tx); err != nil {
		return err
	}
	follows, err := x.extras(ctx, c.tx, x, c.now)
	c.follows = append(c.follows, follows...)
	return err
}

// noteCommit ends a commit on the way: the attempt goes on.
func (c *commit) noteCommit(ctx context.Context) error {
	if err := c.batch.Send(ctx, c.tx); err != nil {
		return err
	}
	return noteCommit(ctx, c.tx, c.only())
}

// finish ends the tasks. Their runners go on with tasks that waited for a limit until now or, where the events are
// routed here, with the tasks that the events make.
func (c *commit) finish(ctx context.Context) error {
	all, jobs := make([]tasks.Ended, len(c.open)), make([]*registry.Job, len(c.open))
	for i, x := range c.open {
		jobs[i] = x.Job
		all[i] = tasks.Ended{Row: x.row, Ending: tasks.Ending{Status: tasks.Completed, State: x.state.String(),
			Hash: x.hash, Outputs: x.notes, Spare: !x.publishes(), Actor: "WORKER"}}
	}

	if !c.routes {
		next := &nextClaim{}
		if err := c.d.Tasks.Finish(ctx, c.tx, c.batch, all, &next.Collector, c.now); err != nil {
			return err
		}
		return next.Give(ctx, c.tx, c.d, c.open, jobs, c.now)
	}

	if err := c.d.Tasks.Finish(ctx, c.tx, c.batch, all, nil, c.now); err != nil {
		return err
	}
	follows, err := c.own.route(ctx, c.tx, c.d, c.events, c.now)
	c.follows = append(c.follows, follows...)
	return err
}

// unpublished is the reason why a completion publishes nothing. The zero value means that it publishes its outputs.
type unpublished struct {
	kind   unpublishedKind
	detail string
}

type unpublishedKind int

const (
	publishable unpublishedKind = iota
	unchanged                   // the run found nothing new
	superseded                  // newer inputs than those it read are published or invalidated
)

func supersededBy(format string, args ...any) unpublished {
	return unpublished{superseded, fmt.Sprintf(format, args...)}
}

// String returns the state for the task's row; it is empty if the outputs are published.
func (u unpublished) String() string {
	switch u.kind {
	case unchanged:
		return "unchanged"
	case superseded:
		return "superseded: " + u.detail
	}
	return ""
}
