package tasks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/clock"
)

// OutboxRow announces a change that was committed together with it and whose consequences are still to be drawn.
type OutboxRow struct {
	ID       int64
	OrgID    uuid.UUID
	Payload  []byte
	Attempts int
}

// TakeOutbox locks a batch of pending rows; other drainers pass over them. It relies on idx_outbox_pending.
func TakeOutbox(ctx context.Context, tx pgx.Tx, kind string, limit int, now time.Time) ([]OutboxRow, error) {
	rows, err := tx.Query(ctx, `
		SELECT id, org_id, payload, attempts FROM outbox
		WHERE status = 'Pending' AND available_at <= $2 AND kind = $1
		ORDER BY available_at, id LIMIT $3
		FOR UPDATE SKIP LOCKED`, kind, now, limit)
	if err != nil {
		return nil, fmt.Errorf("take outbox rows: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[OutboxRow])
}

// TakeOutboxRow locks one row and reports whether it is still pending and no other drainer holds it.
func TakeOutboxRow(ctx context.Context, tx pgx.Tx, id int64) (bool, error) {
	tag, err := tx.Exec(ctx, `SELECT FROM outbox WHERE id = $1 AND status = 'Pending' FOR UPDATE SKIP LOCKED`, id)
	return tag.RowsAffected() == 1, err
}

// DeleteOutbox removes rows whose consequences are drawn.
func DeleteOutbox(ctx context.Context, tx pgx.Tx, rows []OutboxRow) error {
	_, err := tx.Exec(ctx, `DELETE FROM outbox WHERE id = ANY($1)`, OutboxIDs(rows))
	return err
}

// OutboxIDs returns the ids of rows.
func OutboxIDs(rows []OutboxRow) []int64 {
	ids := make([]int64, len(rows))
	for i, r := range rows {
		ids[i] = r.ID
	}
	return ids
}

// Delivery says which rows of the outbox are sent to receivers outside.
type Delivery struct {
	Kind  string
	Orgs  []string      // by their slugs, whose rows are sent; nil: of all
	Lease time.Duration // a row that is not delivered by then is tried again: longer than a try takes
}

// deliveredAtOnce is how many rows of a delivery a process sends at once.
const deliveredAtOnce = 16

// Deliver sends a batch of rows, each at least once, and removes or postpones it. No transaction is open meanwhile: a
// receiver may take its time. A row that a process took and neither delivered nor postponed is tried again after its
// lease.
func (st *Store) Deliver(
	ctx context.Context, d Delivery, now time.Time, send func(context.Context, OutboxRow) error,
) (more bool, err error) {
	rows, err := st.pool.Query(ctx, `
		UPDATE outbox SET available_at = $2 WHERE id IN (
			SELECT id FROM outbox WHERE status = 'Pending' AND available_at <= $1 AND kind = $4
			  AND ($5::text[] IS NULL OR org_slug(org_id) = ANY($5))
			ORDER BY available_at, id LIMIT $3 FOR UPDATE SKIP LOCKED)
		RETURNING id, org_id, payload, attempts`, now, now.Add(d.Lease), deliveredAtOnce, d.Kind, d.Orgs)
	if err != nil {
		return false, fmt.Errorf("take outbox rows to deliver: %w", err)
	}
	taken, err := pgx.CollectRows(rows, pgx.RowToStructByPos[OutboxRow])
	if err != nil {
		return false, fmt.Errorf("take outbox rows to deliver: %w", err)
	}

	var wg sync.WaitGroup
	failed := make([]error, len(taken))
	for i, row := range taken {
		wg.Go(func() { failed[i] = st.deliver(ctx, row, send) })
	}
	wg.Wait()
	return len(taken) == deliveredAtOnce, errors.Join(failed...)
}

// deliver tries to send a row once.
func (st *Store) deliver(ctx context.Context, row OutboxRow, send func(context.Context, OutboxRow) error) error {
	err := send(ctx, row)
	if ctx.Err() != nil {
		return ctx.Err() // it is not the receiver's fault
	}
	if err != nil {
		return st.Postpone(ctx, []OutboxRow{row}, err, clock.Now())
	}
	return st.Delivered(ctx, row)
}

// Delivered removes a row that was sent.
func (st *Store) Delivered(ctx context.Context, row OutboxRow) error {
	if _, err := st.pool.Exec(ctx, `DELETE FROM outbox WHERE id = $1`, row.ID); err != nil {
		return fmt.Errorf("remove a delivered outbox row: %w", err)
	}
	return nil
}

// Sending is what is known of a message that no queue has taken yet.
type Sending struct {
	Tries int
	Cause string // of the last try
	Again time.Time
}

// Unsent returns the message of a task that its queue did not take when it was last asked; nil if there is none.
func Unsent(ctx context.Context, tx pgx.Tx, task uuid.UUID) (*Sending, error) {
	var s Sending
	err := tx.QueryRow(ctx, `
		SELECT attempts, coalesce(last_error, ''), available_at FROM outbox
		WHERE kind = 'enqueue_task' AND payload->>'task_id' = $1::text AND attempts > 0`, task).
		Scan(&s.Tries, &s.Cause, &s.Again)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("message of task %s: %w", task, err)
	}
	return &s, nil
}

// OutboxTries is how often an outbox row is tried before it is left for people to see. Between tries it backs off: 1 s,
// doubling up to 5 min.
const OutboxTries = 20

// Postpone schedules rows for another try later and records why they failed. Without rows it returns the cause.
func (st *Store) Postpone(ctx context.Context, rows []OutboxRow, cause error, now time.Time) error {
	if len(rows) == 0 {
		return cause
	}
	_, err := st.pool.Exec(ctx, `
		UPDATE outbox SET attempts = attempts + 1, last_error = $2,
			available_at = $3::timestamptz + least(300, power(2, attempts)) * interval '1 second',
			status = CASE WHEN attempts + 1 >= $4 THEN 'Failed' ELSE 'Pending' END
		WHERE id = ANY($1) AND status = 'Pending'`, OutboxIDs(rows), cause.Error(), now, OutboxTries)
	if err != nil {
		return fmt.Errorf("postpone outbox rows after %w: %v", cause, err)
	}
	st.metrics.Postponed.Add(float64(len(rows)))
	st.log.Error("outbox row postponed", "rows", OutboxIDs(rows), "error", cause)
	return nil
}
