package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/pgdev"
	"github.com/dagctl/dagctl/internal/testdb"
)

// logLines is a log that many goroutines write.
type logLines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) with(word string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, word) {
			found = append(found, line)
		}
	}
	return found
}

// cuttable forwards connections to a database until they are cut, all at once.
type cuttable struct {
	net.Listener
	mu    sync.RWMutex // held while they are cut, and read-locked by each answer on its way
	conns []net.Conn
}

// answered is a connection whose answers wait while others are cut.
type answered struct {
	net.Conn
	of *cuttable
}

func (a answered) Write(p []byte) (int, error) {
	a.of.mu.RLock()
	defer a.of.mu.RUnlock()
	return a.Conn.Write(p)
}

func (c *cuttable) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, conn)
	return answered{conn, c}, nil
}

func (c *cuttable) cut() {
	_ = c.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

// forwarded starts a server whose database is reached over a connection that can be cut, and returns how to begin that
// connection anew.
func forwarded(t *testing.T) (cfg Config, lines *logLines, way *cuttable, listen func() *cuttable) {
	t.Helper()
	u, err := url.Parse(testdb.URL(t))
	require.NoError(t, err)
	q := u.Query()
	socket := filepath.Join(q.Get("host"), ".s.PGSQL."+q.Get("port"))
	address := processtest.FreeAddress(t)
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	q.Set("host", host)
	q.Set("port", port)
	u.RawQuery = q.Encode()
	listen = func() *cuttable {
		listener, err := net.Listen("tcp", address)
		require.NoError(t, err)
		c := &cuttable{Listener: listener}
		go forward(c, socket)
		return c
	}

	way = listen()
	cfg, lines = servedConfig(t, u.String()), new(logLines)
	serveLogged(t, cfg, slog.New(slog.NewTextHandler(lines, nil)))
	waitUntil(t, "the server is ready", isReady(t, cfg.Listen))
	return cfg, lines, way, listen
}

// A database that is frozen breaks no connection, and gives no error. It is said once that it does not answer, and what
// runs out of time meanwhile says nothing more.
func TestADatabaseThatIsFrozen(t *testing.T) {
	t.Parallel()
	cfg, lines, way, _ := forwarded(t)
	way.mu.Lock() // neither an answer nor a new connection comes through
	waitUntil(t, "the outage is said", func() (bool, error) {
		return len(lines.with("the database cannot be used")) > 0, fmt.Errorf("%v", lines.with(""))
	})
	require.Contains(t, lines.with("the database cannot be used")[0], awayReason)
	status, text := ask(t, http.MethodGet, "http://"+cfg.Listen+"/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, text, "the database does not answer")

	way.mu.Unlock()
	t.Cleanup(way.cut)
	waitUntil(t, "the end of it is said", func() (bool, error) {
		return len(lines.with("the database works again")) > 0, fmt.Errorf("%v", lines.with(""))
	})
	waitUntil(t, "the server is ready", isReady(t, cfg.Listen))
	require.Len(t, lines.with("the database cannot be used"), 1)
	require.Len(t, lines.with("level=ERROR"), 1, "%v", lines.with("level=ERROR"))
}

// A pool whose connections are all busy is no database that does not answer.
func TestABusyPoolIsNoOutage(t *testing.T) {
	t.Parallel()
	pool, err := pg.Open(t.Context(), testdb.URL(t), pg.WithMaxConns(1))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	busy, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer busy.Release()
	o := &outages{log: slog.New(slog.DiscardHandler), pool: pool}
	require.NoError(t, o.frozen(t.Context()))
}

// A database that is away is one line of the log, however many loops and requests miss it, and one when it is back.
func TestAnOutageOfTheDatabaseIsSaidOnce(t *testing.T) {
	t.Parallel()
	cfg, lines, way, listen := forwarded(t)
	way.cut()
	waitUntil(t, "the outage is said", func() (bool, error) {
		return len(lines.with("the database cannot be used")) > 0, fmt.Errorf("%v", lines.with(""))
	})
	for range 20 {
		status, text := ask(t, http.MethodGet, "http://"+cfg.Listen+"/readyz")
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Contains(t, text, "the database does not answer")
	}

	way = listen()
	t.Cleanup(way.cut)
	waitUntil(t, "the end of it is said", func() (bool, error) {
		return len(lines.with("the database works again")) > 0, fmt.Errorf("%v", lines.with(""))
	})
	waitUntil(t, "the server is ready", isReady(t, cfg.Listen))
	require.Len(t, lines.with("the database cannot be used"), 1)
	require.Empty(t, lines.with("level=WARN"), "what the outage explains is not said again")
	require.Len(t, lines.with("level=ERROR"), 1, "%v", lines.with("level=ERROR"))
}

// River tells errors as text. In an outage, all that it says is of the outage.
func TestAnOutageIsSaidOnceForRiver(t *testing.T) {
	t.Parallel()
	address := testdb.URL(t)
	pool, err := pg.Open(t.Context(), address, pg.WithMaxConns(1))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	closed, err := pg.Open(t.Context(), address, pg.WithMaxConns(1))
	require.NoError(t, err)
	t.Cleanup(closed.Close)
	down, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, down.Close())
	away := closed.Config()
	away.ConnConfig.Fallbacks = nil
	away.ConnConfig.Host, away.ConnConfig.Port = "127.0.0.1", uint16(down.Addr().(*net.TCPAddr).Port)
	gone, err := pgxpool.NewWithConfig(t.Context(), away)
	require.NoError(t, err)
	t.Cleanup(gone.Close)

	lines := new(logLines)
	o := &outages{log: slog.New(slog.NewTextHandler(lines, nil)), pool: pool}
	river := slog.New(o.logger().Handler().WithAttrs([]slog.Attr{upkeep.OfRiver}))
	say := func() {
		for range 15 {
			river.Error("Producer: Error fetching jobs", "err", "failed to connect")
			river.Warn("Elector: Current leader stepping down", "client_id", "a")
		}
	}
	river.Error("Producer: Error fetching jobs", "err", "no such table")
	require.Len(t, lines.with(""), 1, "the database is well: it is something else")

	o.pool = gone
	say()
	require.Len(t, lines.with(""), 2, "%v", lines.with(""))
	require.Len(t, lines.with("the database cannot be used"), 1)
	o.pool = pool
	o.look(t.Context())
	say()
	require.Len(t, lines.with(""), 3, "%v", lines.with(""))
	require.Len(t, lines.with("the database works again"), 1)
}

// A password that has changed is no database that does not answer.
func TestADatabaseThatRefusesTheLogin(t *testing.T) {
	t.Parallel()
	srv, err := pgdev.Start(t.Context(), pgdev.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop(context.Background())) })
	owner, err := pg.Open(t.Context(), srv.URL(), pg.WithMaxConns(1))
	require.NoError(t, err)
	t.Cleanup(owner.Close)
	for _, sql := range []string{`CREATE ROLE its LOGIN SUPERUSER PASSWORD 'first'`, `ALTER ROLE its NOLOGIN`} {
		_, err = owner.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	c := owner.Config()
	c.ConnConfig.User, c.ConnConfig.Password = "its", "first"
	refused, err := pgxpool.NewWithConfig(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(refused.Close)

	require.Equal(t, refusesReason, notReady(t.Context(), refused, ""))
	lines := new(logLines)
	o := &outages{log: slog.New(slog.NewTextHandler(lines, nil)), pool: refused}
	for range 3 {
		o.logger().Error("loop failed, will go on", "error", refused.Ping(t.Context()))
	}
	require.Equal(t, refusesReason, o.Reason())
	require.Len(t, lines.with(""), 1, "%v", lines.with(""))

	_, err = owner.Exec(t.Context(), `ALTER ROLE its LOGIN`)
	require.NoError(t, err)
	o.look(t.Context())
	require.Empty(t, o.Reason())
}

// A database that stores nothing more is not ready, and says why.
func TestADatabaseWhoseDiskIsFull(t *testing.T) {
	t.Parallel()
	cfg, lines := servedConfig(t, testdb.URL(t)), new(logLines)
	serveLogged(t, cfg, slog.New(slog.NewTextHandler(lines, nil)))
	waitUntil(t, "the server is ready", isReady(t, cfg.Listen))

	pool, err := pg.Open(t.Context(), cfg.DatabaseURL, pg.WithMaxConns(1))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	waitUntil(t, "the server is registered", func() (registered bool, err error) {
		err = pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM workers)`).Scan(&registered)
		return registered, err
	})
	_, err = pool.Exec(t.Context(), `
		CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
		CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON workers EXECUTE FUNCTION full_disk()`)
	require.NoError(t, err)
	waitUntil(t, "the server is not ready", func() (bool, error) {
		status, text := ask(t, http.MethodGet, "http://"+cfg.Listen+"/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "the disk of the database is full"),
			fmt.Errorf("%d %s", status, text)
	})
	_, err = pool.Exec(t.Context(), `DROP TRIGGER full_disk ON workers`)
	require.NoError(t, err)
	waitUntil(t, "the server is ready again", isReady(t, cfg.Listen))
	require.Len(t, lines.with("the database cannot be used"), 1)
}

// A server on a standby, or on a database that is read-only, is not ready.
func TestADatabaseThatCanOnlyBeRead(t *testing.T) {
	t.Parallel()
	cfg := servedConfig(t, testdb.URL(t))
	pool, err := pg.Open(t.Context(), cfg.DatabaseURL, pg.WithMaxConns(1))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.Empty(t, notReady(t.Context(), pool, ""))
	_, err = pool.Exec(context.Background(), `SET default_transaction_read_only = on`)
	require.NoError(t, err)
	require.Contains(t, notReady(t.Context(), pool, ""), "the database can only be read")
}
