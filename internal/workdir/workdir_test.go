package workdir

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain is also the process that the tests kill: it makes a folder, says so, and waits.
func TestMain(m *testing.M) {
	if parent := os.Getenv("WORKDIR_TEST_PARENT"); parent != "" {
		f, err := Make(parent, "run-")
		if err != nil {
			os.Exit(1)
		}
		_, _ = os.Stdout.WriteString(f.Path)
		_ = os.Stdout.Close()
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestFoldersOfKilledProcessesGo(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	mine, err := Make(parent, "run-")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(mine.Path, "x"), nil, 0o600))

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "WORKDIR_TEST_PARENT="+parent)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	said := make([]byte, 1000)
	n, err := out.Read(said)
	require.NoError(t, err)
	theirs := string(said[:n])
	require.NoError(t, Sweep(parent, "run-"))
	require.DirExists(t, theirs, "its process lives")

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.NoError(t, Sweep(parent, "other-"))
	require.DirExists(t, theirs, "another prefix")
	require.NoError(t, Sweep(parent, "run-"))
	require.NoDirExists(t, theirs)
	require.FileExists(t, filepath.Join(mine.Path, "x"))
	require.NoError(t, mine.Remove())
	entries, err := os.ReadDir(parent)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestFoldersWithoutALockGoWhenTheyAreOld(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	young, aged := filepath.Join(parent, "run-young"), filepath.Join(parent, "run-aged")
	for _, dir := range []string{young, aged} {
		require.NoError(t, os.Mkdir(dir, 0o700))
	}
	before := time.Now().Add(-2 * old)
	require.NoError(t, os.Chtimes(aged, before, before))
	require.NoError(t, Sweep(parent, "run-"))
	require.DirExists(t, young)
	require.NoDirExists(t, aged)
}

// A sweep never takes a folder that is just being made.
func TestMakingAndSweepingAtOnce(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				f, err := Make(parent, "run-")
				if err == nil {
					err = os.WriteFile(filepath.Join(f.Path, "x"), nil, 0o600)
				}
				if err == nil {
					err = f.Remove()
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 100 {
				if err := Sweep(parent, "run-"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// What others put beside the folders, under names like theirs, stops nobody.
func TestSweepPassesOverWhatIsNoLock(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(parent, "run-1.lock"), 0o700))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(parent, "run-2.lock")))
	require.NoError(t, os.WriteFile(filepath.Join(parent, "run-3"), nil, 0o600))
	require.NoError(t, Sweep(parent, "run-"))
	require.DirExists(t, filepath.Join(parent, "run-1.lock"))
}
