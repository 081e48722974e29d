// Package workitems runs background work that takes long or touches many rows: an item is done in turns by whichever
// process is free, keeps its position in the database, and is never cut off half way without one. It owns work_items.
//
// Leases and due times are by the database's clock. A step that was cut off is repeated, perhaps by another process
// while the first still works at it, so every step must be harmless when it is done twice.
package workitems

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// turn is how long an item is worked on before others get their turn.
	turn = 10 * time.Second
	// lease is how long an item stays with a process that does not renew its lease.
	lease = time.Minute
	// mostBackoff bounds the wait after failures, which begins at a second and doubles.
	mostBackoff = 10 * time.Minute
)

// Kind is a kind of work. A process works on one item of each kind at a time.
type Kind struct {
	Name    string
	Objects []string      // of the items that always exist; "" for a kind with one item
	Every   time.Duration // how long an item rests after a pass
	// Rest is how many times as long as a turn took the item rests after it at least; 0: it may go on at once.
	Rest int
	// Whole is how often a pass starts at the beginning. The passes between go on where the last one ended. 0: each
	// pass starts at the beginning.
	Whole time.Duration
	// Begin returns the step of a turn, with what the turn needs to know only once.
	Begin func(ctx context.Context, object string, now time.Time) (Step, error)
}

// Step does a small part of the work, from a position on.
type Step func(ctx context.Context, position string) (Progress, error)

// Whole takes all steps of a pass.
func (s Step) Whole(ctx context.Context) error {
	for done := (Progress{}); !done.Over && !done.Gone; {
		var err error
		if done, err = s(ctx, done.Position); err != nil {
			return err
		}
	}
	return nil
}

// Progress is what a step has done.
type Progress struct {
	Position string
	Rows     int64 // how many rows it changed
	Over     bool  // the pass has ended
	Gone     bool  // there is no such item any more
}

// Runner works on items.
type Runner struct {
	pool  *pgxpool.Pool
	log   *slog.Logger
	kinds []Kind

	busy    sync.Map // the names of the kinds that this process works on
	made    bool     // the items that always exist are there
	running sync.WaitGroup
}

// New returns a runner of some kinds.
func New(pool *pgxpool.Pool, log *slog.Logger, kinds ...Kind) *Runner {
	return &Runner{pool: pool, log: log, kinds: kinds}
}

// item is an item that this process has leased.
type item struct {
	kind     Kind
	object   string
	position string
	token    uuid.UUID
	now      time.Time // the database's
}

// Start begins turns of the items that are due, and leaves them to goroutines, for which End waits.
func (r *Runner) Start(ctx context.Context, _ time.Time) (more bool, err error) {
	if err := r.makeItems(ctx); err != nil {
		return false, err
	}
	for {
		it, err := r.claim(ctx, r.idle())
		if err != nil || it == nil {
			return false, err
		}
		r.busy.Store(it.kind.Name, true)
		r.running.Go(func() { r.goOn(ctx, it) })
	}
}

// goOn takes a turn of an item, and then of the others of its kind that are due.
func (r *Runner) goOn(ctx context.Context, it *item) {
	kind := it.kind
	defer r.busy.Delete(kind.Name)
	var err error
	for it != nil && err == nil && ctx.Err() == nil {
		r.take(ctx, it)
		it, err = r.claim(ctx, []Kind{kind})
	}
	if err != nil && ctx.Err() == nil {
		r.log.Warn("background work waits", "kind", kind.Name, "error", err)
	}
}

// idle returns the kinds that this process does not work on.
func (r *Runner) idle() []Kind {
	return slices.DeleteFunc(slices.Clone(r.kinds), func(k Kind) bool {
		_, busy := r.busy.Load(k.Name)
		return busy
	})
}

// End waits for the turns that Start has begun, which end soon after their context.
func (r *Runner) End() { r.running.Wait() }

// Pass does a whole pass of one item, whether or not it is due, and leaves its row as it is.
func (r *Runner) Pass(ctx context.Context, kind, object string, now time.Time) error {
	i := slices.IndexFunc(r.kinds, func(k Kind) bool { return k.Name == kind })
	if i < 0 {
		return fmt.Errorf("no work of kind %q", kind)
	}
	step, err := r.kinds[i].Begin(ctx, object, now)
	if err == nil {
		err = step.Whole(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind, object, err)
	}
	return nil
}

// errTaken is the end of a turn whose lease another process has.
var errTaken = errors.New("another process has taken the work over")

// take works on an item for a turn, and says in its row how that went.
func (r *Runner) take(ctx context.Context, it *item) {
	began := time.Now()
	done, err := r.work(ctx, it)
	took := time.Since(began)

	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	switch {
	case errors.Is(err, errTaken):
		r.log.Warn("background work went on elsewhere", "kind", it.kind.Name, "object", it.object)
		return
	case ctx.Err() != nil: // the process stops: another goes on at once
		err = r.release(ending, it, false, 0)
	case err != nil:
		r.log.Error("background work failed, will go on", "kind", it.kind.Name, "object", it.object, "error", err)
		err = r.fail(ending, it, err)
	case done.Gone:
		err = r.remove(ending, it)
	default:
		rest := time.Duration(it.kind.Rest) * took
		if done.Over {
			rest = max(rest, it.kind.Every)
		}
		err = r.release(ending, it, done.Over, rest)
	}
	if err != nil {
		r.log.Warn("background work keeps its lease until it ends", "kind", it.kind.Name, "object", it.object,
			"error", err)
	}
}

// work does steps until the pass or the turn ends, and keeps the lease meanwhile.
func (r *Runner) work(ctx context.Context, it *item) (done Progress, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var renewing sync.WaitGroup
	renewing.Go(func() { r.renew(ctx, it, cancel) })
	defer func() {
		cancel(nil)
		renewing.Wait()
		if errors.Is(context.Cause(ctx), errTaken) {
			err = errTaken
		}
	}()

	step, err := it.kind.Begin(ctx, it.object, it.now)
	if err != nil {
		return done, err
	}
	done.Position = it.position
	for end := time.Now().Add(turn); !done.Over && !done.Gone && time.Now().Before(end); {
		if done, err = step(ctx, done.Position); err != nil {
			return done, err
		}
		if err := r.save(ctx, it, done); err != nil {
			return done, err
		}
	}
	return done, nil
}

// renew renews the lease of an item until ctx ends.
func (r *Runner) renew(ctx context.Context, it *item, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := r.extend(ctx, it); errors.Is(err, errTaken) {
			cancel(err)
			return
		}
	}
}
