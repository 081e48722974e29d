package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// outboxRow announces a change that was committed with it and still has a consequence to be drawn.
type outboxRow struct {
	ID       int64
	OrgID    uuid.UUID
	Payload  []byte
	Attempts int
}

// takeOutbox locks a batch of pending rows; other drainers pass over them. It relies on idx_outbox_pending.
func takeOutbox(ctx context.Context, tx pgx.Tx, kind string, limit int, now time.Time) ([]outboxRow, error) {
	rows, err := tx.Query(ctx, `
		SELECT id, org_id, payload, attempts FROM outbox
		WHERE status = 'Pending' AND available_at <= $2 AND kind = $1
		ORDER BY available_at, id LIMIT $3
		FOR UPDATE SKIP LOCKED`, kind, now, limit)
	if err != nil {
		return nil, fmt.Errorf("take outbox rows: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[outboxRow])
}

func takeOutboxRow(ctx context.Context, tx pgx.Tx, id int64) (bool, error) {
	tag, err := tx.Exec(ctx, `SELECT FROM outbox WHERE id = $1 AND status = 'Pending' FOR UPDATE SKIP LOCKED`, id)
	return tag.RowsAffected() == 1, err
}

func deleteOutbox(ctx context.Context, tx pgx.Tx, rows []outboxRow) error {
	_, err := tx.Exec(ctx, `DELETE FROM outbox WHERE id = ANY($1)`, outboxIDs(rows))
	return err
}

func outboxIDs(rows []outboxRow) []int64 {
	ids := make([]int64, len(rows))
	for i, r := range rows {
		ids[i] = r.ID
	}
	return ids
}

// The back-off of an outbox row: 1 s, doubled to 5 min; after 20 tries it is left for people to see.
const outboxTries = 20

// postpone has rows tried again later, and says why they failed.
func (d *Dispatcher) postpone(ctx context.Context, rows []outboxRow, cause error, now time.Time) error {
	if len(rows) == 0 {
		return cause
	}
	_, err := d.Pool.Exec(ctx, `
		UPDATE outbox SET attempts = attempts + 1, last_error = $2,
			available_at = $3::timestamptz + least(300, power(2, attempts)) * interval '1 second',
			status = CASE WHEN attempts + 1 >= $4 THEN 'Failed' ELSE 'Pending' END
		WHERE id = ANY($1) AND status = 'Pending'`, outboxIDs(rows), cause.Error(), now, outboxTries)
	if err != nil {
		return fmt.Errorf("postpone outbox rows after %w: %v", cause, err)
	}
	d.metrics.postponed.Add(float64(len(rows)))
	d.Log.Error("outbox row postponed", "rows", outboxIDs(rows), "error", cause)
	return nil
}
