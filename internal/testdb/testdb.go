// Package testdb gives each test a PostgreSQL database of its own, cloned from a migrated template.
//
// Vocabulary: the test server is a throwaway PostgreSQL, which the first test of a process starts and which ends with
// the process, or the one that DAGCTL_TEST_DATABASE_URL names (its user must be a superuser). The template is a
// database that was migrated once per content of the migrations.
//
// One server per process takes less than a second, and packages tested at the same time share nothing, not even roles.
// It owns no tables.
package testdb

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/pgdev"
	"github.com/dagctl/dagctl/migrations"
)

// New returns a pool on a migrated database of the test's own, which is dropped with the test. The pool is the owner's.
// A test of what a user's request may do opens pg.OpenRequests on URL instead.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return open(t, URL(t))
}

// Open returns a pool on a database of this package.
func open(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	// Many tests share the server's connections.
	pool, err := pg.Open(t.Context(), url, pg.WithMaxConns(12))
	if err != nil {
		t.Fatalf("open the test's database: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// URL returns the address of a migrated database of the test's own, for tests that start processes. The database
// outlives the processes and is dropped with the test.
func URL(t testing.TB) string {
	t.Helper()
	srv := server(t)
	name, err := srv.template()
	if err != nil {
		t.Fatalf("migrate the template of test databases: %v", err)
	}
	return srv.create(t, name)
}

// Empty returns the address of a database without any table.
func Empty(t testing.TB) string {
	t.Helper()
	return server(t).create(t, "template0")
}

// testServer creates databases on one PostgreSQL.
type testServer struct {
	url      string
	template func() (string, error)
}

var theServer = sync.OnceValues(func() (*testServer, error) {
	given := os.Getenv("DAGCTL_TEST_DATABASE_URL")
	if given == "" {
		srv, err := pgdev.Start(context.Background(), pgdev.Config{})
		if err != nil {
			return nil, err
		}
		given = srv.URL() // it ends with this process
	}
	s := &testServer{url: given}
	s.template = sync.OnceValues(func() (string, error) { return s.makeTemplate(context.Background()) })
	return s, nil
})

func server(t testing.TB) *testServer {
	t.Helper()
	s, err := theServer()
	if f := new(fault.Error); errors.As(err, &f) {
		t.Fatalf("tests need PostgreSQL: %v; %s", f, f.Hint)
	}
	if err != nil {
		t.Fatalf("tests need PostgreSQL: %v", err)
	}
	return s
}

// makeTemplate migrates a database named after the migrations' content, unless another process or an earlier run did.
func (s *testServer) makeTemplate(ctx context.Context) (string, error) {
	key, err := migrations.Fingerprint()
	if err != nil {
		return "", err
	}
	name := "dagctl_template_" + key[:16]
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx) // releases the lock
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(hashtext($1))`, name); err != nil {
		return "", err
	}
	var ready bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`,
		name).Scan(&ready); err != nil || ready {
		return name, err
	}

	// It gets its name only when it is complete.
	draft := name + "_draft"
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + draft + " WITH (FORCE)",
		"CREATE DATABASE " + draft + " TEMPLATE template0"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return "", err
		}
	}
	if err := migrations.Up(ctx, s.database(draft)); err != nil {
		return "", err
	}
	_, err = conn.Exec(ctx, "ALTER DATABASE "+draft+" RENAME TO "+name)
	return name, err
}

// create creates a database and drops it when the test ends, even if connections are still open.
func (s *testServer) create(t testing.TB, template string) string {
	t.Helper()
	name := "dagctl_test_" + strings.ToLower(rand.Text())
	s.exec(t, t.Context(), "CREATE DATABASE "+name+" TEMPLATE "+template+" STRATEGY FILE_COPY")
	t.Cleanup(func() { s.exec(t, context.Background(), "DROP DATABASE "+name+" WITH (FORCE)") })
	return s.database(name)
}

func (s *testServer) exec(t testing.TB, ctx context.Context, sql string) {
	t.Helper()
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		t.Fatalf("connect to the test server: %v", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// database returns the address of another database of the server.
func (s *testServer) database(name string) string {
	u, err := url.Parse(s.url)
	if err != nil || u.Scheme == "" {
		return s.url + " dbname=" + name // libpq's keywords: the last one of a name counts
	}
	u.Path = "/" + name
	return u.String()
}
