package filelock_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/filelock"
)

func TestOneHolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := filelock.Take(path)
	require.NoError(t, err)
	_, err = filelock.Take(path)
	var held *filelock.HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, fmt.Sprint(os.Getpid()), held.Process)

	require.NoError(t, first.Release())
	second, err := filelock.Take(path)
	require.NoError(t, err)
	require.NoError(t, second.Release())
}

// A process that was started meanwhile and has the descriptor, as every process has until it runs its program, does not
// keep the lock.
func TestAReleasedLockIsFreeAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := filelock.Take(path)
	require.NoError(t, err)
	child := exec.Command("sleep", "60")
	child.ExtraFiles = []*os.File{filelock.File(first)}
	require.NoError(t, child.Start())
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()

	require.NoError(t, first.Release())
	second, err := filelock.Take(path)
	require.NoError(t, err)
	require.NoError(t, second.Release())
}
