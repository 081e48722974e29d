package pg_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
)

func TestAway(t *testing.T) {
	t.Parallel()
	url := testdb.Empty(t)
	pool := open(t, url)
	ended := func(t *testing.T) *pgx.Conn {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		_, err = pool.Exec(t.Context(), `SELECT pg_terminate_backend($1, 10000)`, conn.PgConn().PID())
		require.NoError(t, err)
		return conn
	}

	t.Run("a connection that was ended", func(t *testing.T) {
		t.Parallel()
		conn := ended(t)
		_, err := conn.Exec(t.Context(), `SELECT 1`)
		require.True(t, pg.Away(fmt.Errorf("look: %w", err)), "%v", err)
		_, err = conn.Exec(t.Context(), `SELECT 1`)
		require.True(t, pg.Away(err), "and again: %v", err)
	})
	t.Run("a database that nobody serves", func(t *testing.T) {
		t.Parallel()
		_, err := pgx.Connect(t.Context(), "postgres://u:p@127.0.0.1:1/db?sslmode=disable")
		require.True(t, pg.Away(err), "%v", err)
	})

	t.Run("what it says while it starts", func(t *testing.T) {
		t.Parallel()
		require.True(t, pg.Away(&pgconn.PgError{Code: "57P03"}))
	})
	t.Run("a wrong statement", func(t *testing.T) {
		t.Parallel()
		_, err := pool.Exec(t.Context(), `SELEC 1`)
		require.False(t, pg.Away(err), "%v", err)
	})
	t.Run("anything else", func(t *testing.T) {
		t.Parallel()
		require.False(t, pg.Away(errors.New("wrong")))
		require.False(t, pg.Away(nil))
	})
}
