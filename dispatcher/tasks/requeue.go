package tasks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
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

// Reopen lets PromoteFailed queue canceled tasks, too. The caller holds the locks of the origins and rows.
func (st *Store) Reopen(ctx context.Context, tx pgx.Tx, canceled []Row, now time.Time) error {
	var b pg.Batch
	for _, r := range canceled {
		setAside(&b, r, Ending{}, now)
	}
	return b.SendLast(ctx, tx)
}

// requeueRows writes the rows of failed and reopened tasks: those in back become Queued, those in merged Canceled.
func requeueRows(ctx context.Context, tx pgx.Tx, back, merged []uuid.UUID, actor string, now time.Time) error {
	_, err := tx.Exec(ctx, `
		WITH old AS MATERIALIZED (
			SELECT id, status AS was FROM tasks WHERE id = ANY($1 || $2::uuid[]) AND status IN ('Failed', 'Canceled')),
		moved AS (
			UPDATE tasks t SET status = CASE WHEN t.id = ANY($1) THEN 'Queued' ELSE 'Canceled' END,
				reason = CASE WHEN t.id = ANY($2) THEN 'merged' WHEN was = 'Failed' THEN reason END,
				state = CASE WHEN t.id = ANY($2) THEN 'another task of the same output was queued meanwhile' END,
				progress = CASE WHEN t.id = ANY($2) THEN progress ELSE 0 END, -- its attempts keep how far they came
				completed_at = CASE WHEN t.id = ANY($1) THEN NULL ELSE $4::timestamptz END,
				cancel_requested_at = CASE WHEN was = 'Failed' THEN cancel_requested_at END,
				next_retry_at = NULL, version = version + 1
			FROM old WHERE t.id = old.id AND t.status = was
			RETURNING t.id, org_id, attempt, was, status, state)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, at)
		SELECT uuid_v7(), org_id, id, attempt, was, status, $3, state, $4 FROM moved`, back, merged, actor, now)
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

	return endDead(ctx, tx, "its partition is up to date by now", now,
		`(w.origin_job_id, w.slot) IN (SELECT * FROM unnest($6::uuid[], $7::text[]))`,
		`t.kind IN ('reactive', 'build', 'source')`, origins, slots)
}

// EndUnlisted ends the dead tasks of units that a source does not list any more: what they were to read is gone. now is
// when the listing began: tasks that were made later may be of units that came since. What a person or a delivery asked
// for has no unit, and stays. The caller holds the lock of the origin. EndUnlisted returns how many tasks it ended.
func (st *Store) EndUnlisted(
	ctx context.Context, tx pgx.Tx, origin uuid.UUID, listed []string, now time.Time,
) (n int64, err error) {
	return endDead(ctx, tx, "what it was to read is not there any more: the file is gone", now,
		`w.origin_job_id = $6 AND NOT EXISTS (SELECT FROM unnest($7::text[]) AS l(slot) WHERE l.slot = w.slot)`,
		`t.kind IN ('build', 'source') AND starts_with(t.dedupe_key, '`+UnitPrefix+`') AND t.created_at < $4`,
		origin, listed)
}

// AwaitRetry returns those of an origin's slots whose task failed and waits for its retry.
func AwaitRetry(ctx context.Context, tx pgx.Tx, origin uuid.UUID, slots []string) (map[string]bool, error) {
	found := map[string]bool{}
	if len(slots) == 0 {
		return found, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT slot FROM waiting WHERE origin_job_id = $1 AND slot = ANY($2) AND reason = $3`, origin, slots,
		WaitBackoff)
	if err != nil {
		return nil, fmt.Errorf("find tasks that wait for a retry: %w", err)
	}
	var slot string
	_, err = pgx.ForEachRow(rows, []any{&slot}, func() error { found[slot] = true; return nil })
	return found, err
}

// IsOpen reports whether a slot has a task that is queued, that runs, or that waits for its retry.
func IsOpen(ctx context.Context, tx pgx.Tx, s Slot) (open bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM waiting WHERE origin_job_id = $1 AND slot = $2 AND reason <> $3)
		    OR EXISTS (SELECT FROM ready WHERE origin_job_id = $1 AND slot = $2)
		    OR EXISTS (SELECT FROM leases WHERE origin_job_id = $1 AND slot = $2)`, s.Origin, s.Key, WaitDead).Scan(&open)
	return open, fault.Wrap(err, "look for an open task")
}

// Failure is how a task failed that is dead or waits for its retry.
type Failure struct {
	Error string
	At    time.Time
}

// LastFailure returns the newest failure of a slot, nil if it has no failed task.
func LastFailure(ctx context.Context, tx pgx.Tx, s Slot) (*Failure, error) {
	rows, err := tx.Query(ctx, `
		SELECT coalesce(t.error_message, ''), coalesce(w.failed_at, t.created_at)
		FROM waiting w JOIN tasks t ON t.id = w.task_id
		WHERE w.origin_job_id = $1 AND w.slot = $2 AND w.reason IN ($3, $4)
		ORDER BY w.task_id DESC LIMIT 1`, s.Origin, s.Key, WaitDead, WaitBackoff)
	if err != nil {
		return nil, fmt.Errorf("find what failed last: %w", err)
	}
	found, err := pgx.CollectOneRow(rows, pgx.RowToAddrOfStructByPos[Failure])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return found, fault.Wrap(err, "find what failed last")
}

// DeadOrigins lists the origins of an org that have dead tasks.
func DeadOrigins(ctx context.Context, tx pgx.Tx, org uuid.UUID) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `SELECT DISTINCT origin_job_id FROM waiting WHERE org_id = $1 AND reason = $2`,
		org, WaitDead)
	if err != nil {
		return nil, fmt.Errorf("origins of dead tasks: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// EndUnwanted ends the dead tasks of origins that no version runs any more: nothing could be done about them. Should
// their work be wanted again, Create takes them up again. The caller holds the lock of their DAG.
func (st *Store) EndUnwanted(ctx context.Context, tx pgx.Tx, origins []uuid.UUID, now time.Time) error {
	if len(origins) == 0 {
		return nil
	}
	_, err := endDead(ctx, tx, "no version runs its definition any more", now, `w.origin_job_id = ANY($6)`, `true`,
		origins)
	return err
}

// UnitPrefix begins the dedupe keys of the tasks that read the units of a source.
const UnitPrefix = "source:"

// endDead ends the dead tasks that two conditions select, on row w of waiting and on its row t of tasks; their
// arguments begin with $6. It locks in the order of ids, as Occupied does.
//
// It relies on idx_waiting_slot: few tasks are dead, so they are found there, and each is looked up in tasks. A join
// with tasks, or IN there, leaves it to estimates which is read first, and once that was all tasks of all orgs.
func endDead(
	ctx context.Context, tx pgx.Tx, state string, now time.Time, waits, task string, args ...any,
) (n int64, err error) {
	tag, err := tx.Exec(ctx, `
		WITH dead AS (
			SELECT w.task_id FROM waiting w
			WHERE w.reason = '`+string(WaitDead)+`' AND `+waits+` AND (SELECT `+task+` FROM tasks t WHERE t.id = w.task_id)
			ORDER BY w.task_id FOR UPDATE),
		gone AS (DELETE FROM waiting WHERE task_id = ANY(ARRAY(SELECT task_id FROM dead))),
		ended AS (
			UPDATE tasks SET status = $1, reason = $2, state = $3, completed_at = $4::timestamptz, version = version + 1
			WHERE id = ANY(ARRAY(SELECT task_id FROM dead)) AND status = $5
			RETURNING id, org_id, attempt, state)
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, at)
		SELECT uuid_v7(), org_id, id, attempt, $5, $1, 'SYSTEM', state, $4 FROM ended`,
		append([]any{Canceled, ReasonSuperseded, state, now, Failed}, args...)...)
	if err != nil {
		return 0, fmt.Errorf("end dead tasks: %w", err)
	}
	return tag.RowsAffected(), nil
}
