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
