package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/testdb"
)

// built is the built program as a server, in a process of its own that can be killed. Its only token is the admin's,
// which is the writer's as well.
type built struct {
	*world  // without an app and a pool for requests
	process *process
	args    []string
}

// newBuilt starts a server for the org acme with more of a config. The text ADDRESS in it stands for where the server
// listens.
func newBuilt(t *testing.T, config string) *built {
	t.Helper()
	address, database := processtest.FreeAddress(t), testdb.Empty(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	config = "base_url: http://" + address + "\n" + strings.ReplaceAll(config, "ADDRESS", address)
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	w := &world{url: "http://" + address, roots: t.TempDir(), files: t.TempDir(), tokens: map[string]string{}}
	b := &built{world: w, args: []string{"--database-url", database, "--listen", address, "--storage-root", w.files,
		"--file-root", "acme=" + w.roots, "--migrate", "--config", file}}
	b.process = startServer(t, b.args...)

	env := w.env(t, admin)
	env["DAGCTL_DATABASE_URL"] = database
	eventually(t, "the schema", func() (bool, error) {
		return strings.Contains(dagctl(t, env, "doctor").out, "needs a token"), nil
	})
	w.tokens[admin] = strings.TrimSpace(must(t, env, "admin", "bootstrap", "--org", "acme"))
	w.tokens[writer] = w.tokens[admin]
	b.ready(t)

	pool, err := pgxpool.New(t.Context(), database)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	w.pool = pool
	return b
}

// ready waits until the server answers.
func (b *built) ready(t *testing.T) {
	t.Helper()
	eventually(t, "ready", func() (bool, error) {
		r := dagctl(t, b.env(t, admin), "whoami")
		return r.code == cli.ExitOK, nil
	})
}

// crash kills the server and starts it again.
func (b *built) crash(t *testing.T) {
	t.Helper()
	b.process.kill(t)
	b.start(t)
}

// start starts the server after it was killed.
func (b *built) start(t *testing.T) {
	t.Helper()
	b.process = startServer(t, b.args...)
	b.ready(t)
}

// stopWhile stops the server while a query counts something, which lasts then until the server is killed. It reports
// false if nothing was counted for so long.
func (b *built) stopWhile(t *testing.T, within time.Duration, count func() int) bool {
	t.Helper()
	for until := time.Now().Add(within); time.Now().Before(until); {
		if count() == 0 {
			require.NoError(t, cli.Sleep(t.Context(), time.Millisecond))
			continue
		}
		b.process.signal(t, syscall.SIGSTOP)
		if count() > 0 {
			return true
		}
		b.process.signal(t, syscall.SIGCONT)
	}
	return false
}
