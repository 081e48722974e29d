package migrations_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/migrations"
)

func TestTenServersStartAtOnce(t *testing.T) {
	t.Parallel()
	url := testdb.Empty(t)
	pool := open(t, url)
	pending, err := migrations.Pending(t.Context(), pool)
	require.NoError(t, err)
	all, err := migrations.Status(t.Context(), pool)
	require.NoError(t, err)
	require.Equal(t, all, pending, "an empty database lacks everything")

	group, ctx := errgroup.WithContext(t.Context())
	for range 10 {
		group.Go(func() error { return migrations.Up(ctx, url) })
	}
	require.NoError(t, group.Wait())

	require.Empty(t, mustPending(t, pool))
	all, err = migrations.Status(t.Context(), pool)
	require.NoError(t, err)
	lines := map[string]int{}
	for _, m := range all {
		require.NotNil(t, m.AppliedAt, "%s %d", m.Line, m.Version)
		require.NotEmpty(t, m.Name)
		lines[m.Line]++
	}
	require.Positive(t, lines["dagctl"])
	require.Positive(t, lines["river"])
	require.Equal(t, lines["dagctl"], count(t, pool, `SELECT count(*) FROM schema_migrations WHERE version_id > 0`),
		"each was applied once")
	require.Equal(t, lines["river"], count(t, pool, `SELECT count(*) FROM river_migration`))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid
		FROM pg_database WHERE datname = current_database())`))
}

// Roles belong to the whole server, so databases that are migrated side by side meet there.
func TestTwoDatabasesOfOneServerAtOnce(t *testing.T) {
	t.Parallel()
	group, ctx := errgroup.WithContext(t.Context())
	for range 4 {
		url := testdb.Empty(t)
		group.Go(func() error { return migrations.Up(ctx, url) })
	}
	require.NoError(t, group.Wait())
}

func TestAMigrationCutShortIsFinishedByTheNext(t *testing.T) {
	t.Parallel()
	url := testdb.Empty(t)
	// What is left when the process dies between dagctl's own migrations and River's.
	pool := open(t, url)
	require.NoError(t, migrations.Up(t.Context(), url))
	takeBack(t, pool)
	require.NotEmpty(t, mustPending(t, pool))

	require.NoError(t, migrations.Up(t.Context(), url))
	require.Empty(t, mustPending(t, pool))
}

// takeBack takes River's last migrations back.
func takeBack(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	require.NoError(t, err)
	_, err = migrator.Migrate(t.Context(), rivermigrate.DirectionDown, &rivermigrate.MigrateOpts{TargetVersion: 3})
	require.NoError(t, err)
}

// A migration that needs a table which a long transaction uses does not make everybody else wait behind it.
func TestAMigrationGivesWay(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	pool := open(t, url)
	takeBack(t, pool)
	holder, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = holder.Rollback(context.Background()) }()
	_, err = holder.Exec(t.Context(), `LOCK TABLE river_job IN ROW EXCLUSIVE MODE`)
	require.NoError(t, err)

	ended := make(chan error, 1)
	go func() { ended <- migrations.Up(t.Context(), url) }()
	waits := func(n int) func() bool {
		return func() bool {
			return count(t, pool, `SELECT count(*) FROM pg_locks WHERE relation = 'river_job'::regclass AND NOT granted`) == n
		}
	}
	require.Eventually(t, waits(1), 30*time.Second, 10*time.Millisecond, "it waits for the table")
	require.Eventually(t, waits(0), 30*time.Second, 10*time.Millisecond, "it gives way")
	require.Eventually(t, waits(1), 30*time.Second, 10*time.Millisecond, "it comes back")
	require.NoError(t, holder.Rollback(t.Context()))
	require.NoError(t, <-ended)
	require.Empty(t, mustPending(t, pool))
}

func TestAWaitingServerGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	url := testdb.Empty(t)
	holder, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = holder.Close(context.Background()) })
	_, err = holder.Exec(t.Context(), `SELECT pg_advisory_lock(x'64616763746c'::bigint)`)
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- migrations.Up(ctx, url) }()
	pool := open(t, url)
	require.Eventually(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND application_name = 'dagctl migrate' AND query LIKE '%pg_try_advisory_lock%'`) > 0
	}, 30*time.Second, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NotEmpty(t, mustPending(t, pool))
}

func TestANewerDatabaseServesAnOlderServer(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	pool := open(t, url)
	_, err := pool.Exec(t.Context(), `INSERT INTO schema_migrations (version_id, is_applied) VALUES (9999, true)`)
	require.NoError(t, err)
	require.NoError(t, migrations.Up(t.Context(), url))
	require.Empty(t, mustPending(t, pool))

	ahead, err := migrations.Ahead(t.Context(), pool)
	require.NoError(t, err)
	require.Equal(t, []int64{9999}, ahead)
	_, err = pool.Exec(t.Context(), `DELETE FROM schema_migrations WHERE version_id = 9999`)
	require.NoError(t, err)
	ahead, err = migrations.Ahead(t.Context(), pool)
	require.NoError(t, err)
	require.Empty(t, ahead)
}

// A newer migration may give requests fewer rights than this program would, to its own tables and to others. That is
// for the newer program to judge: this one serves, and gives no right back.
func TestANewerDatabaseJudgesItsOwnRights(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	pool := open(t, url)
	_, err := pool.Exec(t.Context(), `
		INSERT INTO schema_migrations (version_id, is_applied) VALUES (9999, true);
		CREATE TABLE shown_only (org_id UUID NOT NULL, n INT);
		ALTER TABLE shown_only ENABLE ROW LEVEL SECURITY;
		CREATE POLICY its_own ON shown_only TO dagctl_app USING (n > 0);
		GRANT SELECT ON shown_only TO dagctl_app;
		REVOKE INSERT ON events FROM dagctl_app`, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	require.Empty(t, mustLacks(t, pool, ""))

	rights := roleRights(t, pool)
	require.NoError(t, migrations.Up(t.Context(), url))
	require.Equal(t, rights, roleRights(t, pool))

	_, err = pool.Exec(t.Context(), `REVOKE ALL ON ALL TABLES IN SCHEMA public FROM dagctl_app`)
	require.NoError(t, err)
	require.Contains(t, migrations.Describe(mustLacks(t, pool, "")),
		"requests have no rights to the tables of a newer dagctl, which only its own `dagctl migrate` can give them")
	_, err = pool.Exec(t.Context(), `DELETE FROM schema_migrations WHERE version_id = 9999`)
	require.NoError(t, err)
	require.NoError(t, migrations.Up(t.Context(), url))
	require.Empty(t, mustLacks(t, pool, ""))
}

// Tenant data without a policy would be open to every org's requests.
func TestEveryTableWithAnOrgHasRowLevelSecurity(t *testing.T) {
	t.Parallel()
	rows, err := testdb.New(t).Query(t.Context(), `
		SELECT c.relname FROM pg_class c
		JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'org_id' AND NOT a.attisdropped
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
		  AND NOT (c.relrowsecurity AND EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid))
		ORDER BY 1`)
	require.NoError(t, err)
	open, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Empty(t, open)
}

func open(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), url, pg.WithMaxConns(4))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func mustPending(t *testing.T, pool *pgxpool.Pool) []migrations.Migration {
	t.Helper()
	pending, err := migrations.Pending(t.Context(), pool)
	require.NoError(t, err)
	return pending
}

func count(t *testing.T, pool *pgxpool.Pool, query string) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), query).Scan(&n))
	return n
}

// Ids sort by when they were made, also within a millisecond: what happens to a task is listed by them.
func TestIDsAreInTheOrderOfTheirMaking(t *testing.T) {
	t.Parallel()
	url := testdb.Empty(t)
	require.NoError(t, migrations.Up(t.Context(), url))
	pool := open(t, url)
	var last uuid.UUID
	for range 2000 {
		var id uuid.UUID
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT uuid_v7()`).Scan(&id))
		require.Negative(t, bytes.Compare(last[:], id[:]), "%s after %s", id, last)
		last = id
	}
	require.Equal(t, uuid.Version(7), last.Version())
	require.Equal(t, uuid.RFC4122, last.Variant())
	at := time.Unix(last.Time().UnixTime())
	require.WithinDuration(t, time.Now(), at, time.Minute)
}

// A build of the trunk may have applied a migration before another, with a lower number, came to the trunk.
func TestAMigrationThatWasPassedByIsMadeUpFor(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	pool := open(t, url)
	_, err := pool.Exec(t.Context(), `DROP INDEX idx_events_producer; DELETE FROM schema_migrations WHERE version_id = 58`)
	require.NoError(t, err)
	require.Len(t, mustPending(t, pool), 1)

	require.NoError(t, migrations.Up(t.Context(), url))
	require.Empty(t, mustPending(t, pool))
	var there bool
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT to_regclass('idx_events_producer') IS NOT NULL`).Scan(&there))
	require.True(t, there)
}
