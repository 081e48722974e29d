package pg_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
)

func TestBatch(t *testing.T) {
	t.Parallel()
	pool := open(t, testdb.Empty(t))
	err := pg.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		var b pg.Batch
		var counted, n int
		var read []int
		b.Exec("make the table", `CREATE TEMP TABLE numbers (n INT) ON COMMIT DROP`)
		require.NoError(t, b.Send(ctx, tx))
		b.Count("fill", func(rows int) error { counted = rows; return nil }, `INSERT INTO numbers SELECT generate_series(1, $1)`, 3)
		b.Query("read", []any{&n}, func() error { read = append(read, n); return nil }, `SELECT n FROM numbers ORDER BY n`)
		require.Empty(t, read, "nothing is sent before Send")
		require.NoError(t, b.Send(ctx, tx))
		require.NoError(t, b.Send(ctx, tx), "nothing is sent twice")
		require.Equal(t, 3, counted)
		require.Equal(t, []int{1, 2, 3}, read)

		b.Exec("divide", `SELECT 1 / $1::int`, 0)
		b.Count("after it", func(int) error { t.Error("ran after one that failed"); return nil }, `DELETE FROM numbers`)
		return b.Send(ctx, tx)
	})
	require.ErrorContains(t, err, "divide: ")
	require.ErrorContains(t, err, "division by zero")
}

// Statements that are sent with COMMIT are committed with the rest, or make the whole transaction fail.
func TestBatchSendLast(t *testing.T) {
	t.Parallel()
	pool := open(t, testdb.Empty(t), pg.WithMaxConns(1))
	_, err := pool.Exec(t.Context(), `CREATE TABLE numbers (n INT PRIMARY KEY)`)
	require.NoError(t, err)
	insert := func(n int) *pg.Batch {
		b := &pg.Batch{}
		b.Exec("insert", `INSERT INTO numbers VALUES ($1)`, n)
		return b
	}
	numbers := func(q interface {
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	}) []int {
		rows, err := q.Query(t.Context(), `SELECT n FROM numbers ORDER BY n`)
		require.NoError(t, err)
		found, err := pgx.CollectRows(rows, pgx.RowTo[int])
		require.NoError(t, err)
		return found
	}
	for _, c := range []struct {
		name string
		fn   func(ctx context.Context, tx pgx.Tx) error
		fail string
		left []int // in the table
	}{
		{"nothing", func(context.Context, pgx.Tx) error { return nil }, "", []int{}},
		{"first and last at once", func(ctx context.Context, tx pgx.Tx) error { return insert(1).SendLast(ctx, tx) },
			"", []int{1}},
		{"after others", func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, insert(2).Send(ctx, tx))
			return insert(3).SendLast(ctx, tx)
		}, "", []int{1, 2, 3}},
		{"not last", func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, insert(4).SendLast(ctx, tx))
			require.Equal(t, []int{1, 2, 3, 4}, numbers(tx))
			require.NoError(t, insert(5).SendLast(ctx, tx))
			return insert(6).Send(ctx, tx)
		}, "", []int{1, 2, 3, 4, 5, 6}},
		{"it fails", func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, insert(7).Send(ctx, tx))
			require.NoError(t, insert(8).SendLast(ctx, tx))
			return insert(1).SendLast(ctx, tx)
		}, "insert: ", []int{1, 2, 3, 4, 5, 6}},
		{"the first fails", func(ctx context.Context, tx pgx.Tx) error { return insert(1).Send(ctx, tx) }, "insert: ",
			[]int{1, 2, 3, 4, 5, 6}},
		{"fn fails", func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, insert(7).SendLast(ctx, tx))
			return context.Canceled
		}, "canceled", []int{1, 2, 3, 4, 5, 6}},
		{"an answer is heard", func(ctx context.Context, tx pgx.Tx) error {
			var b pg.Batch
			b.Count("count", func(rows int) error {
				require.Equal(t, 6, rows)
				return context.Canceled
			}, `DELETE FROM numbers`)
			return b.SendLast(ctx, tx)
		}, "canceled", []int{1, 2, 3, 4, 5, 6}},
	} {
		err := pg.InTx(t.Context(), pool, c.fn)
		if c.fail == "" {
			require.NoError(t, err, c.name)
		} else {
			require.ErrorContains(t, err, c.fail, c.name)
		}
		require.Equal(t, c.left, numbers(pool), c.name)
	}
}
