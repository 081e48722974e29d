package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// Backpressure: when too much is queued, or the next in line has waited too long, whatever brings more work waits, over all
// orgs, until the queue has shrunk to half of that: sources do not fire, backfills admit no partition, builds that need
// tasks make none. Nothing is lost by it, because each of these is made up for from what is stored: a source stays due, a
// backfill keeps its list, a build its pointers. What somebody hands over (a delivery, an enqueue) is taken as long as
// there is any room, and then refused with the time to try again: a sender that is told so keeps it, a full disk does not.
// What was admitted goes on to its end, tasks that follow from it included, so the queue empties by itself.

// Thresholds are from where on producers wait. Zero: never.
type Thresholds struct {
	MaxQueued int           // tasks that are ready, or wait for a limit or a sibling
	MaxAge    time.Duration // how long the next in line of a served runtime has been ready
	// RefuseAt is how many queued tasks make deliveries and enqueues be refused; default: twice MaxQueued.
	RefuseAt int
}

// Pressure is how the queue stands against its thresholds.
type Pressure struct {
	Since  *time.Time `json:"since,omitempty" doc:"When producers were made to wait; absent: they are not"`
	Queued int64      `json:"queued" doc:"Tasks of all orgs that were queued when it was last counted, as far as that went"`
	Oldest float64    `json:"oldest_seconds" doc:"How long the next in line has waited"`
	At     time.Time  `json:"measured_at"`
}

// on reports whether producers are to wait.
func (p Pressure) on() bool { return p.Since != nil }

// exceeds says which threshold is passed; empty: none. It is pure. Once it is on, it lasts until both are at half.
func (t Thresholds) exceeds(p Pressure) string {
	share := int64(1)
	if p.on() {
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

func (t Thresholds) refuseAt() int64 {
	if t.RefuseAt > 0 {
		return int64(t.RefuseAt)
	}
	return 2 * int64(t.MaxQueued)
}

const (
	pressureEvery = time.Second // how often it is measured, over all dispatchers
	pressureShare = 20          // one part in so many of the time at most goes to measuring
	pressedAgain  = 30 * time.Second
)

// reviewPressure learns how the queue stands, and measures it where that is due: one dispatcher does it for all.
func (d *Dispatcher) reviewPressure(ctx context.Context, now time.Time) (more bool, err error) {
	if d.Thresholds == (Thresholds{}) {
		return false, nil
	}
	p, due, err := readPressure(ctx, d.Pool)
	if err != nil {
		return false, err
	}
	if !due.After(now) {
		if p, err = d.measurePressure(ctx, p, now); err != nil {
			return false, err
		}
	}
	was := d.pressed.Swap(&p)
	if p.on() != (was != nil && was.on()) {
		if p.on() {
			d.Log.Warn("sources, backfills and builds wait: too much is queued", "queued", p.Queued, "oldest_seconds", p.Oldest)
		} else {
			d.Log.Info("sources, backfills and builds go on", "queued", p.Queued, "oldest_seconds", p.Oldest)
			d.wake.send(topicSources, topicBuild)
		}
	}
	return false, nil
}

type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func readPressure(ctx context.Context, q rowQuerier) (p Pressure, due time.Time, err error) {
	err = q.QueryRow(ctx, `SELECT since, queued, oldest_seconds, measured_at, due_at FROM backpressure`).Scan(&p.Since, &p.Queued, &p.Oldest, &p.At, &due)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return p, due, fmt.Errorf("read backpressure: %w", err)
	}
	return p, due, nil
}

// measurePressure counts, no further than it matters, and writes down what it found; another that did so meanwhile wins.
func (d *Dispatcher) measurePressure(ctx context.Context, was Pressure, now time.Time) (Pressure, error) {
	began := time.Now()
	p := Pressure{Since: was.Since, At: now}
	if most := max(int64(d.Thresholds.MaxQueued), d.Thresholds.refuseAt()) + 1; most > 1 {
		err := d.Pool.QueryRow(ctx, `SELECT
			(SELECT count(*) FROM (SELECT FROM ready LIMIT $1) AS r) +
			(SELECT count(*) FROM (SELECT FROM waiting WHERE reason IN ('limit', 'sibling') LIMIT $1) AS w)`, most).Scan(&p.Queued)
		if err != nil {
			return p, fmt.Errorf("count what is queued: %w", err)
		}
	}
	oldest, err := d.waitOfNext(ctx, now)
	if err != nil {
		return p, err
	}
	p.Oldest = oldest.Seconds()
	switch why := d.Thresholds.exceeds(p); {
	case why == "":
		p.Since = nil
	case p.Since == nil:
		p.Since = &now
	}
	next := now.Add(max(pressureEvery, pressureShare*time.Since(began)))
	_, err = d.Pool.Exec(ctx, `
		INSERT INTO backpressure AS b (since, queued, oldest_seconds, measured_at, due_at) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (only_one) DO UPDATE SET since = EXCLUDED.since, queued = EXCLUDED.queued, oldest_seconds = EXCLUDED.oldest_seconds,
			measured_at = EXCLUDED.measured_at, due_at = EXCLUDED.due_at
		WHERE b.measured_at < EXCLUDED.measured_at`, p.Since, p.Queued, p.Oldest, now, next)
	if err != nil {
		return p, fmt.Errorf("note backpressure: %w", err)
	}
	return p, nil
}

// waitOfNext is how long the next in line has been ready, in the queue where that is longest. A queue whose runtime nobody
// serves does not count: holding producers back would not help it. It looks at one row of each queue.
func (d *Dispatcher) waitOfNext(ctx context.Context, now time.Time) (longest time.Duration, err error) {
	if d.Thresholds.MaxAge <= 0 {
		return 0, nil
	}
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		longest = 0
		rows, err := tx.Query(ctx, `SELECT DISTINCT unnest(runtimes) FROM workers WHERE last_heartbeat > $1`, now.Add(-workerDeadAfter))
		if err != nil {
			return err
		}
		served, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		queues, _, err := queuesReady(ctx, tx, served)
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

func waitIn(ctx context.Context, tx pgx.Tx, queues []head, now time.Time) (longest time.Duration, err error) {
	orgs, runtimes := make([]uuid.UUID, len(queues)), make([]string, len(queues))
	for i, q := range queues {
		orgs[i], runtimes[i] = q.org, q.runtime
	}
	rows, err := tx.Query(ctx, `
		SELECT r.rank, t.priority, t.kind FROM unnest($1::uuid[], $2::text[]) AS h(org_id, runtime) CROSS JOIN LATERAL (
			SELECT q.task_id, q.rank FROM ready q WHERE q.runtime = h.runtime AND q.org_id = h.org_id
			ORDER BY q.runtime, q.org_id, q.rank, q.task_id LIMIT 1) AS r
		JOIN tasks t ON t.id = r.task_id`, orgs, runtimes)
	if err != nil {
		return 0, err
	}
	var (
		rank     int64
		priority int
		kind     string
	)
	_, err = pgx.ForEachRow(rows, []any{&rank, &priority, &kind}, func() error {
		// As rankOf made it, the other way round.
		placed := rank + int64(priority)*priorityWorth.Milliseconds() - int64(classOf(kind))*classWorth.Milliseconds()
		longest = max(longest, time.Duration(now.UnixMilli()-placed)*time.Millisecond)
		return nil
	})
	return longest, err
}

// underPressure tells producers to wait.
func (d *Dispatcher) underPressure() bool {
	p := d.pressed.Load()
	return p != nil && p.on()
}

// hasRoom refuses what somebody hands over when there is no room left for it.
func (d *Dispatcher) hasRoom() error {
	p := d.pressed.Load()
	if p == nil || d.Thresholds.MaxQueued == 0 && d.Thresholds.RefuseAt == 0 || p.Queued < d.Thresholds.refuseAt() {
		return nil
	}
	return rest.RetryAfter(fault.New(fault.Unavailable, "too much is queued: %d tasks", p.Queued).
		WithHint("nothing was stored: send it again when Retry-After has passed"), pressedAgain)
}

// Pressure tells anybody who works here how the queue stands.
func (d *Dispatcher) Pressure(ctx context.Context, caller authz.Caller) (p Pressure, err error) {
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		p, err = currentPressure(ctx, tx)
		return err
	})
	return p, err
}

func currentPressure(ctx context.Context, tx pgx.Tx) (Pressure, error) {
	p, _, err := readPressure(ctx, tx)
	return p, err
}
