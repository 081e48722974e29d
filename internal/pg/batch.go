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
}

// Exec adds a statement; doing says in its error what it was for.
func (b *Batch) Exec(doing, sql string, args ...any) {
	b.Count(doing, func(int) error { return nil }, sql, args...)
}

// Count adds a statement, and has counted called with the number of rows that it touched.
func (b *Batch) Count(doing string, counted func(rows int) error, sql string, args ...any) {
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
	if b.queued.Len() == 0 {
		return nil
	}
	queued := b.queued
	b.queued = pgx.Batch{}
	return tx.SendBatch(ctx, &queued).Close()
}
