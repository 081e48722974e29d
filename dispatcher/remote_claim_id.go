package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/batch"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/worker/protocol"
)

// claiming is the claim of one task by its id, on its way into a batch: a worker that receives ten messages claims ten
// tasks at once.
type claiming struct {
	Claimant Claimant
	Task     uuid.UUID
	Now      time.Time
	Done     chan struct{} // closed when the fields below hold the answer

	Claimed *Claimed // nil: the task was not claimed, for Reason
	Reason  string
	Err     error
	passed  bool // another transaction had locked the task, to claim it or for a look at what is queued
}

// claimBatch is how many claims by id one transaction may make; claimLanes is how many such transactions a process runs
// at once.
const (
	claimBatch   = 100
	claimLanes   = 2
	claimTimeout = 30 * time.Second
)

// ClaimByID claims one task, or returns the reason why it cannot be claimed.
func (d *Dispatcher) ClaimByID(ctx context.Context, c Claimant, task uuid.UUID, now time.Time) (protocol.Claim, error) {
	if err := cmp.Or(goodWorkerID(c.WorkerID), d.MayIssue()); err != nil {
		return protocol.Claim{}, err
	}

	x := &claiming{Claimant: c, Task: task, Now: now, Done: make(chan struct{})}
	d.claims.Add(x)
	select {
	case <-x.Done:
	case <-ctx.Done(): // if the task is claimed nevertheless, its lease expires
		return protocol.Claim{}, fmt.Errorf("claim task %s: %w", task, context.Cause(ctx))
	}

	switch {
	case x.Err != nil:
		return protocol.Claim{}, fmt.Errorf("claim task %s: %w", task, x.Err)
	case x.Claimed == nil:
		return NotClaimed(x.Reason), nil
	}
	return d.WireClaim(*x.Claimed, now)
}

// claimAll makes claims, those of each claimant in transactions of their own.
func (d *Dispatcher) claimAll(claims []*claiming) {
	by := map[string][]*claiming{}
	for _, x := range claims {
		who := fmt.Sprintf("%q", []any{x.Claimant})
		by[who] = append(by[who], x)
	}

	var all sync.WaitGroup
	for _, some := range by {
		all.Go(func() {
			batch.Together(some, d.claimTogether, func(x *claiming, err error) { x.Err = err })
			for _, x := range some {
				if x.passed && x.Err == nil {
					x.Err = d.claimTogether([]*claiming{x})
				}
				close(x.Done)
			}
		})
	}
	all.Wait()
}

// claimTogether claims tasks for one claimant in one transaction.
func (d *Dispatcher) claimTogether(claims []*claiming) error {
	ctx, cancel := context.WithTimeout(context.Background(), claimTimeout)
	defer cancel()

	c, now := claims[0].Claimant, claims[0].Now
	first := map[uuid.UUID]*claiming{}
	for _, x := range claims {
		if _, twice := first[x.Task]; !twice {
			first[x.Task] = x
		}
		x.Reason, x.passed = protocol.AlreadyRunning, false // claimed by the first of these, or by another claimant
		if x.Now.After(now) {
			now = x.Now
		}
	}

	var taken []tasks.Taken
	claimed, err := d.ClaimTaken(ctx, c.holder(), now,
		func(ctx context.Context, tx pgx.Tx) (_ []tasks.Taken, err error) {
			taken, err = d.takeThese(ctx, tx, c, first)
			return taken, err
		})
	if err != nil {
		return err
	}

	for i, t := range claimed {
		first[t.TaskID].Claimed = &claimed[i]
	}
	for _, t := range taken {
		if t.Aside {
			first[t.Task].Reason = protocol.Throttled // as for one that is paused
		}
	}
	for _, x := range claims {
		if f := first[x.Task]; f != x && f.Claimed == nil {
			x.Reason = f.Reason
		}
	}
	return nil
}

// takeThese removes the wanted tasks from the ready set. It sets the reason of those that it cannot take.
//
// A locked task is not always being claimed: creating or merging tasks locks queued tasks for a moment. A claim of
// one task waits for the lock. A claim of several would hold locks of its own while it waits, so it skips the task.
func (d *Dispatcher) takeThese(
	ctx context.Context, tx pgx.Tx, c Claimant, wanted map[uuid.UUID]*claiming,
) ([]tasks.Taken, error) {
	list := make([]uuid.UUID, 0, len(wanted))
	for id, x := range wanted {
		list, x.Reason = append(list, id), protocol.NotFound
	}

	rows, err := tx.Query(ctx, `
		SELECT t.id, t.org_id, t.runtime, t.needs, t.status, coalesce(w.reason, '')
		FROM unnest($1::uuid[]) AS wanted
		CROSS JOIN LATERAL (SELECT * FROM tasks WHERE id = wanted LIMIT 1) AS t
		LEFT JOIN LATERAL (SELECT * FROM waiting WHERE task_id = wanted LIMIT 1) AS w ON true`, list)
	if err != nil {
		return nil, err
	}

	var (
		id, org        uuid.UUID
		runtime, needs string
		status         tasks.Status
		waiting        tasks.Wait
		ready          []uuid.UUID
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &org, &runtime, &needs, &status, &waiting}, func() error {
		switch {
		case !c.takes(org, runtime, needs, d.Operators): // as if the task did not exist
		case status == tasks.Queued && waiting == "":
			ready = append(ready, id)
			wanted[id].Reason = protocol.AlreadyRunning // unless it is taken below
		default:
			wanted[id].Reason = notClaimable(status, waiting)
		}
		return nil
	}); err != nil || len(ready) == 0 {
		return nil, err
	}

	pick := `SELECT q.task_id FROM ready q WHERE q.task_id = ANY($1) FOR UPDATE`
	if len(wanted) > 1 {
		pick += ` SKIP LOCKED`
	}
	taken, err := tasks.TakePicked(new(pg.Batch), pick, ready).Get(ctx, tx)
	for _, id := range ready {
		wanted[id].passed = len(wanted) > 1
	}
	for _, t := range taken {
		x := wanted[t.Task]
		x.passed, x.Reason = false, protocol.Canceled // a task that is taken and not leased has nothing left to do
	}
	return taken, err
}
