package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
)

// Sweeps find what time has brought about: leases that ran out, retries that are due, workers that are gone. Each body
// is safe to run in every dispatcher at once, so none waits for a leader to be elected.

func ids(id uuid.UUID) []uuid.UUID { return []uuid.UUID{id} }

// sweepBatch bounds what one transaction of a sweep does.
const sweepBatch = 200

// reap takes back the leases that ran out, of tasks over their time, and of workers that are dead.
func (d *Dispatcher) reap(ctx context.Context, now time.Time) (more bool, err error) {
	rows, err := d.Pool.Query(ctx, `
		SELECT l.task_id, l.attempt, l.lease_token, CASE WHEN l.timeout_at + interval '5 seconds' <= $1 THEN 'timeout' ELSE 'lease_expired' END
		FROM leases l
		WHERE l.expires_at <= $1 OR l.timeout_at + interval '5 seconds' <= $1
		   OR EXISTS (SELECT FROM workers w WHERE w.id = l.worker_id AND w.last_heartbeat <= $2)
		LIMIT $3`, now, now.Add(-workerDeadAfter), sweepBatch)
	if err != nil {
		return false, fmt.Errorf("find lost leases: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[lostLease])
	if err != nil {
		return false, fmt.Errorf("find lost leases: %w", err)
	}
	if len(found) == 0 {
		return false, nil
	}
	err = d.reapAll(ctx, found, now)
	if err != nil && len(found) > 1 { // one of them may be the cause
		var failed []error
		for _, l := range found {
			failed = append(failed, d.reapAll(ctx, []lostLease{l}, now))
		}
		err = errors.Join(failed...)
	}
	d.wake.send(topicClaim, topicPromote, topicBuild)
	return len(found) == sweepBatch && err == nil, err
}

// lostLease is a lease that was found lost, and why.
type lostLease struct {
	Task    uuid.UUID
	Attempt int
	Token   uuid.UUID
	Reason  string
}

// reapAll ends attempts whose leases are lost, in one transaction. Token and expiry are looked at again inside the write: a
// heartbeat may have come in between. Attempt and token stay on the tasks, so that a completion that is merely late still
// counts. Locks are taken in the order of completions: tasks, then leases.
func (d *Dispatcher) reapAll(ctx context.Context, found []lostLease, now time.Time) error {
	tasks, attempts, tokens := make([]uuid.UUID, len(found)), make([]int, len(found)), make([]uuid.UUID, len(found))
	reasons := make(map[uuid.UUID]string, len(found))
	for i, l := range found {
		tasks[i], attempts[i], tokens[i] = l.Task, l.Attempt, l.Token
		reasons[l.Task] = l.Reason
	}
	return pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		var (
			b    pg.Batch
			id   uuid.UUID
			lost []uuid.UUID
		)
		rows := queueLockTasks(&b, tasks)
		b.Query("lock lost leases", []any{&id}, func() error {
			lost = append(lost, id)
			return nil
		}, `
			SELECT l.task_id FROM leases l
			JOIN unnest($1::uuid[], $2::int[], $3::uuid[]) AS w(task, attempt, token) ON l.task_id = w.task AND l.attempt = w.attempt AND l.lease_token = w.token
			WHERE l.expires_at <= $4 OR l.timeout_at <= $4 OR EXISTS (SELECT FROM workers w WHERE w.id = l.worker_id AND w.last_heartbeat <= $5)
			ORDER BY l.task_id FOR UPDATE OF l`, tasks, attempts, tokens, now, now.Add(-workerDeadAfter))
		if err := b.Send(ctx, tx); err != nil {
			return err
		}
		var origins []uuid.UUID
		for _, id := range lost {
			origins = append(origins, rows[id].job)
		}
		retries, err := d.retriesOf(ctx, tx, origins)
		if err != nil {
			return err
		}
		var endings []ended
		for _, id := range lost {
			row := rows[id]
			if row.status != "Running" {
				continue
			}
			e := ending{status: "Failed", reason: reasons[id], message: "the worker was not heard of in time", actor: "SYSTEM", failed: 1}
			if e.reason == reasonTimeout {
				e.message = errTimedOut.Error()
			}
			e.retryAt = failure(row, retries[row.job], true, 1, now, rand.Float64())
			endings = append(endings, ended{row, row.unlessCanceled(e)})
		}
		if len(endings) == 0 {
			return nil
		}
		return d.finishAll(ctx, tx, endings, now)
	})
}

// retriesOf tells the back-off of origins' jobs as they are now; those that nobody uses any more have the default.
func (d *Dispatcher) retriesOf(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) (map[uuid.UUID]dag.Retry, error) {
	acting, err := d.Registry.ActingJobs(ctx, tx, dedupeIDs(origins))
	retries := make(map[uuid.UUID]dag.Retry, len(acting))
	for origin, a := range acting {
		retries[origin] = a.Job.Def.Retry
	}
	return retries, err
}

// promoteDue makes tasks claimable whose time has come: retries after their back-off, and those with a run-at.
func (d *Dispatcher) promoteDue(ctx context.Context, now time.Time) (more bool, err error) {
	n := 0
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		n = 0
		rows, err := tx.Query(ctx, `SELECT DISTINCT job_id FROM (
			SELECT job_id FROM waiting WHERE available_at <= $1 AND reason IN ('backoff', 'run_at') ORDER BY available_at LIMIT $2) AS due`, now, sweepBatch)
		if err != nil {
			return err
		}
		origins, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil || len(origins) == 0 {
			return err
		}
		if err := lockOrigins(ctx, tx, origins); err != nil {
			return err
		}
		if _, err := d.promoteWhere(ctx, tx, now, `q.reason = 'run_at' AND q.available_at <= $1 AND q.job_id = ANY($2)`, now, origins); err != nil {
			return err
		}
		n, err = d.promoteFailed(ctx, tx, `reason = 'backoff' AND available_at <= $1 AND job_id = ANY($2)`, "SYSTEM", now, now, origins)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("promote due tasks: %w", err)
	}
	if n > 0 {
		d.wake.send(topicClaim)
	}
	return n >= sweepBatch, nil
}

// promoteFailed takes failed tasks back to Queued. One that meets a queued sibling for its slot merges into it: the
// sibling reads what it would have read, and more. The caller holds the locks of the origins.
func (d *Dispatcher) promoteFailed(ctx context.Context, tx pgx.Tx, where, actor string, now time.Time, args ...any) (int, error) {
	rows, err := tx.Query(ctx, `SELECT w.task_id, t.org_id, t.job_id, t.slot, t.runtime, t.needs, w.rank, t.limits
		FROM waiting w JOIN tasks t ON t.id = w.task_id
		WHERE w.task_id IN (SELECT task_id FROM waiting WHERE `+where+`) AND w.reason IN ('backoff', 'dead')
		ORDER BY w.rank, w.task_id FOR UPDATE OF w`, args...)
	if err != nil {
		return 0, fmt.Errorf("find failed tasks: %w", err)
	}
	due, err := collectPlacements(rows)
	if err != nil || len(due) == 0 {
		return 0, err
	}
	placing, merged, err := takeSlots(ctx, tx, due)
	if err != nil {
		return 0, err
	}
	back := make([]uuid.UUID, len(placing))
	for i, p := range placing {
		back[i] = p.task
	}
	if _, err := tx.Exec(ctx, `DELETE FROM waiting WHERE task_id = ANY($1)`, append(back, merged...)); err != nil {
		return 0, err
	}
	if err := requeueRows(ctx, tx, back, merged, actor, now); err != nil {
		return 0, err
	}
	return len(due), d.place(ctx, tx, placing, now)
}

// takeSlots tells which tasks may be queued for their slots, with the sibling they wait for, and which may not, because
// another is queued there.
func takeSlots(ctx context.Context, tx pgx.Tx, tasks []placement) (placing []placement, taken []uuid.UUID, err error) {
	slots := make([]slotOf, len(tasks))
	for i, p := range tasks {
		slots[i] = slotOf{p.job, p.slot}
	}
	there, err := occupied(ctx, tx, slots)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range tasks {
		s := slotOf{p.job, p.slot}
		if _, ok := there.queued[s]; ok {
			taken = append(taken, p.task)
			continue
		}
		there.queued[s] = p.task
		p.sibling = there.running[s]
		placing = append(placing, p)
	}
	return placing, taken, nil
}

func requeueRows(ctx context.Context, tx pgx.Tx, back, merged []uuid.UUID, actor string, now time.Time) error {
	_, err := tx.Exec(ctx, `
		WITH moved AS (
			UPDATE tasks SET status = CASE WHEN id = ANY($1) THEN 'Queued' ELSE 'Canceled' END,
				reason = CASE WHEN id = ANY($1) THEN reason ELSE 'merged' END,
				state = CASE WHEN id = ANY($1) THEN state ELSE 'another task of the same output was queued meanwhile' END,
				completed_at = CASE WHEN id = ANY($1) THEN NULL ELSE $4::timestamptz END, next_retry_at = NULL, version = version + 1
			WHERE id = ANY($1 || $2::uuid[]) AND status = 'Failed'
			RETURNING id, org_id, attempt, status, state)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, at)
		SELECT uuid_v7(), org_id, id, attempt, 'Failed', status, $3, state, $4 FROM moved`, back, merged, actor, now)
	if err != nil {
		return fmt.Errorf("requeue tasks: %w", err)
	}
	return nil
}
