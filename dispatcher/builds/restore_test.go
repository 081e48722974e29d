package builds_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/storage"
)

// client returns the path of one of PostgreSQL's client programs, which are installed beside the tests' server.
func client(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/", "/opt/homebrew/opt/postgresql@*/bin/",
		"/usr/local/opt/postgresql@*/bin/"} {
		if found, _ := filepath.Glob(pattern + name); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	require.FailNow(t, name+" is not installed; it comes with PostgreSQL")
	return ""
}

// backup dumps the database, as an operator would.
func backup(w *dispatchertest.World) string {
	w.T.Helper()
	file := filepath.Join(w.T.TempDir(), "backup")
	out, err := exec.Command(client(w.T, "pg_dump"), "--format=custom", "--file="+file, w.URL).CombinedOutput()
	require.NoError(w.T, err, string(out))
	return file
}

// restored returns the world after its database was lost and restored from a backup. The files are unchanged.
func restored(w *dispatchertest.World, backup string) *dispatchertest.World {
	w.T.Helper()
	url := testdb.Empty(w.T)
	out, err := exec.Command(client(w.T, "pg_restore"), "--no-owner", "--exit-on-error", "--dbname="+url,
		backup).CombinedOutput()
	require.NoError(w.T, err, string(out))
	r := &dispatchertest.World{T: w.T, URL: url, Probe: w.Probe, Scratch: w.T.TempDir(), Data: w.Data, Ops: w.Ops}
	r.Pool, r.Requests = r.Open(pg.Open), r.Open(pg.OpenRequests)
	r.Storage, err = storage.New(storage.Config{Root: r.Data, Pool: r.Pool, Rows: enginetest.Engines()})
	require.NoError(w.T, err)
	w.T.Cleanup(func() { require.NoError(w.T, r.Storage.Close()) })
	r.Tenant = &dispatchertest.Tenant{W: r, Caller: w.Caller, Landing: w.Landing}
	r.Roots.Store(w.Caller.OrgSlug, w.Landing)
	r.D = r.Dispatcher("restored")
	return r
}

// settleOver settles and moves the time forward, until no retry is waiting.
func settleOver(w *dispatchertest.World) {
	w.T.Helper()
	for range 10 {
		w.Settle()
		if w.Count(`SELECT FROM waiting WHERE reason = 'backoff'`) == 0 {
			return
		}
		w.Promote(time.Now().Add(time.Hour))
	}
	require.Fail(w.T, "retries do not end")
}

// Files written after the backup are harmless: the same work is done again beside them.
func TestRestoreWithNewerFiles(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Poll() // its task is queued, also in the backup
	backup := backup(w)
	w.Settle()
	w.Probe.Put("raw", "2024-01-03", "c")
	w.Poll()
	w.Settle()
	newer := w.Read("letters_made")
	require.Len(t, newer, 3)

	r := restored(w, backup)
	require.Empty(t, r.Lost(), "every file that the backup names is there")
	require.Len(t, r.Read("letters_made"), 1)
	r.Poll()
	settleOver(r)
	require.Equal(t, newer, r.Read("letters_made"))
	require.Empty(t, r.Lost())
	r.Check()
}

// Files that gc removed since the backup are missing. doctor finds them, and rematerialize repairs the dataset.
func TestRestoreWithoutOlderFiles(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Serve(dispatchertest.Upkept)
	before := w.Read("letters_made")
	backup := backup(w)
	_, err := computeAnew(w, "letters/raw/0", anew{})
	require.NoError(t, err)
	w.Settle()
	require.Len(t, w.GC(time.Now().Add(dispatchertest.PastWindow)).Generations, 2)

	r := restored(w, backup)
	require.Equal(t, []string{"*letters/raw/0 2024-01-01", "*letters/raw/0 2024-01-02", "*letters_made 2024-01-01",
		"*letters_made 2024-01-02"}, slices.Sorted(slices.Values(r.Lost())))
	_, err = r.TryRead("letters_made")
	require.Error(t, err)

	_, err = computeAnew(r, "letters/raw/0", anew{})
	require.NoError(t, err)
	settleOver(r)
	require.Equal(t, before, r.Read("letters_made"))
	for _, name := range r.Lost() {
		require.NotContains(t, name, "*", "what serves is whole")
	}
	r.GC(time.Now().Add(dispatchertest.PastWindow))
	require.Empty(t, r.Lost(), "what was lost of the version before went with it")
	require.Equal(t, before, r.Read("letters_made"))
}

// A truncated file is found by its size.
func TestVerifyFindsAShortFile(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	require.Empty(t, w.Lost())
	file := filepath.Join(w.Data, w.Named()[0])
	require.NoError(t, os.Chmod(file, 0o600))
	require.NoError(t, os.Truncate(file, 7))
	require.Len(t, w.Lost(), 1)
}

func TestVerifyTables(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.InTables)
	require.Empty(t, w.Lost())
	w.Exec(`DELETE FROM data_acme._revisions`)
	require.Equal(t, []string{"*letters_made 2024-01-01"}, w.Lost())
}
