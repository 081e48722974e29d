package dispatcher

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/worker/protocol"
)

// The polls that wait in a process share its looks at the database: one loop looks for all of them, when it is woken
// and once a Poll, and wakes as many as there are tasks that they serve. So any number of idle workers costs one
// transaction a second.

// polls holds the polls that wait.
type polls struct {
	mu      sync.Mutex
	waiting []*poll         // in the order in which they came
	quiet   map[string]bool // the scopes for which the last look found nothing
}

// poll is one poll that waits.
type poll struct {
	Claimant
	scope   tasks.Scope
	key     string // of the scope
	max     int
	woken   chan struct{} // of capacity one
	drained chan struct{} // closed when the worker is to claim no more
}

// enter adds a poll, and reports whether the last look found nothing for it, so that it need not look itself.
func (p *polls) enter(w *poll) (quiet bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append(p.waiting, w)
	return p.quiet[w.key]
}

func (p *polls) leave(w *poll) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.waiting {
		if p.waiting[i] == w {
			p.waiting = append(p.waiting[:i:i], p.waiting[i+1:]...)
			return
		}
	}
}

// all returns the polls that wait.
func (p *polls) all() []*poll {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*poll(nil), p.waiting...)
}

// found wakes the polls whose scopes have tasks, as many as there are tasks.
func (p *polls) found(ready map[string]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quiet = make(map[string]bool, len(ready))
	for key, n := range ready {
		p.quiet[key] = n == 0
	}
	for _, w := range p.waiting {
		if ready[w.key] > 0 {
			ready[w.key] -= w.max
			wakeup.Poke(w.woken)
		}
	}
}

// PollTasks claims up to max tasks for a worker. If none is ready, it waits for one for as long as wait. It returns
// early, without tasks, when this server stops, and when somebody drains the worker or another process replaces it.
func (d *Dispatcher) PollTasks(
	ctx context.Context, c Claimant, max int, wait time.Duration,
) (protocol.PollResponse, error) {
	out := protocol.PollResponse{Tasks: []protocol.Claim{}}
	if err := goodWorkerID(c.WorkerID); err != nil {
		return out, err
	}

	scope := c.scope(d.Operators)
	w := &poll{Claimant: c, scope: scope, key: scope.Key(), max: max, woken: make(chan struct{}, 1),
		drained: make(chan struct{})}
	quiet := d.polls.enter(w) && wait > 0
	defer d.polls.leave(w)

	patience := time.NewTimer(wait)
	defer patience.Stop()
	if !quiet {
		drained, err := d.drainAsked(ctx, []*poll{w}, clock.Now())
		if err != nil || len(drained) > 0 {
			out.Drain = len(drained) > 0
			return out, err
		}
		wakeup.Poke(w.woken)
	}

	for {
		select {
		case <-w.woken:
		case <-w.drained:
			out.Drain = true
			return out, nil
		case <-patience.C:
			idle, err := d.IdleRuntimes(ctx, c.Worker, c.Runtimes, clock.Now())
			out.Idle = len(idle) > 0 && len(idle) == len(c.Runtimes)
			return out, err
		case <-d.stopping:
			return out, nil
		case <-ctx.Done():
			return out, nil // the worker is gone
		}

		claims, err := d.ClaimMany(ctx, c, max, clock.Now())
		if err != nil || len(claims) > 0 {
			out.Tasks = append(out.Tasks, claims...)
			return out, err
		}
	}
}

// watchPolls looks for tasks for the polls that wait, until ctx ends.
func (d *Dispatcher) watchPolls(ctx context.Context) error {
	for {
		woken := d.Wakeups.Claimable.Wait()
		if err := d.lookForPolls(ctx, clock.Now()); err != nil && ctx.Err() == nil {
			d.Log.Error("loop failed, will go on", "loop", "polls", "error", err)
		}

		again := time.NewTimer(wakeup.Jitter(d.Poll)) // a wake-up may be lost
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-woken:
		case <-again.C:
		}
		again.Stop()
	}
}

// lookForPolls makes one look for all polls that wait.
func (d *Dispatcher) lookForPolls(ctx context.Context, now time.Time) error {
	waiting := d.polls.all()
	if len(waiting) == 0 {
		d.polls.found(nil) // what was found for those that have left says nothing to those that come
		return nil
	}
	drained, err := d.drainAsked(ctx, waiting, now)
	if err != nil {
		return err
	}
	for _, w := range drained {
		close(w.drained)
		d.polls.leave(w)
	}

	scopes, most := map[string]tasks.Scope{}, map[string]int{}
	for _, w := range waiting {
		scopes[w.key] = w.scope
		most[w.key] += w.max
	}
	ready := make(map[string]int, len(scopes))
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		var b pg.Batch
		counts := make(map[string]*pg.Later[int], len(scopes))
		for key, scope := range scopes {
			counts[key] = tasks.CountReady(&b, scope, most[key])
		}
		for key, count := range counts {
			if ready[key], err = count.Get(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.polls.found(ready)
	return nil
}

// drainAsked counts polls as heartbeats of their workers, which it writes once a second at most, and returns those
// whose workers are to claim no more: somebody drains them, or another process has their name.
func (d *Dispatcher) drainAsked(ctx context.Context, waiting []*poll, now time.Time) (drained []*poll, err error) {
	n := len(waiting)
	ids, tokens, incarnations := make([]string, n), make([]string, n), make([]string, n)
	for i, w := range waiting {
		ids[i], tokens[i], incarnations[i] = w.WorkerID, tokenOf(w.Worker), w.Incarnation
	}

	rows, err := d.Pool.Query(ctx, `
		WITH polling AS (
			SELECT p.n, k.token, k.id, k.incarnation, k.last_heartbeat,
				k.drained_at IS NOT NULL OR k.replaced_at IS NOT NULL AS drained
			FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS p(id, token, incarnation, n)
			CROSS JOIN LATERAL (
				SELECT * FROM workers WHERE token = p.token AND id = p.id AND incarnation = p.incarnation LIMIT 1) AS k),
		due AS (
			SELECT w.ctid AS at FROM workers w JOIN (
				SELECT DISTINCT token, id, incarnation FROM polling
				WHERE last_heartbeat < $4::timestamptz - interval '1 second') AS p USING (token, id, incarnation)
			WHERE w.replaced_at IS NULL FOR UPDATE OF w SKIP LOCKED),
		heard AS (
			UPDATE workers w SET last_heartbeat = greatest(w.last_heartbeat, $4::timestamptz)
			FROM due WHERE w.ctid = due.at)
		SELECT n FROM polling WHERE drained`, ids, tokens, incarnations, now)
	if err != nil {
		return nil, fmt.Errorf("polls of %d workers: %w", len(waiting), err)
	}
	numbers, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, fmt.Errorf("polls of %d workers: %w", len(waiting), err)
	}
	for _, n := range numbers {
		drained = append(drained, waiting[n-1])
	}
	return drained, nil
}
