package dispatcher

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/worker/protocol"
)

// claiming is a claim of one task on its way into a batch: a worker that receives ten messages claims ten tasks at once.
type claiming struct {
	claimant Claimant
	task     uuid.UUID
	now      time.Time
	done     chan struct{} // closed when what follows is the answer

	claimed *claimed // nil: not claimed, for this reason
	reason  string
	err     error
}

// claimBatch is how many claims by id one transaction may make, claimLanes how many such transactions are under way at once
// in a process.
const (
	claimBatch   = 100
	claimLanes   = 2
	claimTimeout = 30 * time.Second
)

// ClaimByID claims one task, or says why not.
func (d *Dispatcher) ClaimByID(ctx context.Context, c Claimant, task uuid.UUID, now time.Time) (protocol.Claim, error) {
	if err := d.mayIssue(); err != nil {
		return protocol.Claim{}, err
	}
	x := &claiming{claimant: c, task: task, now: now, done: make(chan struct{})}
	d.claims.Add(x)
	select {
	case <-x.done:
	case <-ctx.Done(): // a lease that nobody heard of runs out
		return protocol.Claim{}, fmt.Errorf("claim task %s: %w", task, context.Cause(ctx))
	}
	switch {
	case x.err != nil:
		return protocol.Claim{}, fmt.Errorf("claim task %s: %w", task, x.err)
	case x.claimed == nil:
		return notClaimed(x.reason), nil
	}
	return d.wireClaim(*x.claimed, now)
}

// claimAll makes a batch of claims, each claimant's by themselves.
func (d *Dispatcher) claimAll(batch []*claiming) {
	by := map[string][]*claiming{}
	for _, x := range batch {
		who := fmt.Sprintf("%q", []any{x.claimant})
		by[who] = append(by[who], x)
	}
	var all sync.WaitGroup
	for _, some := range by {
		all.Go(func() {
			d.claimTogether(some)
			for _, x := range some {
				close(x.done)
			}
		})
	}
	all.Wait()
}

// claimTogether claims tasks for one claimant in one transaction. If that fails, for which one of them may be the cause, each
// has one of its own.
func (d *Dispatcher) claimTogether(batch []*claiming) {
	ctx, cancel := context.WithTimeout(context.Background(), claimTimeout)
	defer cancel()
	c, now := batch[0].claimant, batch[0].now
	first := map[uuid.UUID]*claiming{}
	for _, x := range batch {
		if _, twice := first[x.task]; !twice {
			first[x.task] = x
		}
		x.reason = protocol.AlreadyRunning // by the first that claims it, or by whoever has it in hand
		if x.now.After(now) {
			now = x.now
		}
	}
	tasks, err := d.claimTaken(ctx, holder{c.WorkerID, true}, now, func(ctx context.Context, tx pgx.Tx) ([]claimable, error) {
		return d.takeThese(ctx, tx, c, first)
	})
	switch {
	case err == nil:
		for i, t := range tasks {
			first[t.TaskID].claimed = &tasks[i]
		}
		for _, x := range batch {
			if f := first[x.task]; f != x && f.claimed == nil {
				x.reason = f.reason
			}
		}
	case len(batch) == 1:
		batch[0].err = err
	default:
		for _, x := range batch {
			d.claimTogether([]*claiming{x})
		}
	}
}

// takeThese removes tasks from the ready set, and says of the others why they are not there.
func (d *Dispatcher) takeThese(ctx context.Context, tx pgx.Tx, c Claimant, wanted map[uuid.UUID]*claiming) ([]claimable, error) {
	tasks := make([]uuid.UUID, 0, len(wanted))
	for id, x := range wanted {
		tasks, x.reason = append(tasks, id), protocol.NotFound
	}
	rows, err := tx.Query(ctx, `
		SELECT t.id, t.org_id, t.runtime, t.needs, t.status, coalesce(w.reason, '')
		FROM unnest($1::uuid[]) AS wanted
		CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = wanted LIMIT 1) AS t
		LEFT JOIN LATERAL (SELECT * FROM waiting WHERE task_id = wanted LIMIT 1) AS w ON true`, tasks)
	if err != nil {
		return nil, err
	}
	var (
		id, org                         uuid.UUID
		runtime, needs, status, waiting string
		ready                           []uuid.UUID
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &org, &runtime, &needs, &status, &waiting}, func() error {
		switch {
		case !c.takes(org, runtime, needs, d.Operators): // as if it did not exist
		case status == "Queued" && waiting == "":
			ready, wanted[id].reason = append(ready, id), protocol.AlreadyRunning // another claimer has it in hand, unless it is taken
		default:
			wanted[id].reason = notClaimable(status, waiting)
		}
		return nil
	}); err != nil || len(ready) == 0 {
		return nil, err
	}
	taken, err := takePicked(ctx, tx, `SELECT q.task_id FROM ready q WHERE q.task_id = ANY($1) FOR UPDATE SKIP LOCKED`, ready)
	for _, t := range taken {
		wanted[t.Task].reason = protocol.Canceled // unless it is leased, there was nothing left to do
	}
	return taken, err
}
