package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// advanceBulkActions takes every bulk action as far as its rate allows now.
func (d *Dispatcher) advanceBulkActions(ctx context.Context, now time.Time) (more bool, err error) {
	rows, err := d.Pool.Query(ctx, `SELECT id FROM bulk_actions WHERE status = 'Running' ORDER BY id`)
	if err != nil {
		return false, fmt.Errorf("list bulk actions: %w", err)
	}
	running, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return false, fmt.Errorf("list bulk actions: %w", err)
	}
	var failed []error
	for _, id := range running {
		again, err := d.stepBulk(ctx, id, now)
		if err != nil {
			failed = append(failed, fmt.Errorf("bulk action %s: %w", id, err))
		}
		more = more || again
	}
	return more && len(failed) == 0, errors.Join(failed...)
}

// bulkStep is what one transaction of a bulk action does.
const bulkStep = 200

// stepBulk does a bulk action to its next tasks, in one transaction with the note that it did: a crash loses and repeats
// nothing. More tells that its rate allows more at once.
func (d *Dispatcher) stepBulk(ctx context.Context, id uuid.UUID, now time.Time) (more bool, err error) {
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		more = false
		var (
			org     uuid.UUID
			a       act
			rate    *float64
			pacedAt time.Time
		)
		err := tx.QueryRow(ctx, `SELECT org_id, verb, coalesce(reason, ''), created_by, rate, paced_at FROM bulk_actions
			WHERE id = $1 AND status = 'Running' FOR UPDATE SKIP LOCKED`, id).Scan(&org, &a.verb, &a.reason, &a.actor, &rate, &pacedAt)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // another dispatcher is at it, or it has ended
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
		tasks, err := takeBulk(ctx, tx, id, n)
		if err != nil {
			return err
		}
		done, refused, again, err := d.doSeveral(ctx, tx, a, org, tasks, now)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO bulk_action_tasks (bulk_action_id, org_id, task_id)
			SELECT $1, $2, t FROM unnest($3::uuid[]) AS t`, id, org, again); err != nil {
			return err
		}
		more = len(tasks) == n && len(again) == 0
		_, err = tx.Exec(ctx, `
			UPDATE bulk_actions b SET done = done + $2, refused = refused + $3, paced_at = $4,
				status = CASE WHEN left_over.n = 0 THEN 'Completed' ELSE status END, ended_at = CASE WHEN left_over.n = 0 THEN $5::timestamptz END
			FROM (SELECT count(*) AS n FROM (SELECT FROM bulk_action_tasks WHERE bulk_action_id = $1 LIMIT 1) AS one) AS left_over
			WHERE b.id = $1`, id, done, refused, pacedAt, now)
		return err
	})
	if err == nil {
		d.wake.send(d.progressed()...)
	}
	return more, err
}

// allowance is how many tasks a rate allows at now, where everything until pacedAt is used up, and until when it is used up
// then. What was not used for more than a second is lost: a rate is kept, never made up for. It is pure.
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

// doSeveral does a verb to tasks of an org, leaving out those that it is not about any more. Where it cannot be done to all
// at once, because one is just being claimed, it is done one by one, and that one is left for another time.
func (d *Dispatcher) doSeveral(ctx context.Context, tx pgx.Tx, a act, org uuid.UUID, tasks []uuid.UUID, now time.Time) (done, refused int, again []uuid.UUID, err error) {
	rows, err := lockSeveral(ctx, tx, org, tasks)
	if err != nil {
		return 0, 0, nil, err
	}
	able := slices.DeleteFunc(rows, func(r taskRow) bool { return a.refuses(r) != nil })
	refused = len(tasks) - len(able)
	inSavepoint := func(rows ...taskRow) error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return d.doTx(ctx, tx, a, rows, now) })
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
			again = append(again, r.id)
		default:
			return 0, 0, nil, err
		}
	}
	return done, refused, again, nil
}
