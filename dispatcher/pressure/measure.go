package pressure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

const (
	measureEvery = time.Second // across all dispatchers
	measureShare = 20          // measuring takes at most one part in so many of the time
)

// Review reads the state of the queues, and measures them if a measurement is due: one dispatcher measures for all.
func (g *Gauge) Review(ctx context.Context, now time.Time) (more bool, err error) {
	if g.thresholds == (Thresholds{}) {
		return false, nil
	}
	queues, due, err := g.read(ctx)
	if err != nil {
		return false, err
	}
	if !due.After(now) {
		if queues, err = g.measure(ctx, queues, now); err != nil {
			return false, err
		}
	}

	dags, err := g.dagsOf(ctx, queues)
	if err != nil {
		return false, err
	}
	was := g.pressed.Swap(&pressed{queues, dags})
	g.tell(was.queues, queues)
	return false, nil
}

// tell logs what has begun and ended, and wakes those that may go on.
func (g *Gauge) tell(was, now map[tasks.OrgRuntime]Queued) {
	for of, q := range now {
		if q.On() && !was[of].On() {
			g.log.Warn("sources, backfills and builds wait: too much is queued", "org", of.Org, "runtime", of.Runtime,
				"queued", q.Queued, "oldest_seconds", q.Oldest)
		}
	}
	for of, q := range was {
		if q.On() && !now[of].On() {
			g.log.Info("sources, backfills and builds go on", "org", of.Org, "runtime", of.Runtime)
			g.wake.Send(wakeup.Sources, wakeup.Build)
		}
	}
}

// read returns the last measurement, and when the next is due.
func (g *Gauge) read(ctx context.Context) (queues map[tasks.OrgRuntime]Queued, due time.Time, err error) {
	queues = map[tasks.OrgRuntime]Queued{}
	rows, err := g.pool.Query(ctx, `
		SELECT b.due_at, o.org_id, o.runtime, o.since, o.queued, o.oldest_seconds
		FROM backpressure b LEFT JOIN org_backpressure o ON true`)
	if err != nil {
		return nil, due, fmt.Errorf("read backpressure: %w", err)
	}

	var (
		org     *uuid.UUID
		runtime *string
		since   *time.Time
		queued  *int64
		oldest  *float64
	)
	if _, err := pgx.ForEachRow(rows, []any{&due, &org, &runtime, &since, &queued, &oldest}, func() error {
		if org != nil {
			queues[tasks.OrgRuntime{Org: *org, Runtime: *runtime}] = Queued{*runtime, since, *queued, *oldest}
		}
		return nil
	}); err != nil {
		return nil, due, fmt.Errorf("read backpressure: %w", err)
	}
	return queues, due, nil
}

// measure counts queued tasks, no further than it matters, and stores the queues that are too long, unless another
// dispatcher stored a newer measurement meanwhile.
func (g *Gauge) measure(
	ctx context.Context, was map[tasks.OrgRuntime]Queued, now time.Time,
) (map[tasks.OrgRuntime]Queued, error) {
	began := time.Now()
	counts, waits, err := g.look(ctx, now)
	if err != nil {
		return nil, fmt.Errorf("measure what is queued: %w", err)
	}

	queues := map[tasks.OrgRuntime]Queued{}
	for of := range waits {
		counts[of] += 0 // it is looked at, too
	}
	for of, n := range counts {
		q := Queued{Runtime: of.Runtime, Since: was[of].Since, Queued: n, Oldest: waits[of].Seconds()}
		switch exceeds := g.thresholds.exceeds(q) != ""; {
		case !exceeds:
			q.Since = nil
		case q.Since == nil:
			q.Since = &now
		}
		if q.On() || g.thresholds.refuses(q) {
			queues[of] = q
		}
	}

	next := now.Add(max(measureEvery, measureShare*time.Since(began)))
	return queues, g.store(ctx, queues, now, next)
}

// look counts what is queued for the runtimes that somebody serves, and finds how long the next in line has waited.
// What is queued for others holds nobody back: that would not make it less.
func (g *Gauge) look(
	ctx context.Context, now time.Time,
) (counts map[tasks.OrgRuntime]int64, waits map[tasks.OrgRuntime]time.Duration, err error) {
	err = pg.InTx(ctx, g.pool, func(ctx context.Context, tx pgx.Tx) error {
		counts, waits = map[tasks.OrgRuntime]int64{}, map[tasks.OrgRuntime]time.Duration{}
		served, err := g.servedRuntimes(ctx, tx, now)
		if err != nil {
			return err
		}

		if most := max(int64(g.thresholds.MaxQueued), g.thresholds.refusesFrom()) + 1; most > 1 {
			if counts, err = tasks.CountQueued(ctx, tx, served, int(most)); err != nil {
				return err
			}
		}
		if g.thresholds.MaxAge > 0 {
			waits, err = waitsOf(ctx, tx, served, now)
		}
		return err
	})
	return counts, waits, err
}

// waitsOf returns how long the next task in line has been ready, the longest of each org and runtime. It reads one row
// of each queue.
func waitsOf(
	ctx context.Context, tx pgx.Tx, runtimes []string, now time.Time,
) (map[tasks.OrgRuntime]time.Duration, error) {
	queues, _, err := tasks.QueuesReady(ctx, tx, tasks.Scope{Runtimes: runtimes})
	if err != nil {
		return nil, err
	}
	each, err := tasks.Waits(ctx, tx, queues, now)
	if err != nil {
		return nil, err
	}

	waits := map[tasks.OrgRuntime]time.Duration{}
	for i, q := range queues {
		of := tasks.OrgRuntime{Org: q.Org, Runtime: q.Runtime}
		waits[of] = max(waits[of], each[i])
	}
	return waits, nil
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

// store stores a measurement, unless there is a newer one.
func (g *Gauge) store(ctx context.Context, queues map[tasks.OrgRuntime]Queued, now, due time.Time) error {
	var (
		orgs     []uuid.UUID
		runtimes []string
		since    []*time.Time
		queued   []int64
		oldest   []float64
		total    Pressure
	)
	for of, q := range queues {
		orgs, runtimes, since = append(orgs, of.Org), append(runtimes, of.Runtime), append(since, q.Since)
		queued, oldest = append(queued, q.Queued), append(oldest, q.Oldest)
		total.add(q)
	}

	_, err := g.pool.Exec(ctx, `
		WITH noted AS (
			INSERT INTO backpressure AS b (since, queued, oldest_seconds, measured_at, due_at) VALUES (NULL, $1, $2, $3, $4)
			ON CONFLICT (only_one) DO UPDATE
			SET since = NULL, queued = EXCLUDED.queued, oldest_seconds = EXCLUDED.oldest_seconds,
				measured_at = EXCLUDED.measured_at, due_at = EXCLUDED.due_at
			WHERE b.measured_at < EXCLUDED.measured_at
			RETURNING 1),
		w AS (
			SELECT * FROM unnest($5::uuid[], $6::text[], $7::timestamptz[], $8::bigint[], $9::float8[])
				AS w(org, runtime, since, queued, oldest)
			WHERE EXISTS (SELECT FROM noted)),
		gone AS (
			DELETE FROM org_backpressure o USING noted
			WHERE NOT EXISTS (SELECT FROM w WHERE w.org = o.org_id AND w.runtime = o.runtime))
		INSERT INTO org_backpressure (org_id, runtime, since, queued, oldest_seconds)
		SELECT org, runtime, since, queued, oldest FROM w
		ON CONFLICT (org_id, runtime) DO UPDATE
		SET since = EXCLUDED.since, queued = EXCLUDED.queued, oldest_seconds = EXCLUDED.oldest_seconds`,
		total.Queued, total.Oldest, now, due, orgs, runtimes, since, queued, oldest)
	if err != nil {
		return fmt.Errorf("note backpressure: %w", err)
	}
	return nil
}

// dagsOf returns the DAGs whose producers have to wait: those with jobs of a runtime of which too much is queued.
func (g *Gauge) dagsOf(
	ctx context.Context, queues map[tasks.OrgRuntime]Queued,
) (dags map[registry.DAGOf]bool, err error) {
	var orgs []uuid.UUID
	var runtimes []string
	for of, q := range queues {
		if q.On() {
			orgs, runtimes = append(orgs, of.Org), append(runtimes, of.Runtime)
		}
	}
	if len(orgs) == 0 {
		return nil, nil
	}

	err = pg.InTx(ctx, g.pool, func(ctx context.Context, tx pgx.Tx) error {
		found, err := registry.DAGsUsing(ctx, tx, orgs, runtimes)
		dags = make(map[registry.DAGOf]bool, len(found))
		for _, d := range found {
			dags[d] = true
		}
		return err
	})
	return dags, err
}

// Pressure returns the state of the org's queues, which every role may see.
func (g *Gauge) Pressure(ctx context.Context, caller authz.Caller) (p Pressure, err error) {
	err = pg.InOrgTx(ctx, g.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		p, err = Current(ctx, tx, caller.OrgID, "")
		return err
	})
	return p, err
}

// Current returns the state of an org's queues; with a DAG, of those for which it has jobs.
func Current(ctx context.Context, tx pgx.Tx, org uuid.UUID, dag string) (Pressure, error) {
	p := Pressure{Runtimes: []Queued{}}
	err := tx.QueryRow(ctx, `SELECT measured_at FROM backpressure`).Scan(&p.At)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, nil
	}
	if err != nil {
		return p, fmt.Errorf("read backpressure: %w", err)
	}

	rows, err := tx.Query(ctx, `
		SELECT runtime, since, queued, oldest_seconds FROM org_backpressure WHERE org_id = $1 ORDER BY runtime`, org)
	if err != nil {
		return p, fmt.Errorf("read backpressure: %w", err)
	}
	queues, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Queued])
	if err != nil {
		return p, fmt.Errorf("read backpressure: %w", err)
	}

	for _, q := range queues {
		uses := dag == ""
		if !uses {
			users, err := registry.DAGsUsing(ctx, tx, []uuid.UUID{org}, []string{q.Runtime})
			if err != nil {
				return p, err
			}
			uses = slices.Contains(users, registry.DAGOf{Org: org, Name: dag})
		}
		if uses {
			p.add(q)
		}
	}
	return p, nil
}
