package tasks

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
)

// PromoteFailed moves failed tasks back to Queued and returns how many it found. A task whose slot holds a queued
// sibling merges into it: the sibling reads everything that the task would have read. The caller holds the locks of the
// origins.
func (st *Store) PromoteFailed(
	ctx context.Context, tx pgx.Tx, where, actor string, now time.Time, args ...any,
) (int, error) {
	rows, err := tx.Query(ctx, `SELECT w.task_id, t.org_id, t.job_id, t.slot, t.runtime, t.needs, w.rank, t.limits
		FROM waiting w JOIN tasks t ON t.id = w.task_id
		WHERE w.task_id IN (SELECT task_id FROM waiting WHERE `+where+`) AND w.reason IN ('backoff', 'dead')
		ORDER BY w.rank, w.task_id FOR UPDATE OF w`, args...)
	if err != nil {
		return 0, fmt.Errorf("find failed tasks: %w", err)
	}
	due, err := CollectPlacements(rows)
	if err != nil || len(due) == 0 {
		return 0, err
	}

	placing, merged, err := CheckSlots(ctx, tx, due)
	if err != nil {
		return 0, err
	}

	back := TaskIDs(placing)
	if _, err := tx.Exec(ctx, `DELETE FROM waiting WHERE task_id = ANY($1)`, append(back, merged...)); err != nil {
		return 0, err
	}
	if err := requeueRows(ctx, tx, back, merged, actor, now); err != nil {
		return 0, err
	}
	return len(due), st.Place(ctx, tx, NewRoom(nil), placing, now)
}

// CheckSlots returns the tasks that may be queued for their slots, each with the running sibling it waits for, and the
// ids of those that may not, because another task is queued there.
func CheckSlots(ctx context.Context, tx pgx.Tx, tasks []Placement) (placing []Placement, taken []uuid.UUID, err error) {
	slots := make([]Slot, len(tasks))
	for i, p := range tasks {
		slots[i] = Slot{p.Origin, p.slot}
	}
	there, err := Occupied(new(pg.Batch), slots).Get(ctx, tx)
	if err != nil {
		return nil, nil, err
	}

	for _, p := range tasks {
		s := Slot{p.Origin, p.slot}
		if _, ok := there.queued[s]; ok {
			taken = append(taken, p.Task)
			continue
		}
		there.queued[s] = p.Task
		p.sibling = there.running[s]
		placing = append(placing, p)
	}
	return placing, taken, nil
}

// requeueRows writes the rows of failed tasks: those in back become Queued, those in merged Canceled.
func requeueRows(ctx context.Context, tx pgx.Tx, back, merged []uuid.UUID, actor string, now time.Time) error {
	_, err := tx.Exec(ctx, `
		WITH moved AS (
			UPDATE tasks SET status = CASE WHEN id = ANY($1) THEN 'Queued' ELSE 'Canceled' END,
				reason = CASE WHEN id = ANY($1) THEN reason ELSE 'merged' END,
				state = CASE WHEN id = ANY($1) THEN state
					ELSE 'another task of the same output was queued meanwhile' END,
				completed_at = CASE WHEN id = ANY($1) THEN NULL ELSE $4::timestamptz END,
				next_retry_at = NULL, version = version + 1
			WHERE id = ANY($1 || $2::uuid[]) AND status = 'Failed'
			RETURNING id, org_id, attempt, status, state)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, at)
		SELECT uuid_v7(), org_id, id, attempt, 'Failed', status, $3, state, $4 FROM moved`, back, merged, actor, now)
	if err != nil {
		return fmt.Errorf("requeue tasks: %w", err)
	}

	return nil
}

// EndDead ends the dead tasks of slots whose output partitions are up to date: nothing is left for them to do. Should
// their work be wanted again, Create takes them up again. What a person asked for is left to a person. The caller holds
// the locks of the origins. EndDead returns how many tasks it ended.
func (st *Store) EndDead(ctx context.Context, tx pgx.Tx, done []Slot, now time.Time) (n int64, err error) {
	if len(done) == 0 {
		return 0, nil
	}
	origins, slots := make([]uuid.UUID, len(done)), make([]string, len(done))
	for i, s := range done {
		origins[i], slots[i] = s.Origin, s.Key
	}

	// It relies on idx_waiting_slot, and locks in the order of ids, as Occupied does.
	tag, err := tx.Exec(ctx, `
		WITH dead AS (
			SELECT w.task_id FROM waiting w
			JOIN unnest($1::uuid[], $2::text[]) AS d(origin, slot) ON w.origin_job_id = d.origin AND w.slot = d.slot
			JOIN tasks t ON t.id = w.task_id AND t.kind IN ($3, $4, $5)
			WHERE w.reason = $6
			ORDER BY w.task_id FOR UPDATE OF w),
		gone AS (DELETE FROM waiting WHERE task_id IN (SELECT task_id FROM dead)),
		ended AS (
			UPDATE tasks SET status = $7, reason = $8, state = 'its partition is up to date by now',
				completed_at = $9::timestamptz, version = version + 1
			WHERE id IN (SELECT task_id FROM dead) AND status = $10
			RETURNING id, org_id, attempt, state)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, at)
		SELECT uuid_v7(), org_id, id, attempt, $10, $7, 'SYSTEM', state, $9 FROM ended`,
		origins, slots, KindReactive, KindBuild, KindSource, WaitDead, Canceled, ReasonSuperseded, now, Failed)
	if err != nil {
		return 0, fmt.Errorf("end dead tasks: %w", err)
	}
	return tag.RowsAffected(), nil
}
