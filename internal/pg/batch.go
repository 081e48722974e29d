package pg

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Batch gathers statements of one transaction that go to the server together, in one round trip. They run one after the
// other, each on what the ones before it left, and none after the first that fails. The zero value is empty.
//
// A function that adds statements takes the batch as its first argument, and returns their answer as a Later.
type Batch struct {
	queued pgx.Batch
	trip   *trip // that the queued statements will make; nil: nobody waits for it
	asked  bool  // an answer is read, so the statements must not wait for COMMIT
}

// trip is one round trip of a batch.
type trip struct {
	over bool
	err  error
}

// Exec adds a statement; doing says in its error what it was for.
func (b *Batch) Exec(doing, sql string, args ...any) {
	b.count(doing, func(int) error { return nil }, sql, args...)
}

// Count adds a statement, and calls counted with the number of rows that it touched.
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

// Query adds a query, and calls each for every row after it scanned the columns into targets, as pgx.ForEachRow does.
// The caller returns what each fills in as a Later, see Answer.
func (b *Batch) Query(doing string, targets []any, each func() error, sql string, args ...any) {
	b.asked = true
	b.queued.Queue(sql, args...).Fn = func(results pgx.BatchResults) error {
		rows, _ := results.Query() // ForEachRow returns the error
		if _, err := pgx.ForEachRow(rows, targets, each); err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		return nil
	}
}

// Send runs the statements that were added since the last time, and waits for them.
func (b *Batch) Send(ctx context.Context, tx pgx.Tx) error {
	queued, trip := b.take()
	err := send(ctx, tx, queued)
	if trip != nil {
		trip.over, trip.err = true, err
	}
	return err
}

func send(ctx context.Context, tx pgx.Tx, queued pgx.Batch) error {
	if late, ok := tx.(*lateTx); ok {
		if last, _ := late.last.take(); last.Len() > 0 {
			queued.QueuedQueries = append(last.QueuedQueries, queued.QueuedQueries...)
		}
		return late.send(ctx, queued)
	}
	if queued.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, &queued).Close()
}

// SendLast leaves the statements to the end of the transaction of InTx that tx is: they share a round trip with its
// COMMIT, and InTx returns their error. Any statement that follows after all sends them before itself. Where an answer
// is read, SendLast is Send, because the answer could no longer keep the transaction from being committed.
func (b *Batch) SendLast(ctx context.Context, tx pgx.Tx) error {
	late, ok := tx.(*lateTx)
	if !ok || b.asked {
		return b.Send(ctx, tx)
	}
	queued, _ := b.take() // no Later waits for its trip: see asked
	late.last.queued.QueuedQueries = append(late.last.queued.QueuedQueries, queued.QueuedQueries...)
	return nil
}

// take empties the batch.
func (b *Batch) take() (pgx.Batch, *trip) {
	queued, trip := b.queued, b.trip
	*b = Batch{}
	return queued, trip
}
