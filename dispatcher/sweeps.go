package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/pg"
)

// Sweeps act on what became due with time: leases that ran out, retries that are due, workers that were replaced. Every
// dispatcher may run each sweep at the same time, so none waits for a leader to be elected.

// sweepBatch is how many rows one transaction of a sweep takes at most.
const sweepBatch = 200

// contact knows since when this process reaches the database without a gap.
type contact struct {
	mu          sync.Mutex
	since, last time.Time
}

// contactGap is the longest time between two rounds after which holders may have been unable to renew their leases.
const contactGap = 5 * time.Second

// at returns since when there is contact, at a time of a look.
func (c *contact) at(now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.IsZero() || now.Sub(c.last) > contactGap {
		c.since = now
	}
	return c.since
}

// heard records a look that reached the database.
func (c *contact) heard(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = now
}

// took notes how long the database took to answer. Where it was longer than a gap, such as behind the lock of a table,
// nobody could renew a lease meanwhile: contact begins with the answer.
func (c *contact) took(began, ended time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ended.Sub(began) > contactGap {
		c.since = ended
	}
}

// regained returns when the contact began; zero: nobody has looked yet.
func (c *contact) regained() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since
}

// held is the SQL condition that a lease holds at a time, given since when there is contact: it has not run out, or its
// holder may still renew it after a gap.
func held(now, since string) string {
	return `(expires_at > ` + now + `::timestamptz
		OR ` + since + `::timestamptz + make_interval(secs => lease_seconds / 3.0) > ` + now + `)`
}

// reapInContact is the loop of Reap. After a start, and after a gap in which the database could not be reached, it lets
// holders renew their leases first: all had the same gap.
func (d *Dispatcher) reapInContact(ctx context.Context, now time.Time) (more bool, err error) {
	more, err = d.ReapSince(ctx, now, d.contact.at(now))
	if err == nil {
		ended := clock.Now() // a round may take long itself
		d.contact.took(now, ended)
		d.contact.heard(ended)
	}
	return more, err
}

// Reap ends the attempts whose leases ran out, whose tasks are over their timeout, and whose workers were replaced or
// have no valid token. A worker that is merely silent keeps its leases until they end.
func (d *Dispatcher) Reap(ctx context.Context, now time.Time) (more bool, err error) {
	return d.ReapSince(ctx, now, time.Time{})
}

// ReapSince is Reap for a process that has reached the database since a time without a gap. A lease that ran out ends
// only when its holder has had a heartbeat's period to renew it since.
func (d *Dispatcher) ReapSince(ctx context.Context, now, since time.Time) (more bool, err error) {
	rows, err := d.Pool.Query(ctx, `
		SELECT l.task_id, l.attempt, l.lease_token,
			CASE WHEN l.timeout_at + interval '5 seconds' <= $1 THEN 'timeout' ELSE 'lease_expired' END
		FROM leases l
		WHERE l.expires_at <= $1 AND $2::timestamptz + make_interval(secs => l.lease_seconds / 3.0) <= $1
		   OR l.timeout_at + interval '5 seconds' <= $1
		   OR EXISTS (SELECT FROM workers w WHERE `+tasks.HeldBy+` AND w.replaced_at IS NOT NULL)
		   OR l.worker_token IN (`+revokedTokens+`)
		LIMIT $3`, now, since, sweepBatch)
	if err != nil {
		return false, fmt.Errorf("find lost leases: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[LostLease])
	if err != nil {
		return false, fmt.Errorf("find lost leases: %w", err)
	}
	if len(found) == 0 {
		return false, nil
	}

	err = d.ReapAll(ctx, found, now)
	if err != nil && len(found) > 1 { // one of them may be the cause
		var failed []error
		for _, l := range found {
			failed = append(failed, d.ReapAll(ctx, []LostLease{l}, now))
		}
		err = errors.Join(failed...)
	}

	d.Wakeups.Send(wakeup.Claim, wakeup.Promote, wakeup.Build)
	return len(found) == sweepBatch && err == nil, err
}

// revokedTokens selects the revoked tokens of workers that have leases.
const revokedTokens = `
	SELECT held.worker_token FROM (SELECT DISTINCT worker_token FROM leases WHERE worker_token <> '') AS held
	WHERE worker_token_revoked(held.worker_token)`

// LostLease is a lease that a sweep found lost, with the reason.
type LostLease struct {
	Task    uuid.UUID
	Attempt int
	Token   uuid.UUID
	Reason  tasks.Reason
}

// ReapAll ends attempts whose leases are lost, in one transaction. It checks token and expiry again under the locks,
// because a heartbeat may have come in between. Attempt and token stay on the tasks, so that a completion that is
// merely late still counts. It takes locks in the order of completions: tasks, then leases.
func (d *Dispatcher) ReapAll(ctx context.Context, found []LostLease, now time.Time) error {
	list, attempts, tokens := make([]uuid.UUID, len(found)), make([]int, len(found)), make([]uuid.UUID, len(found))
	reasons := make(map[uuid.UUID]tasks.Reason, len(found))
	for i, l := range found {
		list[i], attempts[i], tokens[i] = l.Task, l.Attempt, l.Token
		reasons[l.Task] = l.Reason
	}

	return pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		var (
			b       pg.Batch
			id      uuid.UUID
			lost    []uuid.UUID
			noToken bool
			revoked = map[uuid.UUID]bool{}
		)
		locked := tasks.LockTasks(&b, list)
		b.Query("lock lost leases", []any{&id, &noToken}, func() error {
			lost, revoked[id] = append(lost, id), noToken
			return nil
		}, `
			SELECT l.task_id, worker_token_revoked(l.worker_token) FROM leases l
			JOIN unnest($1::uuid[], $2::int[], $3::uuid[]) AS w(task, attempt, token)
				ON l.task_id = w.task AND l.attempt = w.attempt AND l.lease_token = w.token
			WHERE l.expires_at <= $4 OR l.timeout_at <= $4
			   OR EXISTS (SELECT FROM workers w WHERE `+tasks.HeldBy+` AND w.replaced_at IS NOT NULL)
			   OR l.worker_token IN (`+revokedTokens+`)
			ORDER BY l.task_id FOR UPDATE OF l`, list, attempts, tokens, now)

		rows, err := locked.Get(ctx, tx)
		if err != nil {
			return err
		}

		var origins []uuid.UUID
		for _, id := range lost {
			origins = append(origins, rows[id].Origin)
		}
		retries, err := d.retriesOf(ctx, tx, origins)
		if err != nil {
			return err
		}

		var endings []tasks.Ended
		for _, id := range lost {
			row := rows[id]
			if row.Status != tasks.Running {
				continue
			}
			e := tasks.Ending{Status: tasks.Failed, Reason: reasons[id], Message: "the worker was not heard of in time",
				Actor: "SYSTEM", Failed: 1}
			if revoked[id] {
				e.Message = "the token of the worker was revoked"
			}
			if e.Reason == tasks.ReasonTimeout {
				e.Message = ErrTimedOut.Error()
			}
			e.RetryAt = tasks.RetryAfter(row, retries[row.Origin], true, 1, now, rand.Float64())
			endings = append(endings, tasks.Ended{Row: row, Ending: row.UnlessCanceled(e)})
		}

		if len(endings) == 0 {
			return nil
		}
		return d.Tasks.Finish(ctx, tx, new(pg.Batch), endings, nil, now)
	})
}

// retriesOf returns the retry rules of the jobs that act for origins. It leaves out origins that no version uses any
// more, for which the defaults hold.
func (d *Dispatcher) retriesOf(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) (map[uuid.UUID]dag.Retry, error) {
	acting, err := d.Registry.ActingJobs(ctx, tx, tasks.SortedIDs(origins))
	retries := make(map[uuid.UUID]dag.Retry, len(acting))
	for origin, a := range acting {
		retries[origin] = a.Job.Def.Retry
	}
	return retries, err
}

// PromoteDue makes tasks claimable that are due: retries after their back-off, and tasks with a run_at. One transaction
// moves sweepBatch of them at most, however many are due at one moment.
func (d *Dispatcher) PromoteDue(ctx context.Context, now time.Time) (more bool, err error) {
	n := 0
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		n = 0
		var due, origins []uuid.UUID
		err := tx.QueryRow(ctx, `
			SELECT coalesce(array_agg(task_id), '{}'), coalesce(array_agg(DISTINCT origin_job_id), '{}') FROM (
				SELECT task_id, origin_job_id FROM waiting
				WHERE available_at <= $1 AND reason IN ('backoff', 'run_at')
				ORDER BY available_at LIMIT $2) AS due`, now, sweepBatch).Scan(&due, &origins)
		if err != nil || len(due) == 0 {
			return err
		}
		if err := tasks.LockOrigins(ctx, tx, origins); err != nil {
			return err
		}

		// Another dispatcher may have moved some of them, or a worker may have taken one up and failed again.
		n = len(due)
		_, err = d.Tasks.PromoteWhere(ctx, tx, now,
			`q.task_id = ANY($1) AND q.reason = 'run_at' AND q.available_at <= $2`, due, now)
		if err != nil {
			return err
		}
		_, err = d.Tasks.PromoteFailed(ctx, tx,
			`task_id = ANY($1) AND reason = 'backoff' AND available_at <= $2`, "SYSTEM", now, due, now)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("promote due tasks: %w", err)
	}
	if n > 0 {
		d.Wakeups.Send(wakeup.Claim)
	}
	return n == sweepBatch, nil
}
