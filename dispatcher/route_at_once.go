package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// While there is little load, a completion that commits alone routes its events itself, in its own transaction: the
// next tasks are claimable with its COMMIT, without an outbox row and a router's transaction in between. Under load
// completions share transactions and leave their events to the router, which routes more of them at a time.
//
// Such a completion must not wait for locks of origins, since it holds rows that routers wait for. Where a lock is
// taken, or anything else stands in the way, the router routes the events.

// ownRouting is the routing of one completion's events in its own transaction.
type ownRouting struct {
	by          *Completing
	generations []uuid.UUID
	consumers   *pg.Later[[]registry.Consumer] // of the generations
	origins     map[uuid.UUID]bool             // the origins to lock
	locked      *pg.Later[bool]                // whether all of them were free
}

// mayRoute reports whether a completion that commits alone may route its own events.
func (d *Dispatcher) mayRoute(x *Completing) bool {
	return !d.Stepped && !x.leave && x.Check == nil && !x.Outcome.Unchanged && len(x.Outcome.Written) > 0 &&
		x.Outcome.Split == nil // whose events may be thousands
}

// routeAtOnce prepares the routing of a completion's events: it asks for the consumers of its outputs.
func (d *Dispatcher) routeAtOnce(b *pg.Batch, x *Completing) *ownRouting {
	a := &ownRouting{by: x}
	for _, w := range x.Outcome.Written {
		a.generations = append(a.generations, x.output(w).Version)
	}
	a.generations = tasks.SortedIDs(a.generations)
	a.consumers = d.Registry.Consumers(b, a.generations)
	return a
}

// tryLocks tries to lock the consumers, and asks for them again: a cutover may have been committed before the locks
// were held. It reports whether the events can be routed here; otherwise the router must route them.
func (a *ownRouting) tryLocks(
	ctx context.Context, tx pgx.Tx, d *Dispatcher, b *pg.Batch, events []Event,
) (bool, error) {
	// A transaction must lock all its limits at once, and this one gives back those of the task that ends.
	if len(events) == 0 || len(a.by.row.Limits) > 0 {
		return false, nil
	}

	for _, e := range events {
		if e.Position != nil {
			return false, nil // the same position may have been an event before
		}
	}

	consumers, err := a.consumers.Get(ctx, tx)
	if err != nil {
		return false, err
	}
	var (
		keys    []string
		origins []uuid.UUID
	)
	a.origins = make(map[uuid.UUID]bool, len(consumers))
	for _, c := range consumers {
		keys, origins = append(keys, c.Job.LockKey()), append(origins, c.Job.Origin)
		a.origins[c.Job.Origin] = true
	}

	a.locked = pg.Known(true)
	if len(origins) > 0 {
		var locked bool
		b.Query("try to lock consumers", []any{&locked}, func() error { return nil }, `
			SELECT bool_and(had) FROM (
				SELECT pg_try_advisory_xact_lock_shared(h) AS had
				FROM (SELECT DISTINCT hashtextextended(k, 0) AS h FROM unnest($1::text[]) AS k) AS dags
				UNION ALL
				SELECT pg_try_advisory_xact_lock(hashtextextended(o::text, 1)) FROM unnest($2::uuid[]) AS o) AS locks`,
			keys, tasks.SortedIDs(origins))
		a.locked = pg.Answer(b, &locked)
	}
	a.consumers = d.Registry.Consumers(b, a.generations)
	return true, nil
}

// route makes the tasks that the events call for, or leaves them to the router.
func (a *ownRouting) route(
	ctx context.Context, tx pgx.Tx, d *Dispatcher, events []Event, now time.Time,
) (wakeup.Topics, error) {
	began := time.Now()
	consumers, err := a.consumers.Get(ctx, tx)
	if err != nil {
		return nil, err
	}
	locked, err := a.locked.Get(ctx, tx)
	if err != nil {
		return nil, err
	}

	for _, c := range consumers {
		locked = locked && a.origins[c.Job.Origin]
	}
	if !locked {
		var b pg.Batch
		leaveToRouter(&b, events, now)
		return wakeup.Topics{wakeup.Route}, b.Send(ctx, tx)
	}

	pg.AfterCommit(ctx, func() { countRouted(d.Metrics, events, began) })
	if len(consumers) == 0 {
		return nil, nil
	}

	elsewhere := slices.ContainsFunc(consumers, func(c registry.Consumer) bool { return !d.runsJob(c.Job) })
	next := d.newNextClaim(a.by.Then != nil && !d.Tasks.Bloated() && !elsewhere)
	made, err := d.routeTo(ctx, tx, consumers, events, nil, &next.Collector, now)
	if err != nil || a.by.Then == nil {
		return made.Topics(), err
	}

	jobs := make([]*registry.Job, len(consumers))
	for i, c := range consumers {
		jobs[i] = c.Job
	}
	return made.Topics(), next.Give(ctx, tx, d, []*Completing{a.by}, jobs, now)
}

// A completion may make tasks ready: new ones, or tasks that waited for a limit. Its transaction claims one of them for
// the runner, if nothing else is ready for this process, so that the runner would get that task anyway. This saves
// another COMMIT and a wake-up, which is most of the time between the jobs of a chain. The claim never waits for a
// lock: nobody else can have seen a new task yet, and a task that waited is passed over if its row is locked.

// nextClaim claims tasks that a transaction makes ready, for the runners whose completions made them ready.
type nextClaim struct {
	tasks.Collector

	// Set for a task that is taken in the round trip that makes it ready.
	Early  *pg.Later[[]tasks.Taken] // nil: no task was taken so
	task   tasks.Request
	loaded *pg.Later[claimInputs]
}

// newNextClaim returns a nextClaim. If early is set, it takes a task in the round trip that makes it ready; the caller
// sets early only if every task that can be made is for this process.
func (d *Dispatcher) newNextClaim(early bool) *nextClaim {
	n := &nextClaim{}
	if early {
		n.TakeFirst = func(b *pg.Batch, made []tasks.Request, placing []tasks.Placement) { n.take(d, b, made, placing) }
	}
	return n
}

// pickNext returns a query for up to max of the candidates that belong to the origins and that this process runs. It
// finds none if tasks other than the known ones are ready for the process. A candidate that waited before may be locked
// by a transaction that removes it from the set, and the query must not wait for that.
func (d *Dispatcher) pickNext(candidates, known, origins []uuid.UUID, max int) (pick string, args []any) {
	where, more := d.Tasks.RunsHere()
	args = append([]any{candidates, d.InProcessRuntimes(), max, known}, more...)
	args = append(args, tasks.SortedIDs(origins))
	return fmt.Sprintf(`
		SELECT q.task_id FROM ready q
		CROSS JOIN LATERAL (SELECT FROM tasks WHERE id = q.task_id LIMIT 1 FOR UPDATE SKIP LOCKED) AS t
		WHERE q.task_id = ANY($1) AND q.runtime = ANY($2) AND q.origin_job_id = ANY($%d) AND %s
		  AND NOT EXISTS (SELECT FROM ready o WHERE o.runtime = ANY($2) AND o.task_id <> ALL($4))
		ORDER BY q.rank, q.task_id LIMIT $3 FOR UPDATE OF q SKIP LOCKED`, len(args), where), args
}

// take takes the first of the tasks that b makes ready, and loads its inputs, if those are known: they were pinned in
// this transaction, under the lock of the task's origin, and the job's row is the one that acts, because it is live.
func (n *nextClaim) take(d *Dispatcher, b *pg.Batch, made []tasks.Request, placing []tasks.Placement) {
	if n.Early != nil {
		return
	}

	first, ids := 0, tasks.TaskIDs(placing)
	for i, p := range placing {
		if f := placing[first]; p.Rank < f.Rank || p.Rank == f.Rank && slices.Compare(p.Task[:], f.Task[:]) < 0 {
			first = i
		}
	}

	if n.task = made[first]; n.task.Pins == nil || n.task.Class != tasks.ClassLive {
		return
	}

	pick, args := d.pickNext(ids[first:first+1], ids, []uuid.UUID{n.task.Job.Origin}, 1)
	n.Early = tasks.TakePicked(b, pick, args...)
	n.loaded = queryInputs(b, n.task.Pins, []stateSlot{slotOfState(n.task.Job, n.task.Partition, n.task.Payload)})
}

// Give claims the first of the tasks that became ready, if this process runs their jobs, for the runners of
// completions. It claims none if other tasks are ready besides them, and none if the ready set is full of dead rows,
// because reading it would take too long then.
func (n *nextClaim) Give(
	ctx context.Context, tx pgx.Tx, d *Dispatcher, batch []*Completing, jobs []*registry.Job, now time.Time,
) error {
	batch = slices.DeleteFunc(slices.Clone(batch), func(x *Completing) bool { return x.Then == nil })

	began := time.Now()
	out, err := n.claim(ctx, tx, d, len(batch), jobs, now)
	if err != nil || len(out) == 0 {
		return err
	}

	for i := range out {
		batch[i].Next = &out[i]
	}
	pg.AfterCommit(ctx, func() {
		d.Metrics.Batch("claim", began, len(out))
		d.tracing.claimed(out, began)
	})
	return nil
}

// claim leases the task that was taken in the round trip that made it ready, with the pins it was made for. If none was
// taken so, claim takes up to max of the ready tasks of some jobs, and leases them.
func (n *nextClaim) claim(
	ctx context.Context, tx pgx.Tx, d *Dispatcher, max int, jobs []*registry.Job, now time.Time,
) ([]Claimed, error) {
	by := Holder{Worker: d.WorkerID}
	if n.Early != nil {
		taken, err := n.Early.Get(ctx, tx)
		if err != nil || len(taken) == 0 {
			return nil, err
		}
		n.Taken = 1
		taken[0].Job, taken[0].Pins = n.task.Job, n.task.Pins
		taken, err = d.runnable(ctx, tx, taken, func(c tasks.Taken) *registry.Job { return c.Job }, now)
		if err != nil {
			return nil, err
		}
		return d.lease(ctx, tx, taken, n.loaded, by, now)
	}

	var origins []uuid.UUID
	for _, job := range jobs {
		if d.runsJob(job) {
			origins = append(origins, job.Origin)
		}
	}
	if len(n.Ready) == 0 || max == 0 || len(origins) == 0 || d.Tasks.Bloated() {
		return nil, nil
	}

	pick, args := d.pickNext(n.Ready, n.Ready, origins, max)
	taken, err := tasks.TakePicked(new(pg.Batch), pick, args...).Get(ctx, tx)
	if err != nil || len(taken) == 0 {
		return nil, err
	}
	n.Taken = len(taken)
	return d.leaseTaken(ctx, tx, taken, by, now)
}

// runsJob reports whether this process runs tasks of a job and can claim them without waiting. A job that follows
// cursors is none: another transaction may hold the cursors.
func (d *Dispatcher) runsJob(job *registry.Job) bool {
	return slices.Contains(d.InProcessRuntimes(), job.Def.Runtime) &&
		!slices.Contains(d.Elsewhere[job.Def.Runtime], job.Def.Operator) && d.mayRun(job.Def.RunsAs(), job.OrgSlug) &&
		!slices.ContainsFunc(job.Inputs, func(in registry.JobInput) bool { return stale.Follows(job, in) })
}
