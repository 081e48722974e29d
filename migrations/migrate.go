// Package migrations holds the database's schema as numbered SQL files, forward only, and applies them together with
// River's own.
//
// Vocabulary: a migration is one file, or one version of River's schema; it is pending until this database has it.
// Requests log in as a role of their own; requests.go says what that needs, and mends what it lacks.
// It owns schema_migrations; the tables that the files create belong to the slices named at the head of each file.
package migrations

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

//go:embed *.sql
var files embed.FS

const (
	table = "schema_migrations"
	// lockKey serialises migrations of one database. Any constant would do; this one spells "dagctl".
	lockKey = 0x64616763746c
)

// Migration is one step of the schema.
type Migration struct {
	Line      string     // dagctl or river
	Version   int64      // ascending within its line
	Name      string     // describes the change
	AppliedAt *time.Time // nil while it is pending
	file      string     // of dagctl's own migrations
}

// Up applies pending migrations and gives requests the roles and rights that they lack. Any number of processes may
// call it at once: one works, the others wait.
func Up(ctx context.Context, url string) error { return UpFor(ctx, url, "") }

// UpFor is like Up where requests log in by a URL of their own, unless that is empty. It changes nothing of that role
// but its membership in pg.RequestRole.
func UpFor(ctx context.Context, url, requestsURL string) error {
	// One connection holds the lock, and others apply the migrations.
	pool, err := pg.Open(ctx, url, pg.WithApplicationName("dagctl migrate"), pg.WithMaxConns(4),
		pg.WithLockTimeout(lockWait))
	if err != nil {
		return err
	}
	defer pool.Close()

	return locked(ctx, pool, func() error {
		return givingWay(ctx, func() error {
			if err := upOwn(ctx, pool); err != nil {
				return err
			}
			if err := upRiver(ctx, pool); err != nil {
				return err
			}
			return mend(ctx, pool, url, requestsURL)
		})
	})
}

// A step takes tables from servers that go on working. While it waits for one, all who want the table after it wait
// too, so it gives up soon and comes back, for as long as a report or a backup may take.
const (
	lockWait   = 2 * time.Second
	giveWayFor = time.Second
	giveWays   = 200
)

// givingWay repeats fn, which goes on where it stopped, while it loses tables that it needs to others.
func givingWay(ctx context.Context, fn func() error) error {
	for n := 0; ; n++ {
		err := fn()
		if !pg.LostTable(err) {
			return err
		}
		if n == giveWays {
			return fault.New(fault.Unavailable, "the tables to change are in use: %w", err).
				WithHint("end the long transactions that pg_stat_activity shows, and migrate again")
		}

		select {
		case <-time.After(giveWayFor):
		case <-ctx.Done():
			return fmt.Errorf("wait for a table that is in use: %w", ctx.Err())
		}
	}
}

func upOwn(ctx context.Context, pool *pgxpool.Pool) error {
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName(table), goose.WithDisableGlobalRegistry(true),
		goose.WithAllowOutofOrder(true)) // a build of the trunk may have had a later one first
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return nil
}

func upRiver(ctx context.Context, pool *pgxpool.Pool) error {
	migrator, err := riverMigrator(pool)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrate River's tables: %w", err)
	}
	return nil
}

func riverMigrator(pool *pgxpool.Pool) (*rivermigrate.Migrator[pgx.Tx], error) {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, fmt.Errorf("read River's migrations: %w", err)
	}
	return migrator, nil
}

// locked runs fn under the database's migration lock. It polls for the lock instead of waiting inside PostgreSQL,
// because a statement that waits there holds a snapshot, for which CREATE INDEX CONCURRENTLY in fn would wait.
func locked(ctx context.Context, pool *pgxpool.Pool, fn func() error) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect for the migration lock: %w", err)
	}
	defer conn.Release()
	retry := time.NewTicker(50 * time.Millisecond)
	defer retry.Stop()
	for {
		var got bool
		if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(lockKey)).Scan(&got); err != nil {
			return fmt.Errorf("take the migration lock: %w", err)
		}

		if got {
			break
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for another process's migration: %w", ctx.Err())
		}
	}
	if err := fn(); err != nil {
		return err // closing the pool releases the lock
	}
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_unlock($1)`, int64(lockKey)); err != nil {
		return fmt.Errorf("give back the migration lock: %w", err)
	}
	return nil
}

// Status returns all migrations in the order of their application. It changes nothing.
func Status(ctx context.Context, pool *pgxpool.Pool) ([]Migration, error) {
	all, err := own()
	if err != nil {
		return nil, err
	}
	river, err := riverMigrator(pool)
	if err != nil {
		return nil, err
	}
	for _, m := range river.AllVersions() {
		all = append(all, Migration{Line: "river", Version: int64(m.Version), Name: m.Name})
	}

	// Two statements, because River's table exists only after dagctl's own.
	if err := markApplied(ctx, pool, all, "dagctl",
		`SELECT version_id, tstamp FROM `+table+` WHERE is_applied`); err != nil {
		return nil, err
	}
	if err := markApplied(ctx, pool, all, "river", `SELECT version, created_at FROM river_migration`); err != nil {
		return nil, err
	}
	return all, nil
}

// Fingerprint returns a hash of all migrations' content, including River's, and of the rights of requests.
func Fingerprint() (string, error) {
	hash := sha256.New()
	all, err := own()
	if err != nil {
		return "", err
	}
	for _, m := range all {
		text, err := files.ReadFile(m.file)
		if err != nil {
			return "", fmt.Errorf("read migration: %w", err)
		}
		fmt.Fprintf(hash, "%s %d\n%s", m.file, len(text), text)
	}

	river, err := riverMigrator(nil)
	if err != nil {
		return "", err
	}
	for _, m := range river.AllVersions() {
		fmt.Fprintf(hash, "river %d %d\n%s", m.Version, len(m.SQLUp), m.SQLUp)
	}
	fmt.Fprintf(hash, "requests %s", lacks)
	return fmt.Sprintf("%x", hash.Sum(nil)), nil
}

// Ahead returns the numbers of dagctl's own migrations that this database has and this program does not know: a newer
// program made them.
func Ahead(ctx context.Context, pool *pgxpool.Pool) ([]int64, error) {
	all, err := own()
	if err != nil {
		return nil, err
	}
	known := make([]int64, len(all))
	for i, m := range all {
		known[i] = m.Version
	}

	rows, err := pool.Query(ctx, `SELECT version_id FROM `+table+` WHERE is_applied AND version_id > 0
		AND version_id <> ALL($1) ORDER BY 1`, known)
	if err != nil {
		return nil, fmt.Errorf("read applied migrations: %w", err)
	}
	ahead, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("read applied migrations: %w", err)
	}
	return ahead, nil
}

// own returns the embedded files' migrations. fs.Glob sorts the files by name and so by number.
func own() ([]Migration, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	var all []Migration
	for _, name := range names {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", name, err)
		}
		_, words, _ := strings.Cut(strings.TrimSuffix(name, ".sql"), "_")
		all = append(all, Migration{Line: "dagctl", Version: version, Name: strings.ReplaceAll(words, "_", " "),
			file: name})
	}
	return all, nil
}

// markApplied sets AppliedAt of one line's migrations from its table. If there is no table, none is applied.
func markApplied(ctx context.Context, pool *pgxpool.Pool, all []Migration, line, query string) error {
	rows, _ := pool.Query(ctx, query) // the rows have its error
	var version int64
	var at time.Time
	applied := map[int64]time.Time{}
	_, err := pgx.ForEachRow(rows, []any{&version, &at}, func() error {
		applied[version] = at.UTC()
		return nil
	})

	const undefinedTable = "42P01"
	if pgErr := new(pgconn.PgError); errors.As(err, &pgErr) && pgErr.Code == undefinedTable {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read applied migrations: %w", err)
	}
	for i, m := range all {
		if at, ok := applied[m.Version]; ok && m.Line == line {
			all[i].AppliedAt = &at
		}
	}
	return nil
}

// Pending returns the migrations that this database lacks. A server is not ready while there are any. A database that
// is ahead of this binary has none pending, so that old and new servers can run at the same time during an upgrade.
func Pending(ctx context.Context, pool *pgxpool.Pool) ([]Migration, error) {
	all, err := Status(ctx, pool)
	if err != nil {
		return nil, err
	}
	var pending []Migration
	for _, m := range all {
		if m.AppliedAt == nil {
			pending = append(pending, m)
		}
	}
	return pending, nil
}
