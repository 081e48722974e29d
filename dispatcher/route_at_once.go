package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// While little goes on, a completion that commits alone routes its events itself, in its own transaction: what comes next is
// claimable with its COMMIT, without an outbox row and a router's transaction in between. Under load completions share
// transactions and leave their events to the router, which has more of them at a time.
//
// It must not wait for locks of origins, since it holds rows that routers wait for: where one is taken, or anything else
// stands in the way, the events go the usual way.

// ownRouting is the routing of one completion's events in its own transaction.
type ownRouting struct {
	by          *completing
	generations []uuid.UUID
	consumers   func(context.Context, pgx.Tx) ([]registry.Consumer, error) // of the generations
	origins     map[uuid.UUID]bool                                         // whose locks were asked for
	locked      bool                                                       // and had
}

// queueAtOnce asks who consumes what a completion may publish; nil where its events are the router's.
func (d *Dispatcher) queueAtOnce(b *pg.Batch, batch []*completing) *ownRouting {
	if len(batch) > 1 || d.stepped || batch[0].mid != nil || batch[0].also != nil || batch[0].leave || batch[0].check != nil || batch[0].outcome.Unchanged || len(batch[0].outcome.Written) == 0 {
		return nil
	}
	a := &ownRouting{by: batch[0]}
	batch[0].routes = true
	for _, w := range batch[0].outcome.Written {
		a.generations = append(a.generations, batch[0].output(w).Version)
	}
	a.generations = dedupeIDs(a.generations)
	a.consumers = d.Registry.QueueConsumers(b, a.generations)
	return a
}

// queueLocks tries to lock the consumers, and asks again who they are: a cutover may have come before the locks. False leaves
// the events to the router.
func (a *ownRouting) queueLocks(ctx context.Context, tx pgx.Tx, d *Dispatcher, b *pg.Batch, events []Event) (bool, error) {
	// Limits are locked all at once, and some may be given back or taken by this transaction.
	if a == nil || len(events) == 0 || len(a.by.row.limits)+len(a.by.asked) > 0 {
		return false, nil
	}
	for _, e := range events {
		if e.Position != nil {
			return false, nil // the same position may have been told before
		}
	}
	consumers, err := a.consumers(ctx, tx)
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
	if len(origins) > 0 {
		b.Query("try to lock consumers", []any{&a.locked}, func() error { return nil }, `
			SELECT bool_and(had) FROM (
				SELECT pg_try_advisory_xact_lock_shared(h) AS had FROM (SELECT DISTINCT hashtextextended(k, 0) AS h FROM unnest($1::text[]) AS k) AS dags
				UNION ALL
				SELECT pg_try_advisory_xact_lock(hashtextextended(o::text, 1)) FROM unnest($2::uuid[]) AS o) AS locks`, keys, dedupeIDs(origins))
	} else {
		a.locked = true
	}
	a.consumers = d.Registry.QueueConsumers(b, a.generations)
	return true, nil
}

// route makes the tasks that the events call for, or leaves them to the router.
func (a *ownRouting) route(ctx context.Context, tx pgx.Tx, d *Dispatcher, events []Event, now time.Time) (topics, error) {
	began := time.Now()
	consumers, err := a.consumers(ctx, tx)
	if err != nil {
		return nil, err
	}
	for _, c := range consumers {
		a.locked = a.locked && a.origins[c.Job.Origin]
	}
	if !a.locked {
		var b pg.Batch
		queueRouting(&b, events, now)
		return topics{topicRoute}, b.Send(ctx, tx)
	}
	pg.AfterCommit(ctx, func() { d.metrics.routed(events, began) })
	if len(consumers) == 0 {
		return nil, nil
	}
	next := &nextClaim{wants: a.by.then != nil && !d.heads.crowded() && !slices.ContainsFunc(consumers, func(c registry.Consumer) bool { return !d.runsJob(c.Job) })}
	made, err := d.routeTo(context.WithValue(ctx, nextClaimKey{}, next), tx, consumers, events, nil, now)
	if err != nil || a.by.then == nil {
		return made.topics(), err
	}
	jobs := make([]*registry.Job, len(consumers))
	for i, c := range consumers {
		jobs[i] = c.Job
	}
	return made.topics(), next.give(ctx, tx, d, []*completing{a.by}, jobs, now)
}

// The runner whose completion made a task, or let one in that waited for a limit, goes on with it, claimed by the completion's
// own transaction, if that is the task that it would get anyway: nothing else is ready for this process. Another COMMIT and a
// wake-up are saved, which is most of the time between the jobs of a chain. Nobody else can have seen a new task yet, and one
// that waited is passed over where its row is locked, so that no lock is waited for.

// nextClaim collects the tasks that a transaction makes ready.
type nextClaim struct {
	ready []uuid.UUID
	taken int

	// Of a task that is taken in the round trip that makes it ready.
	wants bool         // that may be tried: all that can be made is for this process
	early *[]claimable // nil: it was not tried
	task  newTask
	given given
}

// nextClaimKey is that of a context with a nextClaim.
type nextClaimKey struct{}

// claimable notes, in a transaction, that tasks will be claimable once it is committed.
func (d *Dispatcher) claimable(ctx context.Context, tasks []uuid.UUID) {
	next, ok := ctx.Value(nextClaimKey{}).(*nextClaim)
	if ok {
		next.ready = append(next.ready, tasks...)
	}
	pg.AfterCommit(ctx, func() {
		if !ok || len(next.ready) > next.taken {
			d.wake.send(topicClaim)
		}
	})
}

// pickNext picks up to max of the candidates, of some jobs, that this process runs, unless others than the known ones are ready
// for it. One that waited before may be locked by somebody who wants it out of the set, and who must not be waited for.
func (d *Dispatcher) pickNext(candidates, known, origins []uuid.UUID, max int) (pick string, args []any) {
	where, more := d.runsHere()
	args = append([]any{candidates, d.inProcessRuntimes(), max, known}, more...)
	args = append(args, dedupeIDs(origins))
	return fmt.Sprintf(`
		SELECT q.task_id FROM ready q CROSS JOIN LATERAL (SELECT FROM tasks WHERE id = q.task_id LIMIT 1 FOR UPDATE SKIP LOCKED) AS t
		WHERE q.task_id = ANY($1) AND q.runtime = ANY($2) AND q.job_id = ANY($%d) AND %s
		  AND NOT EXISTS (SELECT FROM ready o WHERE o.runtime = ANY($2) AND o.task_id <> ALL($4))
		ORDER BY q.rank, q.task_id LIMIT $3 FOR UPDATE OF q SKIP LOCKED`, len(args), where), args
}

// queueNext has the first of the tasks that b makes ready taken, and loaded what it is given, where it is known what that is:
// it was found in this transaction, under the lock of its origin, and its job's row is the one that acts, being live.
func (d *Dispatcher) queueNext(ctx context.Context, b *pg.Batch, made []newTask, placing []placement, free map[uuid.UUID]bool) {
	n, ok := ctx.Value(nextClaimKey{}).(*nextClaim)
	if !ok || !n.wants || n.early != nil || len(free) < len(made) {
		return
	}
	first := 0
	ids := make([]uuid.UUID, len(placing))
	for i, p := range placing {
		ids[i] = p.task
		if f := placing[first]; p.rank < f.rank || p.rank == f.rank && slices.Compare(p.task[:], f.task[:]) < 0 {
			first = i
		}
	}
	if n.task = made[first]; n.task.pins == nil || n.task.class != classLive {
		return
	}
	origin := []uuid.UUID{n.task.job.Origin}
	pick, args := d.pickNext(ids[first:first+1], ids, origin, 1)
	n.early = queuePicked(b, pick, args...)
	n.given = queueLoaded(b, n.task.pins, origin)
}

// give has the runners of completions go on with the first of the tasks, of jobs that this process runs, unless others are ready
// besides them. Where the set is full of dead rows, what is ready cannot be found quickly.
func (n *nextClaim) give(ctx context.Context, tx pgx.Tx, d *Dispatcher, batch []*completing, jobs []*registry.Job, now time.Time) error {
	batch = slices.DeleteFunc(slices.Clone(batch), func(x *completing) bool { return x.then == nil })
	var (
		began = time.Now()
		out   []claimed
		err   error
	)
	if n.early != nil {
		out, err = n.leaseEarly(ctx, tx, d, now)
	} else {
		out, err = n.leaseReady(ctx, tx, d, len(batch), jobs, now)
	}
	if err != nil || len(out) == 0 {
		return err
	}
	for i := range out {
		batch[i].next = &out[i]
	}
	pg.AfterCommit(ctx, func() {
		d.metrics.batch("claim", began, len(out))
		d.tracing.claimed(out, began)
	})
	return nil
}

// leaseEarly leases what was taken in the round trip that made it ready, pinned to what it was found by.
func (n *nextClaim) leaseEarly(ctx context.Context, tx pgx.Tx, d *Dispatcher, now time.Time) (_ []claimed, err error) {
	taken := *n.early
	if len(taken) == 0 {
		return nil, nil
	}
	n.taken = 1
	taken[0].job, taken[0].pins = n.task.job, n.task.pins
	if n.given.generations, err = d.Registry.InputGenerations(ctx, tx, n.task.job); err != nil {
		return nil, err
	}
	return d.leaseGiven(ctx, tx, taken, n.given, holder{worker: d.WorkerID}, now)
}

// leaseReady takes up to max of the tasks, and leases them.
func (n *nextClaim) leaseReady(ctx context.Context, tx pgx.Tx, d *Dispatcher, max int, jobs []*registry.Job, now time.Time) ([]claimed, error) {
	var origins []uuid.UUID
	for _, job := range jobs {
		if d.runsJob(job) {
			origins = append(origins, job.Origin)
		}
	}
	if len(n.ready) == 0 || max == 0 || len(origins) == 0 || d.heads.crowded() {
		return nil, nil
	}
	pick, args := d.pickNext(n.ready, n.ready, origins, max)
	taken, err := takePicked(ctx, tx, pick, args...)
	if err != nil || len(taken) == 0 {
		return nil, err
	}
	n.taken = len(taken)
	return d.leaseTaken(ctx, tx, taken, holder{worker: d.WorkerID}, now)
}

// runsJob reports whether this process runs tasks of a job, and may claim them without waiting: of a job that follows cursors
// others may hold those.
func (d *Dispatcher) runsJob(job *registry.Job) bool {
	return slices.Contains(d.inProcessRuntimes(), job.Def.Runtime) && !slices.Contains(d.elsewhere[job.Def.Runtime], job.Def.Operator) &&
		!slices.ContainsFunc(job.Inputs, func(in registry.JobInput) bool { return follows(job, in) })
}
