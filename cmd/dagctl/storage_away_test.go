package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/cmd/dagctl/server"
)

// While the storage can only be read, what needs an engine says so, and the first request that meets it makes the
// server know.
func TestAStorageThatCanOnlyBeReadIsSaid(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, unix.Mount("none", root, "tmpfs", 0, "size=100m"))
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	w := newWorld(t, func(c *server.Config) { c.Storage.Root = root })
	ask := func(method, path, body string) (int, string) {
		return w.send(t, writer, method, path, "application/json", strings.NewReader(body))
	}
	query := func() (int, string) { return ask(http.MethodPost, "/v1/query", `{"sql": "SELECT 1 AS one"}`) }

	soon := func(do func() bool) { require.Eventually(t, do, time.Minute, 20*time.Millisecond) }
	soon(func() bool { status, _ := ask(http.MethodGet, "/readyz", ""); return status == http.StatusOK })
	soon(func() bool { // busy while the server looks at it
		return unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, "size=100m") == nil
	})
	const says = "this server cannot use its storage: the storage can only be read"
	status, text := query()
	require.Equal(t, http.StatusServiceUnavailable, status, text)
	require.Contains(t, text, says)
	require.Contains(t, text, "When the storage cannot be used")
	status, text = ask(http.MethodGet, "/readyz", "")
	require.Equal(t, http.StatusServiceUnavailable, status, "the server knows at once: %s", text)
	require.Contains(t, text, "the storage can only be read")
	soon(func() bool {
		return strings.Contains(must(t, w.env(t, admin), "attention"), "the storage can only be read")
	})

	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(readingsDAG), 0o600))
	for _, args := range [][]string{{"plan", file}, {"deploy", file, "--wait=false"}} {
		got := dagctl(t, w.env(t, writer), args...)
		require.NotZero(t, got.code)
		require.Contains(t, got.err, says, args)
	}

	require.NoError(t, unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT, "size=100m"))
	status, text = query()
	require.Equal(t, http.StatusOK, status, text)
}

// What a task wrote that does not fit is removed, and its storage counts as full until there is room for it. Then the
// task goes on, and no attempt was spent.
func TestATaskThatDoesNotFitWaitsForRoom(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, unix.Mount("none", root, "tmpfs", 0, "size=12m"))
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	w := newWorld(t, func(c *server.Config) { c.Storage.Root = root })
	w.land(t, "2026-01-01")
	const large = `  - name: large
    operator: sql
    inputs: [{ from: { job: landing } }]
    config: { query: "SELECT hash(i) AS a, hash(i, 1) AS b, hash(i, 2) AS c FROM range(1000000) r(i)" }
publish:
`
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(readingsDAG, "publish:\n", large, 1)), 0o600))
	must(t, w.env(t, writer), "deploy", file, "--wait=false")

	soon := func(do func() bool) { require.Eventually(t, do, time.Minute, 50*time.Millisecond) }
	soon(func() bool {
		status, text := w.send(t, nobody, http.MethodGet, "/readyz", "", nil)
		return status == http.StatusServiceUnavailable && strings.Contains(text, "the storage is full")
	})
	soon(func() bool {
		return strings.Contains(must(t, w.env(t, admin), "attention"), "the storage is full")
	})
	require.Contains(t, must(t, w.env(t, writer), "tasks", "list", "--job", "large"), "0/5", "no attempt is spent")

	require.NoError(t, unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT, "size=200m"))
	must(t, w.env(t, writer), "deploy", file)
	require.Zero(t, w.failures(t))
}

// failures counts the failures that tasks have.
func (w *world) failures(t *testing.T) (n int) {
	t.Helper()
	require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT coalesce(sum(failures), 0) FROM tasks`).Scan(&n))
	return n
}
