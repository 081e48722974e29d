package health_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/storage"
)

// taken is a file of 2 MiB, which leaves too little for another.
func taken(t *testing.T, root string) (remove func()) {
	t.Helper()
	name := filepath.Join(root, "taken")
	require.NoError(t, os.WriteFile(name, make([]byte, 2<<20), 0o600))
	return func() { require.NoError(t, os.Remove(name)) }
}

// tooLarge is what writing a file of 3 MiB fails with. It removes what it has written.
func tooLarge(t *testing.T, root string) error {
	t.Helper()
	name := filepath.Join(root, "large")
	err := os.WriteFile(name, make([]byte, 3<<20), 0o600)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, os.Remove(name))
	return fmt.Errorf("seal: %w", err)
}

// What a task has written is removed when it fails: a look finds room that was not enough.
func TestTheStorageIsFullUntilThereIsMoreRoom(t *testing.T) {
	t.Parallel()
	root := small(t)
	k := keep(t, database(t), storage.Config{Root: root})
	require.Empty(t, k.Look(t.Context()))
	remove := taken(t, root)
	require.Empty(t, k.Look(t.Context()), "there is room for small things")

	require.Equal(t, "the storage is full", explains(t, k, tooLarge(t, root)))
	require.Equal(t, "the storage is full", k.Reason())
	require.Equal(t, "the storage is full", k.Look(t.Context()))
	require.Contains(t, k.log.String(), "bytes left, and needs")
	remove()
	require.Empty(t, k.Look(t.Context()))
	remove = taken(t, root)
	require.Empty(t, k.Look(t.Context()), "what was short is forgotten")
	remove()
}

// A task that can never fit stops nobody for ever.
func TestATaskThatNeverFitsFails(t *testing.T) {
	t.Parallel()
	root := small(t)
	k := keep(t, database(t), storage.Config{Root: root})
	k.Shortage = time.Nanosecond
	require.Empty(t, k.Look(t.Context()))
	defer taken(t, root)()

	task := uuid.New()
	for range 5 {
		reason, err := k.Explains(t.Context(), task, tooLarge(t, root))
		require.Equal(t, "the storage is full", reason)
		require.NoError(t, err)
		require.Empty(t, k.Look(t.Context()), "the shortage has ended")
	}
	reason, err := k.Explains(t.Context(), task, tooLarge(t, root))
	require.Empty(t, reason)
	require.ErrorContains(t, err, "the storage has no room for what this task writes: that was so 6 times")
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Empty(t, k.Reason())
	require.Equal(t, "the storage is full", explains(t, k, tooLarge(t, root)), "another task has met it once")
}

// What other file systems and what statements say is not the storage's.
func TestOthersLackRoom(t *testing.T) {
	t.Parallel()
	k := keep(t, database(t), storage.Config{Root: t.TempDir()})
	require.Empty(t, k.Look(t.Context()))
	require.Empty(t, explains(t, k, storage.Elsewhere(fmt.Errorf("write: %w", unix.ENOSPC))))
	require.Empty(t, explains(t, k, errors.New("Invalid Input Error: No space left on device")))
	require.Empty(t, k.Reason())
}
