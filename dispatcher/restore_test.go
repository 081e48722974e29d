package dispatcher

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// client finds one of PostgreSQL's client programs, which come with the server that the tests run.
func client(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/", "/opt/homebrew/opt/postgresql@*/bin/", "/usr/local/opt/postgresql@*/bin/"} {
		if found, _ := filepath.Glob(pattern + name); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	require.FailNow(t, name+" is not installed; it comes with PostgreSQL")
	return ""
}

// backup dumps the database, as an operator would.
func (w *world) backup() string {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "backup")
	out, err := exec.Command(client(w.t, "pg_dump"), "--format=custom", "--file="+file, w.url).CombinedOutput()
	require.NoError(w.t, err, string(out))
	return file
}

// restored is the world after its database was lost and restored from a backup. The files are as they are.
func (w *world) restored(backup string) *world {
	w.t.Helper()
	url := testdb.Empty(w.t)
	out, err := exec.Command(client(w.t, "pg_restore"), "--no-owner", "--exit-on-error", "--dbname="+url, backup).CombinedOutput()
	require.NoError(w.t, err, string(out))
	r := &world{t: w.t, url: url, probe: w.probe, scratch: w.t.TempDir(), data: w.data, ops: w.ops}
	r.pool, r.asked = r.open(pg.Open), r.open(pg.OpenRequests)
	r.storage, err = storage.New(storage.Config{Root: r.data, Pool: r.pool})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, r.storage.Close()) })
	r.tenant = &tenant{w: r, caller: w.caller, landing: w.landing}
	r.roots.Store(w.caller.OrgSlug, w.landing)
	r.d = r.dispatcher("restored")
	return r
}

// lost lists the revisions that lack something, as "dataset partition@revision".
func (w *world) lost() (names []string) {
	w.t.Helper()
	var after registry.RevisionPosition
	for {
		lost, _, next, err := w.d.Registry.VerifyFiles(w.t.Context(), w.caller, after, 2)
		require.NoError(w.t, err)
		for _, l := range lost {
			mark := ""
			if l.Served {
				mark = "*"
			}
			names = append(names, mark+l.Dataset+" "+l.Key)
		}
		if next == nil {
			return names
		}
		after = *next
	}
}

// settleOver settles and lets time pass, until no retry is waiting.
func (w *world) settleOver() {
	w.t.Helper()
	for range 10 {
		w.settle()
		if w.count(`SELECT FROM waiting WHERE reason = 'backoff'`) == 0 {
			return
		}
		w.promote(time.Now().Add(time.Hour))
	}
	require.Fail(w.t, "retries do not end")
}

// What was written after the backup is harmless: the same work is done again beside it.
func TestRestoreWithNewerFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(upkept)
	w.probe.put("raw", "2024-01-02", "b")
	w.poll() // its task is queued, and is so in the backup
	backup := w.backup()
	w.settle()
	w.probe.put("raw", "2024-01-03", "c")
	w.poll()
	w.settle()
	newer := w.read("letters_made")
	require.Len(t, newer, 3)

	r := w.restored(backup)
	require.Empty(t, r.lost(), "every file that the backup names is there")
	require.Len(t, r.read("letters_made"), 1)
	r.poll()
	r.settleOver()
	require.Equal(t, newer, r.read("letters_made"))
	require.Empty(t, r.lost())
	r.check()
}

// What gc removed since the backup is missing from it. doctor finds it, and computing it anew mends it.
func TestRestoreWithoutOlderFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.probe.put("raw", "2024-01-02", "b")
	w.serve(upkept)
	before := w.read("letters_made")
	backup := w.backup()
	_, err := w.d.Registry.Rematerialize(t.Context(), w.caller, "letters/raw/0", false, false)
	require.NoError(t, err)
	w.settle()
	require.Len(t, w.gc(time.Now().Add(pastWindow)).Generations, 2)

	r := w.restored(backup)
	require.Equal(t, []string{"*letters/raw/0 2024-01-01", "*letters/raw/0 2024-01-02", "*letters_made 2024-01-01", "*letters_made 2024-01-02"}, slices.Sorted(slices.Values(r.lost())))
	_, err = r.tryRead("letters_made")
	require.Error(t, err)

	_, err = r.d.Registry.Rematerialize(t.Context(), r.caller, "letters/raw/0", false, false)
	require.NoError(t, err)
	r.settleOver()
	require.Equal(t, before, r.read("letters_made"))
	for _, name := range r.lost() {
		require.NotContains(t, name, "*", "what serves is whole")
	}
	r.gc(time.Now().Add(pastWindow))
	require.Empty(t, r.lost(), "what was lost of the version before went with it")
	require.Equal(t, before, r.read("letters_made"))
}

// A file that is cut short is found by its size.
func TestVerifyFindsAShortFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(upkept)
	require.Empty(t, w.lost())
	file := filepath.Join(w.data, w.named()[0])
	require.NoError(t, os.Chmod(file, 0o600))
	require.NoError(t, os.Truncate(file, 7))
	require.Len(t, w.lost(), 1)
}

func TestVerifyTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(inTables)
	require.Empty(t, w.lost())
	w.exec(`DELETE FROM data_acme._revisions`)
	require.Equal(t, []string{"*letters_made 2024-01-01"}, w.lost())
}
