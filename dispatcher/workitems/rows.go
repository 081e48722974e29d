package workitems

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/pg"
)

// Add makes items that do not exist yet.
func (r *Runner) Add(ctx context.Context, kind string, objects []string) error {
	_, err := r.pool.Exec(ctx, `
		INSERT INTO work_items (kind, object) SELECT $1, unnest($2::text[]) ORDER BY 2 ON CONFLICT DO NOTHING`,
		kind, objects)
	if err != nil {
		return fmt.Errorf("make items of %s: %w", kind, err)
	}
	return nil
}

// Ask asks for a whole pass of items that exist only while there is something to do. One that is under way is followed
// by another pass.
func Ask(b *pg.Batch, kind string, objects []string) {
	b.Exec("ask for "+kind, `
		INSERT INTO work_items AS w (kind, object) SELECT DISTINCT $1, unnest($2::text[]) ORDER BY 2
		ON CONFLICT (kind, object) DO UPDATE SET again = w.began_at IS NOT NULL`, kind, objects)
}

// makeItems makes the items that always exist, once.
func (r *Runner) makeItems(ctx context.Context) error {
	if r.made {
		return nil
	}
	for _, k := range r.kinds {
		if err := r.Add(ctx, k.Name, k.Objects); err != nil {
			return err
		}
	}
	r.made = true
	return nil
}

// claim leases the item of some kinds that has been due longest; nil: there is none.
func (r *Runner) claim(ctx context.Context, kinds []Kind) (*item, error) {
	if len(kinds) == 0 {
		return nil, nil
	}
	names, whole := make([]string, len(kinds)), make([]float64, len(kinds))
	for i, k := range kinds {
		names[i], whole[i] = k.Name, k.Whole.Seconds()
	}

	it := &item{token: uuid.New()}
	var name string
	err := r.pool.QueryRow(ctx, `
		WITH due AS (
			SELECT w.kind, w.object, k.whole FROM work_items w
			JOIN unnest($1::text[], $2::float8[]) AS k(name, whole) ON k.name = w.kind
			WHERE w.due_at <= clock_timestamp() AND coalesce(w.leased_until <= clock_timestamp(), true)
			ORDER BY w.due_at LIMIT 1 FOR UPDATE OF w SKIP LOCKED),
		taken AS (
			SELECT w.kind, w.object, w.began_at IS NULL AS fresh,
				w.began_at IS NULL AND coalesce(w.whole_at + make_interval(secs => d.whole) <= clock_timestamp(), true)
				AS whole
			FROM work_items w JOIN due d ON d.kind = w.kind AND d.object = w.object)
		UPDATE work_items w SET lease_token = $3, leased_until = clock_timestamp() + make_interval(secs => $4),
			began_at = CASE WHEN t.fresh THEN clock_timestamp() ELSE w.began_at END,
			whole_at = CASE WHEN t.whole THEN clock_timestamp() ELSE w.whole_at END,
			position = CASE WHEN t.whole THEN '' ELSE w.position END
		FROM taken t WHERE w.kind = t.kind AND w.object = t.object
		RETURNING w.kind, w.object, w.position, clock_timestamp()`,
		names, whole, it.token, lease.Seconds()).Scan(&name, &it.object, &it.position, &it.now)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claim background work: %w", err)
	}

	it.kind = kinds[slices.Index(names, name)]
	return it, nil
}

// own is the SQL condition that an item's lease is still that of its process; its arguments are first in a statement.
const own = ` WHERE kind = $1 AND object = $2 AND lease_token = $3`

// change runs an UPDATE of an item's row, which ends before the condition, under its lease.
func (r *Runner) change(ctx context.Context, it *item, update string, args ...any) error {
	tag, err := r.pool.Exec(ctx, update+own, append([]any{it.kind.Name, it.object, it.token}, args...)...)
	if err != nil {
		return fmt.Errorf("note background work: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return errTaken
	}
	return nil
}

// extend renews the lease.
func (r *Runner) extend(ctx context.Context, it *item) error {
	return r.change(ctx, it,
		`UPDATE work_items SET leased_until = clock_timestamp() + make_interval(secs => $4)`, lease.Seconds())
}

// save notes what a step has done, and renews the lease.
func (r *Runner) save(ctx context.Context, it *item, done Progress) error {
	return r.change(ctx, it, `
		UPDATE work_items SET position = $4, rows = rows + $5, failures = 0, error = NULL,
			leased_until = clock_timestamp() + make_interval(secs => $6)`,
		done.Position, done.Rows, lease.Seconds())
}

// release ends a turn, and makes the item due after a rest.
func (r *Runner) release(ctx context.Context, it *item, over bool, rest time.Duration) error {
	return r.change(ctx, it, `
		UPDATE work_items SET lease_token = NULL, leased_until = NULL,
			due_at = clock_timestamp() + make_interval(secs => CASE WHEN $5 AND again THEN 0 ELSE $4 END),
			began_at = CASE WHEN $5 THEN NULL ELSE began_at END,
			again = again AND NOT $5,
			ended_at = CASE WHEN $5 THEN clock_timestamp() ELSE ended_at END`, rest.Seconds(), over)
}

// fail ends a turn that failed. The item goes on from its position after a wait that doubles each time.
func (r *Runner) fail(ctx context.Context, it *item, failure error) error {
	return r.change(ctx, it, `
		UPDATE work_items SET lease_token = NULL, leased_until = NULL, failures = failures + 1, error = $4,
			due_at = clock_timestamp() + make_interval(secs => least(2.0 ^ least(failures, 30), $5))`,
		failure.Error(), mostBackoff.Seconds())
}

// remove removes an item that is not needed any more. One that was asked for again begins anew.
func (r *Runner) remove(ctx context.Context, it *item) error {
	return pg.InTx(ctx, r.pool, func(ctx context.Context, tx pgx.Tx) error {
		var again bool
		err := tx.QueryRow(ctx, `SELECT again FROM work_items`+own+` FOR UPDATE`, it.kind.Name, it.object, it.token).
			Scan(&again)
		if errors.Is(err, pgx.ErrNoRows) {
			return errTaken
		}
		if err != nil {
			return fmt.Errorf("end background work: %w", err)
		}

		end := `DELETE FROM work_items`
		if again {
			end = `UPDATE work_items SET lease_token = NULL, leased_until = NULL, due_at = clock_timestamp(),
				began_at = NULL, again = false`
		}
		if _, err := tx.Exec(ctx, end+own, it.kind.Name, it.object, it.token); err != nil {
			return fmt.Errorf("end background work: %w", err)
		}
		return nil
	})
}

// Failing is an item whose last turns failed.
type Failing struct {
	Kind, Object string
	Failures     int
	Error        string
	DueAt        time.Time
}

// ListFailing returns the items whose last turns failed, at most some, the worst first.
func ListFailing(ctx context.Context, pool *pgxpool.Pool, most int) ([]Failing, error) {
	rows, err := pool.Query(ctx, `
		SELECT kind, object, failures, error, due_at FROM work_items WHERE failures > 0
		ORDER BY failures DESC, kind, object LIMIT $1`, most)
	if err != nil {
		return nil, fmt.Errorf("list failing background work: %w", err)
	}
	failing, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Failing])
	if err != nil {
		return nil, fmt.Errorf("list failing background work: %w", err)
	}
	return failing, nil
}
