package main

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// The floor: the speed of this PostgreSQL with rows like those of tasks, but without any logic.

const rawTable = `CREATE TABLE raw_tasks (id UUID PRIMARY KEY, org_id UUID NOT NULL, state TEXT NOT NULL,
	payload JSONB NOT NULL,
	created_at TIMESTAMPTZ NOT NULL DEFAULT now(), finished_at TIMESTAMPTZ) WITH (fillfactor = 70)`

const (
	rawInsert = `INSERT INTO raw_tasks (id, org_id, state, payload) SELECT id, $2, 'queued', '{"i": 1}'
		FROM unnest($1::uuid[]) AS id`
	rawUpdate = `UPDATE raw_tasks SET state = 'done', finished_at = now() WHERE id = ANY($1)`
	rawDelete = `DELETE FROM raw_tasks WHERE id = ANY($1)`

	rawBatch = 500
	rawConns = 2
)

// raw runs f on connections to a database with such a table.
func (b *bench) raw(ctx context.Context, conns int, f func(conns []*pgx.Conn) error) (err error) {
	dsn, drop, err := b.database(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop()) }()

	open := make([]*pgx.Conn, conns)
	for i := range open {
		if open[i], err = pgx.Connect(ctx, dsn); err != nil {
			return err
		}
		defer open[i].Close(context.WithoutCancel(ctx))
	}

	if _, err := open[0].Exec(ctx, rawTable); err != nil {
		return err
	}
	return f(open)
}

// rawThroughput inserts, updates and deletes rows in batches over two connections. It returns the rows a second that
// went through all three.
func (b *bench) rawThroughput(ctx context.Context, rows int) (perSecond float64, err error) {
	err = b.raw(ctx, rawConns, func(conns []*pgx.Conn) error {
		start := time.Now()
		g, ctx := errgroup.WithContext(ctx)
		for i, conn := range conns {
			g.Go(func() error {
				org := uuid.New()
				for left := rows/len(conns) + min(1, rows%len(conns)*(1-i)); left > 0; left -= rawBatch {
					ids := newIDs(min(rawBatch, left))
					if err := errors.Join(execute(ctx, conn, rawInsert, ids, org), execute(ctx, conn, rawUpdate, ids),
						execute(ctx, conn, rawDelete, ids)); err != nil {
						return err
					}
				}
				return nil
			})
		}

		if err := g.Wait(); err != nil {
			return err
		}
		perSecond = float64(rows) / time.Since(start).Seconds()
		return nil
	})
	return perSecond, err
}

// rawHop measures a claim and a completion, each a commit of one row, and the NOTIFY that wakes the next.
func (b *bench) rawHop(ctx context.Context, hops int) (took []time.Duration, err error) {
	err = b.raw(ctx, 2, func(conns []*pgx.Conn) error {
		work, listen := conns[0], conns[1]
		ids := newIDs(hops)
		if err := errors.Join(execute(ctx, work, rawInsert, ids, uuid.New()),
			execute(ctx, listen, `LISTEN raw`)); err != nil {
			return err
		}

		for _, id := range ids {
			start := time.Now()
			one := []uuid.UUID{id}
			if err := errors.Join(execute(ctx, work, rawUpdate, one), execute(ctx, work, rawDelete, one),
				execute(ctx, work, `NOTIFY raw`)); err != nil {
				return err
			}
			if _, err := listen.WaitForNotification(ctx); err != nil {
				return err
			}
			took = append(took, time.Since(start))
		}
		return nil
	})
	return took, err
}

// rawFan commits one row, then as many as the fan is wide in one batch each for insert, claim and completion, then one.
func (b *bench) rawFan(ctx context.Context, fan, reps int) (took []time.Duration, err error) {
	err = b.raw(ctx, 1, func(conns []*pgx.Conn) error {
		for range reps {
			start := time.Now()
			for _, n := range []int{1, fan, 1} {
				ids := newIDs(n)
				if err := errors.Join(execute(ctx, conns[0], rawInsert, ids, uuid.New()),
					execute(ctx, conns[0], rawUpdate, ids), execute(ctx, conns[0], rawDelete, ids)); err != nil {
					return err
				}
			}
			took = append(took, time.Since(start))
		}
		return nil
	})
	return took, err
}

func execute(ctx context.Context, conn *pgx.Conn, sql string, args ...any) error {
	_, err := conn.Exec(ctx, sql, args...)
	return err
}

func newIDs(n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	return ids
}
