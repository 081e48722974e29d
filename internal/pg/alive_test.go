package pg_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
)

// While a transaction does something outside the database that takes long, it is heard of there.
func TestASlowTransactionSaysThatItLives(t *testing.T) {
	t.Parallel()
	pool := open(t, testdb.Empty(t))
	require.NoError(t, pg.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		return pg.WhileAlive(ctx, tx, func() error {
			said := func() (at time.Time) {
				require.NoError(t, pool.QueryRow(ctx, `SELECT state_change FROM pg_stat_activity WHERE pid = $1`,
					tx.Conn().PgConn().PID()).Scan(&at))
				return at
			}
			first := said()
			require.EventuallyWithT(t, func(c *assert.CollectT) { require.True(c, said().After(first)) },
				time.Minute, 50*time.Millisecond)
			return nil
		})
	}))
}
