package builds

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// The builds of each DAG advance apart from those of all others: one whose source takes minutes to list, or never
// answers, delays nobody else's. Listing sources takes no turn; everything else does, so that builds leave connections
// to the database for other work.

const (
	apartAtOnce = 4                      // builds that use the database at once, in this process
	apartPerOrg = 32                     // DAGs of one org whose builds advance at once
	apartWait   = 250 * time.Millisecond // how long a round waits for the builds that it started
)

// dagKey names a DAG.
type dagKey struct {
	org  uuid.UUID
	name string
}

// apart keeps the builds of DAGs apart.
type apart struct {
	turns   chan struct{}
	running *sync.WaitGroup

	mu   *sync.Mutex
	busy map[dagKey]bool // DAGs whose builds are advancing
	orgs map[uuid.UUID]int
}

func newApart() apart {
	return apart{turns: make(chan struct{}, apartAtOnce), running: new(sync.WaitGroup), mu: new(sync.Mutex),
		busy: map[dagKey]bool{}, orgs: map[uuid.UUID]int{}}
}

// enter waits for a turn.
func (a apart) enter(ctx context.Context) error {
	select {
	case a.turns <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (a apart) leave() { <-a.turns }

// begin reports whether a DAG's builds may advance: they do not yet, and its org has room.
func (a apart) begin(k dagKey) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy[k] || a.orgs[k.org] >= apartPerOrg {
		return false
	}
	a.busy[k] = true
	a.orgs[k.org]++
	return true
}

func (a apart) end(k dagKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.busy, k)
	if a.orgs[k.org]--; a.orgs[k.org] == 0 {
		delete(a.orgs, k.org)
	}
}

// enumerate lists a source of a build, and takes no turn meanwhile.
func (bs *Builds) enumerate(
	ctx context.Context, job *registry.Job, op operators.Enumerator, now time.Time,
) (units int, err error) {
	bs.apart.leave()
	units, err = bs.sources.Enumerate(ctx, job, op, false, now)
	bs.apart.turns <- struct{}{} // whoever has a turn gives it back when its context ends
	return units, err
}

// listed returns the builds of each DAG, the DAGs in the order in which their builds began.
func (bs *Builds) listed(
	ctx context.Context, now time.Time,
) (dags []dagKey, of map[dagKey][]registry.Build, err error) {
	var all, over []registry.Build
	err = pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		if over, err = deploy.GivenUp(ctx, tx); err == nil {
			all, err = deploy.Builds(ctx, tx)
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	for _, b := range over {
		if err := bs.endGivenUp(ctx, b, now); err != nil {
			return nil, nil, err
		}
	}

	bs.dispatcher.Building.Store(len(all) > 0)
	bs.forget(all)
	of = map[dagKey][]registry.Build{}
	open := map[uuid.UUID]bool{}
	for _, b := range all {
		k := dagKey{b.OrgID, b.DAG}
		open[b.ID] = true
		if of[k] == nil {
			dags = append(dags, k)
		}
		of[k] = append(of[k], b)
	}
	return dags, of, bs.releaseEnded(ctx, open, now)
}

// endGivenUp ends the tasks of versions of a DAG that a deploy of what serves gave up; it wakes no build, whose loop
// would end them.
func (bs *Builds) endGivenUp(ctx context.Context, b registry.Build, now time.Time) error {
	return pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := registry.LockDAG(ctx, tx, b.OrgID, b.DAG); err != nil {
			return err
		}
		if err := bs.CancelUnused(ctx, tx, b.OrgID, b.DAG, tasks.ReasonAbandoned, now); err != nil {
			return err
		}
		return bs.EndUnwanted(ctx, tx, b.OrgID, b.DAG, b.ID, now)
	})
}

// releaseEnded lets the tasks go on that builds held back which are under way no more, since another deploy took their
// place.
func (bs *Builds) releaseEnded(ctx context.Context, open map[uuid.UUID]bool, now time.Time) error {
	bs.holding.Lock()
	var ended []uuid.UUID
	for build, h := range bs.holds {
		if !open[build] && now.Before(h.until) {
			ended = append(ended, build)
		}
	}
	bs.holding.Unlock()

	for _, build := range ended {
		err := pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
			return bs.releaseLive(ctx, tx, build, now)
		})
		if err != nil {
			return err
		}
		bs.holding.Lock()
		delete(bs.holds, build)
		bs.holding.Unlock()
	}
	return nil
}

// advanceDAG advances the builds of one DAG, one after the other.
func (bs *Builds) advanceDAG(ctx context.Context, list []registry.Build, now time.Time) error {
	var failed []error
	for _, b := range list {
		failed = append(failed, bs.turn(ctx, b, now))
	}
	return errors.Join(failed...)
}

// AdvanceBuilds advances every version that is being built, and waits for all of them: it enumerates the sources,
// reconciles the reactive jobs and, when the gate opens, cuts over.
func (bs *Builds) AdvanceBuilds(ctx context.Context, now time.Time) (more bool, err error) {
	dags, of, err := bs.listed(ctx, now)
	if err != nil {
		return false, err
	}
	var failed []error
	for _, k := range dags {
		failed = append(failed, bs.advanceDAG(ctx, of[k], now))
	}
	return false, errors.Join(failed...)
}

// advanceApart is one round of the loop: it advances the builds of every DAG that an earlier round is done with. It
// waits only a moment for them. Those that take longer log their errors, and ask for another round when they are done.
func (bs *Builds) advanceApart(ctx context.Context, now time.Time) (more bool, err error) {
	dags, of, err := bs.listed(ctx, now)
	if err != nil {
		return false, err
	}

	started, done := 0, make(chan error, len(dags))
	over := make(chan struct{}) // closed when the round no longer waits
	for _, k := range dags {
		if !bs.apart.begin(k) {
			continue
		}
		started++
		bs.apart.running.Go(func() {
			err := bs.advanceDAG(ctx, of[k], now)
			bs.apart.end(k)
			done <- err
			select {
			case <-over:
				if err != nil && ctx.Err() == nil {
					bs.log.Error("a build cannot be advanced; it is tried again", "error", err)
				}
				bs.wake.Send(wakeup.Build)
			default:
			}
		})
	}

	defer close(over)
	patience := time.NewTimer(apartWait)
	defer patience.Stop()
	var failed []error
	for range started {
		select {
		case err := <-done:
			failed = append(failed, err)
		case <-patience.C:
			return false, errors.Join(failed...)
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return false, errors.Join(failed...)
}
