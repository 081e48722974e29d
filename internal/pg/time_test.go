package pg_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
)

// another is a database whose clock is an hour ahead.
type another struct{}

func (another) QueryRow(context.Context, string, ...any) pgx.Row { return another{} }

func (another) Scan(into ...any) error {
	*into[0].(*time.Time) = time.Now().Add(time.Hour)
	return nil
}

// A new connection may lead to another server, after a failover or a restart: its time holds at once, and not from the
// next look at it. The test is not parallel, because it sets the clock of the process.
func TestANewConnectionTellsTheTime(t *testing.T) {
	pool, err := pg.Open(t.Context(), testdb.URL(t), pg.WithMaxConns(1))
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, clock.Measure(t.Context(), another{}))
	require.Greater(t, time.Until(clock.Now()), 50*time.Minute)

	_, err = pool.Exec(t.Context(), `SELECT 1`)
	require.NoError(t, err)
	require.Greater(t, time.Until(clock.Now()), 50*time.Minute, "the connection is the same")
	pool.Reset()
	_, err = pool.Exec(t.Context(), `SELECT 1`)
	require.NoError(t, err)
	require.Less(t, time.Until(clock.Now()).Abs(), time.Minute)
}
