package pressure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// exceeds returns which threshold is passed, for people, or "". Pressure that is on lasts until both figures are at
// half of their thresholds.
func (t Thresholds) exceeds(p Pressure) string {
	share := int64(1)
	if p.On() {
		share = 2
	}
	switch {
	case t.MaxQueued > 0 && p.Queued*share > int64(t.MaxQueued):
		return fmt.Sprintf("%d tasks are queued", p.Queued)
	case t.MaxAge > 0 && p.Oldest*float64(share) > t.MaxAge.Seconds():
		return fmt.Sprintf("the next in line has waited for %s", (time.Duration(p.Oldest) * time.Second))
	}
	return ""
}

// refusesFrom returns the number of queued tasks from which on work is refused.
func (t Thresholds) refusesFrom() int64 {
	if t.RefuseAt > 0 {
		return int64(t.RefuseAt)
	}
	return 2 * int64(t.MaxQueued)
}

const (
	measureEvery = time.Second      // across all dispatchers
	measureShare = 20               // measuring takes at most one part in so many of the time
	retryAfter   = 30 * time.Second // when refused work may be sent again
)

// Review reads the state of the queue, and measures it if a measurement is due: one dispatcher measures for all.
func (g *Gauge) Review(ctx context.Context, now time.Time) (more bool, err error) {
	if g.thresholds == (Thresholds{}) {
		return false, nil
	}
	p, due, err := read(ctx, g.pool)
	if err != nil {
		return false, err
	}
	if !due.After(now) {
		if p, err = g.measure(ctx, p, now); err != nil {
			return false, err
		}
	}

	was := g.pressed.Swap(&p)
	switch wasOn := was != nil && was.On(); {
	case p.On() && !wasOn:
		g.log.Warn("sources, backfills and builds wait: too much is queued",
			"queued", p.Queued, "oldest_seconds", p.Oldest)
	case !p.On() && wasOn:
		g.log.Info("sources, backfills and builds go on", "queued", p.Queued, "oldest_seconds", p.Oldest)
		g.wake.Send(wakeup.Sources, wakeup.Build)
	}
	return false, nil
}

// rowQuerier is a pool or a transaction.
type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// read returns the last measurement, and when the next is due.
func read(ctx context.Context, q rowQuerier) (p Pressure, due time.Time, err error) {
	err = q.QueryRow(ctx, `SELECT since, queued, oldest_seconds, measured_at, due_at FROM backpressure`).
		Scan(&p.Since, &p.Queued, &p.Oldest, &p.At, &due)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return p, due, fmt.Errorf("read backpressure: %w", err)
	}
	return p, due, nil
}

// measure counts queued tasks, no further than it matters, and stores the result, unless another dispatcher stored a
// newer one meanwhile.
func (g *Gauge) measure(ctx context.Context, was Pressure, now time.Time) (Pressure, error) {
	began := time.Now()
	p := Pressure{Since: was.Since, At: now}
	if most := max(int64(g.thresholds.MaxQueued), g.thresholds.refusesFrom()) + 1; most > 1 {
		queued, err := g.countQueued(ctx, int(most), now)
		if err != nil {
			return p, err
		}
		p.Queued = queued
	}

	oldest, err := g.WaitOfNext(ctx, now)
	if err != nil {
		return p, err
	}
	p.Oldest = oldest.Seconds()

	switch why := g.thresholds.exceeds(p); {
	case why == "":
		p.Since = nil
	case p.Since == nil:
		p.Since = &now
	}

	next := now.Add(max(measureEvery, measureShare*time.Since(began)))
	_, err = g.pool.Exec(ctx, `
		INSERT INTO backpressure AS b (since, queued, oldest_seconds, measured_at, due_at) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (only_one) DO UPDATE
		SET since = EXCLUDED.since, queued = EXCLUDED.queued, oldest_seconds = EXCLUDED.oldest_seconds,
			measured_at = EXCLUDED.measured_at, due_at = EXCLUDED.due_at
		WHERE b.measured_at < EXCLUDED.measured_at`, p.Since, p.Queued, p.Oldest, now, next)
	if err != nil {
		return p, fmt.Errorf("note backpressure: %w", err)
	}
	return p, nil
}

// countQueued counts the tasks that are queued, up to most in each set. Ready tasks of a runtime that nobody serves do
// not count: holding producers back would not make them fewer.
func (g *Gauge) countQueued(ctx context.Context, most int, now time.Time) (queued int64, err error) {
	err = pg.InTx(ctx, g.pool, func(ctx context.Context, tx pgx.Tx) error {
		served, err := g.servedRuntimes(ctx, tx, now)
		if err != nil {
			return err
		}
		var b pg.Batch
		ready := tasks.CountReady(&b, tasks.Scope{Runtimes: served}, most)
		b.Query("count waiting tasks", []any{&queued}, func() error { return nil }, `
			SELECT count(*) FROM (SELECT FROM waiting WHERE reason IN ('limit', 'sibling') LIMIT $1) AS w`, most)
		n, err := ready.Get(ctx, tx)
		queued += int64(n)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("count what is queued: %w", err)
	}
	return queued, nil
}

// servedRuntimes returns the runtimes that functions and live workers and servers serve.
func (g *Gauge) servedRuntimes(ctx context.Context, tx pgx.Tx, now time.Time) ([]string, error) {
	rows, err := tx.Query(ctx, `
		SELECT unnest(runtimes) FROM workers WHERE last_heartbeat > $1 UNION SELECT unnest($2::text[])`,
		now.Add(-tasks.WorkerDeadAfter), g.functions)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// WaitOfNext returns how long the next task in line has been ready, in the queue where that is longest. A queue whose
// runtime nobody serves does not count: holding producers back would not help it. It reads one row of each queue.
func (g *Gauge) WaitOfNext(ctx context.Context, now time.Time) (longest time.Duration, err error) {
	if g.thresholds.MaxAge <= 0 {
		return 0, nil
	}

	err = pg.InTx(ctx, g.pool, func(ctx context.Context, tx pgx.Tx) error {
		longest = 0
		served, err := g.servedRuntimes(ctx, tx, now)
		if err != nil {
			return err
		}

		queues, _, err := tasks.QueuesReady(ctx, tx, tasks.Scope{Runtimes: served})
		if err != nil {
			return err
		}
		longest, err = waitIn(ctx, tx, queues, now)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find the next in line: %w", err)
	}
	return longest, nil
}

// waitIn returns how long the first task of each queue has been ready, the longest of them.
func waitIn(ctx context.Context, tx pgx.Tx, queues []tasks.Queue, now time.Time) (longest time.Duration, err error) {
	waits, err := tasks.Waits(ctx, tx, queues, now)
	for _, w := range waits {
		longest = max(longest, w)
	}
	return longest, err
}

// High reports whether the producers of all orgs have to wait.
func (g *Gauge) High() bool {
	p := g.pressed.Load()
	return p != nil && p.On()
}

// Holds reports whether an org's producers have to wait: all have to, or a quota of the org is used up.
func (g *Gauge) Holds(org uuid.UUID) bool { return g.High() || g.quotas.Holds(org) }

// Held returns the orgs whose producers have to wait although others' have not.
func (g *Gauge) Held() []uuid.UUID { return g.quotas.Held() }

// HasRoom returns an error if there is no room left for work that somebody hands over to an org.
func (g *Gauge) HasRoom(org uuid.UUID) error {
	if err := g.quotas.HasRoom(org, clock.Now()); err != nil {
		return err
	}
	p := g.pressed.Load()
	if p == nil || g.thresholds.MaxQueued == 0 && g.thresholds.RefuseAt == 0 || p.Queued < g.thresholds.refusesFrom() {
		return nil
	}
	return rest.RetryAfter(fault.New(fault.Unavailable, "too much is queued: %d tasks", p.Queued).
		WithHint("nothing was stored: send it again when Retry-After has passed"), retryAfter)
}

// Pressure returns the state of the queue, which every role may see.
func (g *Gauge) Pressure(ctx context.Context, caller authz.Caller) (p Pressure, err error) {
	err = pg.InOrgTx(ctx, g.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		p, err = Current(ctx, tx)
		return err
	})
	return p, err
}

// Current returns the state of the queue.
func Current(ctx context.Context, tx pgx.Tx) (Pressure, error) {
	p, _, err := read(ctx, tx)
	return p, err
}
