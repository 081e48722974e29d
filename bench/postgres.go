package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pgdev"
	"github.com/dagctl/dagctl/migrations"
)

// bench is a run: its options and its PostgreSQL.
type bench struct {
	options
	log    *slog.Logger
	stderr io.Writer

	server      *pgdev.Server // nil with a DSN
	folder      string        // of the server and of published files
	root        string        // of published files
	storageKind string        // memory or disk, for the reader
	version     string        // of PostgreSQL
	counts      bool          // it has pg_stat_statements
}

// settings are those of the bench's own server: the memory of a small production server, and durable commits.
var settings = map[string]string{"shared_buffers": "1GB", "max_wal_size": "4GB", "synchronous_commit": "on",
	"fsync": "on"}

func (b *bench) open(ctx context.Context) (err error) {
	if b.folder, err = os.MkdirTemp("", "dagctl-bench-*"); err != nil {
		return err
	}
	b.root, b.storageKind = b.storage, "disk"
	if b.root == "" {
		b.root = filepath.Join(b.folder, "published")
		if memory, err := os.MkdirTemp("/dev/shm", "dagctl-bench-*"); err == nil {
			b.root, b.storageKind = memory, "memory"
		}
	}

	if b.dsn == "" {
		if err := b.serve(ctx); err != nil {
			return errors.Join(err, b.close())
		}
	}

	return b.admin(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `
			SELECT current_setting('server_version'), current_setting('shared_preload_libraries') LIKE
				'%pg_stat_statements%'`).Scan(&b.version, &b.counts)
	})
}

// serve starts the bench's own server, with pg_stat_statements if it is requested and installed.
func (b *bench) serve(ctx context.Context) (err error) {
	config := pgdev.Config{DataDir: filepath.Join(b.folder, "postgres"), Settings: maps.Clone(settings), Log: b.log}
	if b.statements {
		config.Settings["shared_preload_libraries"] = "pg_stat_statements"
	}
	if b.server, err = pgdev.Start(ctx, config); err != nil && b.statements {
		delete(config.Settings, "shared_preload_libraries")
		b.server, err = pgdev.Start(ctx, config)
	}
	if err != nil {
		return err
	}
	b.dsn = b.server.URL()
	return nil
}

func (b *bench) close() error {
	var failed []error
	if b.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		failed = append(failed, b.server.Stop(ctx), pgdev.Remove(filepath.Join(b.folder, "postgres")))
	}
	if b.storage == "" {
		failed = append(failed, os.RemoveAll(b.root))
	}
	return errors.Join(append(failed, os.RemoveAll(b.folder))...)
}

// admin runs f on a connection to the database that the DSN names. That database itself stays unchanged.
func (b *bench) admin(ctx context.Context, f func(conn *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, b.dsn)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return f(conn)
}

// database creates an empty database; drop removes it.
func (b *bench) database(ctx context.Context) (dsn string, drop func() error, err error) {
	name := "dagctl_bench_" + strings.ToLower(rand.Text())
	execute := func(ctx context.Context, statements ...string) error {
		return b.admin(ctx, func(conn *pgx.Conn) error {
			for _, sql := range statements {
				if _, err := conn.Exec(ctx, sql); err != nil {
					return fmt.Errorf("%s: %w", sql, err)
				}
			}
			return nil
		})
	}

	// A checkpoint in the middle of only one of the runs would distort the comparison.
	if err := execute(ctx, "CREATE DATABASE "+name+" TEMPLATE template0", "CHECKPOINT"); err != nil {
		return "", nil, err
	}
	drop = func() error { return execute(context.WithoutCancel(ctx), "DROP DATABASE "+name+" WITH (FORCE)") }
	return withDatabase(b.dsn, name), drop, nil
}

// migrated creates a database with dagctl's tables.
func (b *bench) migrated(ctx context.Context) (dsn string, drop func() error, err error) {
	dsn, drop, err = b.database(ctx)
	if err != nil {
		return "", nil, err
	}
	if err := migrations.Up(ctx, dsn); err != nil {
		return "", nil, errors.Join(err, drop())
	}
	return dsn, drop, nil
}

// withDatabase returns the address of another database of the same server.
func withDatabase(dsn, name string) string {
	u, err := url.Parse(dsn)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		return dsn + " dbname=" + name // libpq's keywords, of which the last counts
	}
	u.Path = "/" + name
	return u.String()
}

// databaseOf returns the database's name in an address.
func databaseOf(dsn string) (string, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return "", err
	}
	return config.Database, nil
}
