package testdb_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/migrations"
)

func TestEachTestHasItsOwnMigratedDatabase(t *testing.T) {
	t.Parallel()
	a, b := testdb.New(t), testdb.New(t)
	_, err := a.Exec(t.Context(), `INSERT INTO orgs (name, slug) VALUES ('Acme', 'acme')`)
	require.NoError(t, err)
	var orgs int
	require.NoError(t, b.QueryRow(t.Context(), `SELECT count(*) FROM orgs`).Scan(&orgs))
	require.Zero(t, orgs)
	pending, err := migrations.Pending(t.Context(), a)
	require.NoError(t, err)
	require.Empty(t, pending)
}

func TestTheDatabaseGoesWithItsTest(t *testing.T) {
	t.Parallel()
	var url string
	t.Run("inner", func(t *testing.T) {
		url = testdb.URL(t)
		// A server process that a test left behind or killed does no harm.
		_, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
	})
	_, err := pgx.Connect(t.Context(), url)
	require.ErrorContains(t, err, "3D000")
}

func TestEmptyHasNoTables(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), testdb.Empty(t))
	require.NoError(t, err)
	defer conn.Close(context.Background())
	var tables int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`).
		Scan(&tables))
	require.Zero(t, tables)
}

func BenchmarkClone(b *testing.B) {
	testdb.URL(b)
	for b.Loop() {
		testdb.URL(b)
	}
}
