package server

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// The log names the database, and nobody's password.
func TestDatabaseOf(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://owner:secret@db.example:6432/dagctl?sslmode=disable": "db.example:6432/dagctl",
		"host=/run/postgresql dbname=orders user=owner password=secret":  "/run/postgresql:5432/orders",
	} {
		cfg, err := pgxpool.ParseConfig(url)
		require.NoError(t, err)
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		require.Equal(t, want, databaseOf(pool))
	}
}
