package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/pgdev"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/migrations"
)

func servedConfig(t *testing.T, databaseURL string) Config {
	t.Helper()
	cfg := DefaultConfig
	cfg.DatabaseURL, cfg.Storage.Root, cfg.Listen = databaseURL, t.TempDir(), processtest.FreeAddress(t)
	return cfg
}

// serveUntilEnd runs a server until the test ends.
func serveUntilEnd(t *testing.T, cfg Config) {
	t.Helper()
	serveLogged(t, cfg, slog.New(slog.DiscardHandler))
}

func serveLogged(t *testing.T, cfg Config, log *slog.Logger) {
	t.Helper()
	require.NoError(t, cfg.Validate())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, cfg, true, log) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
}

// ask returns the status and the text of an answer, or status 0 if nobody answers.
func ask(t *testing.T, method, address string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader("{}"))
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

func isReady(t *testing.T, address string) func() (bool, error) {
	return func() (bool, error) {
		status, text := ask(t, http.MethodGet, "http://"+address+"/readyz")
		return status == http.StatusOK, fmt.Errorf("%d %s", status, text)
	}
}

func TestAServerWaitsForItsDatabase(t *testing.T) {
	t.Parallel()
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
	cfg := servedConfig(t, u.String())
	serveUntilEnd(t, cfg)
	waitUntil(t, "the server answers", func() (bool, error) {
		status, text := ask(t, http.MethodGet, "http://"+cfg.Listen+"/healthz")
		return status == http.StatusOK, fmt.Errorf("%d %s", status, text)
	})
	status, text := ask(t, http.MethodGet, "http://"+cfg.Listen+"/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, text, "the database does not answer")

	// Now the database starts to answer.
	listener, err := net.Listen("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go forward(listener, socket)
	waitUntil(t, "the server is ready", isReady(t, cfg.Listen))
}

// forward carries every connection of a listener to a Unix socket, until the listener is closed.
func forward(listener net.Listener, socket string) {
	for {
		in, err := listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("unix", socket)
		if err != nil {
			_ = in.Close()
			continue
		}
		for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
			go func() {
				_, _ = io.Copy(pair[0], pair[1])
				_ = pair[0].Close()
			}()
		}
	}
}

func TestAServerDoesNotWaitForever(t *testing.T) {
	t.Parallel()
	away := servedConfig(t, "postgres://dagctl@"+processtest.FreeAddress(t)+"/dagctl")
	away.DatabaseWaitSeconds = 1
	u, err := url.Parse(testdb.URL(t))
	require.NoError(t, err)
	u.Path = "/no_such_database"
	refused := servedConfig(t, u.String())
	refused.DatabaseWaitSeconds = 3600
	for name, cfg := range map[string]Config{"away": away, "refused": refused} {
		err := serve(t.Context(), cfg, false, slog.New(slog.DiscardHandler))
		require.True(t, fault.Is(err, fault.Unavailable), "%s: %v", name, err)
	}
}

func TestWorkersHaveAnAddressOfTheirOwn(t *testing.T) {
	t.Parallel()
	cfg := servedConfig(t, testdb.URL(t))
	cfg.WorkerListen = processtest.FreeAddress(t)
	key, err := authz.EnsureTaskKey(t.TempDir() + "/task.pem")
	require.NoError(t, err)
	cfg.Runtimes, cfg.TaskKeys = RuntimesConfig{"python": {{Kind: backends.Poll}}}, []authz.TaskKey{key}
	serveUntilEnd(t, cfg)
	waitUntil(t, "people's address is ready", isReady(t, cfg.Listen))
	waitUntil(t, "workers' address is ready", isReady(t, cfg.WorkerListen))
	for path, want := range map[string][2]int{ // at the address of people, of workers
		"GET /v1/whoami":          {401, 404},
		"GET /v1/dags":            {401, 404},
		"GET /metrics":            {401, 404},
		"GET /":                   {401, 404},
		"GET /internal/jwks/task": {200, 200},
	} {
		method, path, _ := strings.Cut(path, " ")
		for i, address := range []string{cfg.Listen, cfg.WorkerListen} {
			status, text := ask(t, method, "http://"+address+path)
			require.Equal(t, want[i], status, "%s at %d: %s", path, i, text)
		}
	}
}

// waitUntil asks until the answer is yes, or a minute has passed.
func waitUntil(t *testing.T, what string, ask func() (bool, error)) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		ok, err := ask()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			require.NoError(t, err)
			require.Fail(t, "never happened: "+what)
		}
		require.NoError(t, cli.Sleep(t.Context(), 50*time.Millisecond))
	}
}

// A server whose requests have no role waits and says so, whether the role is missing, is too mighty or does not let it
// in, and goes on by itself once somebody has migrated.
func TestAServerWaitsForTheLoginOfRequests(t *testing.T) {
	t.Parallel()
	database, err := pgdev.Start(t.Context(), pgdev.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, database.Stop(context.Background())) })
	require.NoError(t, migrations.Up(t.Context(), database.URL()))
	owner, err := pg.Open(t.Context(), database.URL(), pg.WithMaxConns(2))
	require.NoError(t, err)
	t.Cleanup(owner.Close)

	root := t.TempDir()
	for _, c := range []struct{ spoil, says string }{
		{`ALTER ROLE dagctl_requests SUPERUSER`, "is SUPERUSER"},
		{`ALTER ROLE dagctl_requests PASSWORD 'another'`, "requests cannot log in as dagctl_requests"},
		{`GRANT dagctl TO dagctl_requests`, "is a member of"},
		{`DROP ROLE dagctl_requests`, "does not exist"},
	} {
		_, err := owner.Exec(t.Context(), c.spoil)
		require.NoError(t, err)
		cfg := servedConfig(t, database.URL())
		cfg.Storage.Root = root // all servers of a database have the same
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- serve(ctx, cfg, false, slog.New(slog.DiscardHandler)) }()
		waitUntil(t, "the server says what it lacks", func() (bool, error) {
			status, text := ask(t, http.MethodGet, "http://"+cfg.Listen+"/readyz")
			return status == http.StatusServiceUnavailable && strings.Contains(text, c.says) &&
				strings.Contains(text, "dagctl migrate"), fmt.Errorf("%s: %d %s", c.spoil, status, text)
		})
		found := checkDatabase(t.Context(), database.URL(), Config{})
		require.Len(t, found, 4)
		require.False(t, found[1].OK)
		require.Contains(t, found[1].Detail, c.says)
		require.Contains(t, found[1].Hint, "dagctl migrate")

		require.NoError(t, migrations.Up(t.Context(), database.URL()))
		waitUntil(t, "the server is ready", isReady(t, cfg.Listen))
		found = checkDatabase(t.Context(), database.URL(), Config{})
		require.True(t, found[1].OK, "%v", found)

		_, err = owner.Exec(t.Context(), `ALTER ROLE dagctl_requests PASSWORD 'changed meanwhile';
			SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'dagctl_requests'`)
		require.NoError(t, err)
		waitUntil(t, "the server says that it is ready no more", func() (bool, error) {
			status, text := ask(t, http.MethodGet, "http://"+cfg.Listen+"/readyz")
			return status == http.StatusServiceUnavailable &&
				strings.Contains(text, "requests cannot log in as dagctl_requests"), fmt.Errorf("%d %s", status, text)
		})
		require.NoError(t, migrations.Up(t.Context(), database.URL()))
		waitUntil(t, "the server is ready again", isReady(t, cfg.Listen))
		stop()
		require.NoError(t, <-ended)
	}
}

// A server warns of orgs that only its config knows: a mistyped name has no effect, and nothing else would say so.
func TestAServerWarnsOfUnknownOrgs(t *testing.T) {
	t.Parallel()
	cfg := servedConfig(t, testdb.URL(t))
	pool, err := pg.Open(t.Context(), cfg.DatabaseURL, pg.WithMaxConns(1))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = authz.CreateOrg(t.Context(), pool, "acme", "")
	require.NoError(t, err)
	cfg.FileRoots = map[string][]string{"acme": {t.TempDir()}, "amce": {t.TempDir()}}
	cfg.Operators.AllowCommand = []string{"acme", "umbrela"}

	var log strings.Builder
	app, err := New(t.Context(), cfg, cfg.Folders(), nil, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	app.Close()
	require.Contains(t, log.String(), "setting=file_roots org=amce")
	require.Contains(t, log.String(), "setting=operators.allow_command org=umbrela")
	require.NotContains(t, log.String(), "org=acme")
}
