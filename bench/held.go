package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/wait"
)

// heldFigure: throughput while another session holds a transaction open, so that no vacuum can remove the queue's dead
// rows. Rounds of tasks follow each other for that time; the last round has the most dead rows to skip.
func heldFigure(ctx context.Context, b *bench) (result, error) {
	return b.beside(ctx, load{tasks: b.tasks, during: b.holdSnapshot},
		map[string]any{"hold_s": round(b.hold.Seconds())})
}

func (b *bench) holdSnapshot(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := errors.Join(execute(ctx, conn, `BEGIN ISOLATION LEVEL REPEATABLE READ`),
		execute(ctx, conn, `SELECT 1 FROM orgs`)); err != nil {
		return err
	}
	if err := wait.For(ctx, b.hold); err != nil {
		return err
	}
	return execute(ctx, conn, `ROLLBACK`)
}
