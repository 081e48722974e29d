// Package pg opens pools of PostgreSQL connections and runs transactions on them.
//
// Vocabulary: the owner's pool (Open) is for migrations, dispatcher loops and everything that acts for the platform.
// The requests' pool (OpenRequests) is for everything that a user's request does. Its connections log in as a role of
// their own, which owns nothing and is a member of RequestRole alone, so that row-level security applies whatever they
// say. They see rows only inside InOrgTx, which sets the org. It owns no tables.
package pg

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
)

// Option changes a pool's settings before it opens.
type Option func(*pgxpool.Config)

// WithMaxConns bounds the pool. It overrides pool_max_conns in the URL.
func WithMaxConns(n int32) Option {
	return func(c *pgxpool.Config) { c.MaxConns = n }
}

// WithApplicationName sets the name of the connections in pg_stat_activity. The default is dagctl.
func WithApplicationName(name string) Option {
	return func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = name }
}

// WithLockTimeout bounds how long a statement waits for a lock.
func WithLockTimeout(most time.Duration) Option {
	return func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["lock_timeout"] = strconv.FormatInt(most.Milliseconds(), 10)
	}
}

// Open opens the owner's pool on a database, checks that the database answers, and takes over its time.
func Open(ctx context.Context, url string, opts ...Option) (*pgxpool.Pool, error) {
	return open(ctx, url, append([]Option{planOnce}, opts...)...)
}

// planOnce makes a connection plan each of its statements once, for any parameters. By default, the server compares the
// generic plan with plans for the actual parameters. Because it assumes ten elements for lists in generic plans, it
// nearly always finds the latter cheaper, and so plans for every call, which takes longer than most of the calls.
func planOnce(c *pgxpool.Config) { setDefault(c, "plan_cache_mode", "force_generic_plan") }

func open(ctx context.Context, url string, opts ...Option) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, badURL(err)
	}
	defaults(cfg)
	if !strings.Contains(url, "pool_max_conns") {
		// pgx's default is the number of CPUs, which is too few for loops that spend most of their time waiting.
		cfg.MaxConns = max(cfg.MaxConns, 20)
	}

	for _, opt := range opts {
		opt(cfg)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open database pool: %w", err)
	}
	if err = pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fault.New(fault.Unavailable, "the database does not answer: %w", err).
			WithHint("check that PostgreSQL runs there and that the URL's user may log in")
	}
	return pool, nil
}

// badURL is the fault of a URL that cannot be parsed. The parser's own error never quotes the password.
func badURL(err error) error {
	return fault.New(fault.Invalid, "database URL: %w", err).
		WithHint("use postgres://user:password@host:5432/database")
}

// defaults sets the parameters that the URL does not set.
func defaults(cfg *pgxpool.Config) {
	for name, value := range map[string]string{
		"application_name": "dagctl",
		"timezone":         "UTC",
		// Long statements are bounded by their context; a limit on the server would cut migrations and sweeps.
		"statement_timeout": "0",
		// Prefer index look-ups to reading whole tables. Plans are made early, while a table is small, and kept. With
		// the server's default, which suits a spinning disk, they would stay those for the small table.
		"random_page_cost": "1.1",
		// The estimates of queries that walk an index by themselves are far too high, so the server would compile them:
		// that takes longer than they run, by a hundred times and more.
		"jit": "off",
		// A transaction that a hung process leaves open must not hold locks or block vacuum forever.
		"idle_in_transaction_session_timeout": "60s",
	} {
		setDefault(cfg, name, value)
	}

	cfg.MaxConnIdleTime = 5 * time.Minute
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		registerUUID(conn.TypeMap())
		registerUTC(conn.TypeMap())
		registerArrays(conn.TypeMap())
		return clock.Measure(ctx, conn) // it may be another server than before, with another time
	}
}

// setDefault sets a parameter of the session unless the URL does.
func setDefault(cfg *pgxpool.Config, name, value string) {
	if _, set := cfg.ConnConfig.RuntimeParams[name]; !set {
		cfg.ConnConfig.RuntimeParams[name] = value
	}
}
