package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// once runs fn in one transaction. Where fn uses a Batch, BEGIN and COMMIT take no round trips of their own.
func once(ctx context.Context, pool *pgxpool.Pool, options pgx.TxOptions, fn func(tx pgx.Tx) error) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	tx := &lateTx{conn: conn.Conn(), options: options}
	defer func() { _ = tx.Rollback(ctx) }() // does nothing after COMMIT; if it fails itself, the connection is given up
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// lateTx is a transaction that begins with its first statement, together with that if it is a Batch, and whose last
// statements may go together with its COMMIT.
type lateTx struct {
	pgx.Tx    // nil until it has begun
	conn      *pgx.Conn
	options   pgx.TxOptions
	last      Batch // goes with COMMIT
	committed bool
}

// start begins the transaction if nothing has yet, and sends what was to go with COMMIT: it is not the last after all.
func (t *lateTx) start(ctx context.Context) (err error) {
	last, _ := t.last.take()
	if t.Tx == nil && last.Len() == 0 {
		if t.Tx, err = t.conn.BeginTx(ctx, t.options); err != nil {
			t.Tx = nil
			return err
		}
	}
	return t.send(ctx, last)
}

// send runs queued statements, with BEGIN if they are the first.
func (t *lateTx) send(ctx context.Context, queued pgx.Batch) error {
	if queued.Len() == 0 {
		return nil
	}
	if t.Tx != nil {
		return t.Tx.SendBatch(ctx, &queued).Close()
	}
	var all pgx.Batch
	all.BeginTx(t.options)
	all.QueuedQueries = append(all.QueuedQueries, queued.QueuedQueries...)
	results := t.conn.SendBatch(ctx, &all)
	t.Tx = results.Tx()
	return results.Close()
}

// Commit sends COMMIT, with what was to go with it. Of statements that are sent together PostgreSQL runs none after one
// that fails, so it commits all of them or nothing.
func (t *lateTx) Commit(ctx context.Context) error {
	last, _ := t.last.take()
	if last.Len() == 0 {
		if t.Tx == nil {
			return nil
		}
		return t.Tx.Commit(ctx)
	}

	var tag pgconn.CommandTag
	last.Queue("commit").Exec(func(said pgconn.CommandTag) error { tag = said; return nil })
	if err := t.send(ctx, last); err != nil {
		return err
	}
	t.committed = true
	if tag.String() == "ROLLBACK" {
		return pgx.ErrTxCommitRollback
	}
	return nil
}

// Rollback ends the transaction unless it is over.
func (t *lateTx) Rollback(ctx context.Context) error {
	if t.Tx == nil || t.committed {
		return nil
	}
	return t.Tx.Rollback(ctx)
}

// Conn is the connection, on which the transaction has begun.
func (t *lateTx) Conn() *pgx.Conn { return t.conn }

// Begin makes a savepoint.
func (t *lateTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.start(ctx); err != nil {
		return nil, err
	}
	return t.Tx.Begin(ctx)
}

// Exec is pgx's.
func (t *lateTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.start(ctx); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.Tx.Exec(ctx, sql, args...)
}

// Query is pgx's.
func (t *lateTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.start(ctx); err != nil {
		return failed{err: err}, err
	}
	return t.Tx.Query(ctx, sql, args...)
}

// QueryRow is pgx's.
func (t *lateTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.start(ctx); err != nil {
		return failed{err: err}
	}
	return t.Tx.QueryRow(ctx, sql, args...)
}

// SendBatch is pgx's.
func (t *lateTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.start(ctx); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return t.Tx.SendBatch(ctx, b)
}

// CopyFrom is pgx's.
func (t *lateTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string,
	rows pgx.CopyFromSource) (int64, error) {
	if err := t.start(ctx); err != nil {
		return 0, err
	}
	return t.Tx.CopyFrom(ctx, table, columns, rows)
}

// Prepare is pgx's.
func (t *lateTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.start(ctx); err != nil {
		return nil, err
	}
	return t.Tx.Prepare(ctx, name, sql)
}

// failed are the rows of a query that was not sent.
type failed struct {
	pgx.Rows
	err error
}

func (f failed) Close()                        {}
func (f failed) Err() error                    { return f.err }
func (f failed) Next() bool                    { return false }
func (f failed) Scan(...any) error             { return f.err }
func (f failed) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }
