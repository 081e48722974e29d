package pg

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Batch gathers statements of one transaction that go to the server together, in one round trip. They run one after the
// other, each on what the ones before it left, and none after the first that fails. The zero value is empty.
type Batch struct {
	queued pgx.Batch
	asked  bool // somebody hears the answers
}

// Exec adds a statement; doing says in its error what it was for.
func (b *Batch) Exec(doing, sql string, args ...any) {
	b.count(doing, func(int) error { return nil }, sql, args...)
}

// Count adds a statement, and has counted called with the number of rows that it touched.
func (b *Batch) Count(doing string, counted func(rows int) error, sql string, args ...any) {
	b.asked = true
	b.count(doing, counted, sql, args...)
}

func (b *Batch) count(doing string, counted func(rows int) error, sql string, args ...any) {
	b.queued.Queue(sql, args...).Fn = func(results pgx.BatchResults) error {
		tag, err := results.Exec()
		if err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		return counted(int(tag.RowsAffected()))
	}
}

// Query adds a query, and has each called for every row after its columns were scanned into targets, as pgx.ForEachRow does.
func (b *Batch) Query(doing string, targets []any, each func() error, sql string, args ...any) {
	b.asked = true
	b.queued.Queue(sql, args...).Fn = func(results pgx.BatchResults) error {
		rows, _ := results.Query() // ForEachRow tells of the error
		if _, err := pgx.ForEachRow(rows, targets, each); err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		return nil
	}
}

// Send runs what was added since the last time, and waits for it.
func (b *Batch) Send(ctx context.Context, tx pgx.Tx) error {
	queued := b.take()
	if late, ok := tx.(*lateTx); ok {
		if last := late.last.take(); last.Len() > 0 {
			queued.QueuedQueries = append(last.QueuedQueries, queued.QueuedQueries...)
		}
		return late.send(ctx, queued)
	}
	if queued.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, &queued).Close()
}

// SendLast has what was added run at the end of the transaction of InTx that tx is, in one round trip with its COMMIT; so
// what fails then is what InTx returns. Any statement that follows all the same sends it before itself. Where the answers
// are heard, it is Send: they could not keep the transaction from being committed.
func (b *Batch) SendLast(ctx context.Context, tx pgx.Tx) error {
	late, ok := tx.(*lateTx)
	if !ok || b.asked {
		return b.Send(ctx, tx)
	}
	queued := b.take()
	late.last.queued.QueuedQueries = append(late.last.queued.QueuedQueries, queued.QueuedQueries...)
	return nil
}

// take empties the batch.
func (b *Batch) take() pgx.Batch {
	queued := b.queued
	*b = Batch{}
	return queued
}
