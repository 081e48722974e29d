package control

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// AdvanceBulkActions does the next step of every bulk action whose rate allows it now.
func (ctl *Control) AdvanceBulkActions(ctx context.Context, now time.Time) (more bool, err error) {
	rows, err := ctl.pool.Query(ctx, `SELECT id FROM bulk_actions WHERE status = 'Running' ORDER BY id`)
	if err != nil {
		return false, fmt.Errorf("list bulk actions: %w", err)
	}
	running, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return false, fmt.Errorf("list bulk actions: %w", err)
	}

	var failed []error
	for _, id := range running {
		again, err := ctl.stepBulk(ctx, id, now)
		if err != nil {
			failed = append(failed, fmt.Errorf("bulk action %s: %w", id, err))
		}
		more = more || again
	}
	return more && len(failed) == 0, errors.Join(failed...)
}

// bulkStep is how many tasks one transaction of a bulk action handles at most.
const bulkStep = 200

// stepBulk does a bulk action to its next tasks and records that in the same transaction: a crash loses and repeats
// nothing. It reports whether more tasks are left and may follow at once.
func (ctl *Control) stepBulk(ctx context.Context, id uuid.UUID, now time.Time) (more bool, err error) {
	err = pg.InTx(ctx, ctl.pool, func(ctx context.Context, tx pgx.Tx) error {
		more = false
		var (
			org     uuid.UUID
			a       Act
			rate    *float64
			pacedAt time.Time
		)
		err := tx.QueryRow(ctx, `
			SELECT org_id, verb, coalesce(reason, ''), created_by, rate, paced_at FROM bulk_actions
			WHERE id = $1 AND status = 'Running' FOR UPDATE SKIP LOCKED`, id).
			Scan(&org, &a.Verb, &a.Reason, &a.actor, &rate, &pacedAt)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // another dispatcher is working on it, or it has ended
		}
		if err != nil {
			return err
		}

		n := bulkStep
		if rate != nil {
			if n, pacedAt = allowance(*rate, pacedAt, now); n == 0 {
				return nil
			}
		}

		taken, err := takeBulk(ctx, tx, id, n)
		if err != nil {
			return err
		}
		done, refused, again, err := ctl.doSeveral(ctx, tx, a, org, taken, now)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO bulk_action_tasks (bulk_action_id, org_id, task_id)
			SELECT $1, $2, t FROM unnest($3::uuid[]) AS t`, id, org, again); err != nil {
			return err
		}

		more = len(taken) == n && len(again) == 0
		_, err = tx.Exec(ctx, `
			UPDATE bulk_actions b SET done = done + $2, refused = refused + $3, paced_at = $4,
				status = CASE WHEN left_over.n = 0 THEN 'Completed' ELSE status END,
				ended_at = CASE WHEN left_over.n = 0 THEN $5::timestamptz END
			FROM (SELECT count(*) AS n
			      FROM (SELECT FROM bulk_action_tasks WHERE bulk_action_id = $1 LIMIT 1) AS one) AS left_over
			WHERE b.id = $1`, id, done, refused, pacedAt, now)
		return err
	})
	if err == nil {
		ctl.wake.Send(ctl.dispatcher.Progressed()...)
	}
	return more, err
}

// allowance returns how many tasks a rate, in tasks a second, allows at now if everything until pacedAt is used up, and
// the new pacedAt. An allowance that is not used within a second, or within the time of one task, is lost: a rate is
// kept, never made up for.
func allowance(rate float64, pacedAt, now time.Time) (int, time.Time) {
	if earliest := now.Add(-time.Duration(math.Max(1, 1/rate) * float64(time.Second))); pacedAt.Before(earliest) {
		pacedAt = earliest
	}
	n := int(rate*now.Sub(pacedAt).Seconds() + 1e-6)
	n = min(n, bulkStep)
	if n <= 0 {
		return 0, pacedAt
	}
	return n, pacedAt.Add(time.Duration(float64(n) / rate * float64(time.Second)))
}

// takeBulk removes the next n tasks of a bulk action from its list, and returns them.
func takeBulk(ctx context.Context, tx pgx.Tx, id uuid.UUID, n int) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		DELETE FROM bulk_action_tasks WHERE bulk_action_id = $1 AND task_id IN (
			SELECT task_id FROM bulk_action_tasks WHERE bulk_action_id = $1 ORDER BY task_id LIMIT $2)
		RETURNING task_id`, id, n)
	if err != nil {
		return nil, fmt.Errorf("next tasks: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// doSeveral does a verb to tasks of an org, and counts as refused those that it no longer applies to. If a task is
// being claimed at that moment, doSeveral does the verb one by one, and returns the tasks to try again.
func (ctl *Control) doSeveral(
	ctx context.Context, tx pgx.Tx, a Act, org uuid.UUID, list []uuid.UUID, now time.Time,
) (done, refused int, again []uuid.UUID, err error) {
	rows, err := lockSeveral(ctx, tx, org, list)
	if err != nil {
		return 0, 0, nil, err
	}

	inWork, err := a.inWork(ctx, tx, rows...)
	if err != nil {
		return 0, 0, nil, err
	}
	able := slices.DeleteFunc(rows, func(r tasks.Row) bool { return a.refuses(r, inWork) != nil })
	refused = len(list) - len(able)

	inSavepoint := func(rows ...tasks.Row) error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return ctl.doTx(ctx, tx, a, rows, now) })
	}
	err = inSavepoint(able...)
	if err == nil || !fault.Is(err, fault.Conflict) {
		return len(able), refused, nil, err
	}

	for _, r := range able {
		switch err := inSavepoint(r); {
		case err == nil:
			done++
		case fault.Is(err, fault.Conflict):
			again = append(again, r.ID)
		default:
			return 0, 0, nil, err
		}
	}
	return done, refused, again, nil
}
