package dispatcher_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/storage/health"
)

// smallDisk makes the storage's folder a file system of 4 MiB.
func smallDisk(c *storage.Config) {
	if err := unix.Mount("none", c.Root, "tmpfs", 0, "size=4m"); err != nil {
		panic(err)
	}
}

// watched lets a world's dispatcher know the state of its storage.
func watched(t *testing.T, w *dispatchertest.World) {
	t.Helper()
	h, err := health.New(health.Config{Storage: w.Storage, Pool: w.Pool, Log: w.D.Log})
	require.NoError(t, err)
	require.Empty(t, h.Look(t.Context()))
	w.D.Health = h // before anything runs
}

// claims runs one round of the claim loop.
func claims(t *testing.T, w *dispatchertest.World) {
	t.Helper()
	var running sync.WaitGroup
	_, err := w.D.ClaimAndRun(t.Context(), w.D.InProcessRuntimes(), &running, time.Now())
	require.NoError(t, err)
	running.Wait()
}

func TestAFullDiskSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t, smallDisk)
	t.Cleanup(func() { _ = unix.Unmount(w.Data, unix.MNT_DETACH) })
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Pair)
	watched(t, w)

	w.Probe.Put("raw", "2024-02-02", "b")
	w.Poll()
	task := w.One(w.D)
	full := filepath.Join(w.Data, "full")
	require.ErrorIs(t, os.WriteFile(full, make([]byte, 8<<20), 0o600), unix.ENOSPC)
	for try := 1; ; try++ {
		dispatchertest.Execute(t.Context(), w.D, task)
		require.Equal(t, "Failed handed_back waiting:backoff", w.Task(task.TaskID))
		require.Zero(t, w.Count(`SELECT FROM tasks WHERE id = $1 AND failures > 0`, task.TaskID))
		w.Promote(dispatchertest.Later(time.Hour))
		if try == 5 {
			break // more often than a task may fail
		}
		task = w.One(w.D)
	}

	claims(t, w)
	require.Equal(t, "Queued handed_back ready", w.Task(task.TaskID), "no task is taken while the disk is full")
	_, err := w.D.HeartbeatWorker(t.Context(), time.Now())
	require.NoError(t, err)
	why := w.WhyTask(w.Caller, task.TaskID)
	require.Contains(t, dispatchertest.CodesIn(why.Reasons), "queued/storage_away")
	require.Contains(t, why.Reasons[0].Because[0].Text, "the storage is full")
	workers, err := w.D.Workers(t.Context(), w.Caller, dispatcher.WorkerKey{}, 10, time.Now())
	require.NoError(t, err)
	require.Equal(t, "unfit", workers[0].State)
	require.Equal(t, "the storage is full", workers[0].Unfit)

	require.NoError(t, os.Remove(full))
	require.Empty(t, w.D.Health.Look(t.Context()))
	claims(t, w)
	require.Equal(t, "Completed", w.Task(task.TaskID))
	w.Check()
}

// A bucket that refuses a request and answers again before anybody looks is no failure of the task either.
func TestABucketThatIsAwaySpendsNoAttempt(t *testing.T) {
	t.Parallel()
	srv := tests3.Start(t)
	w := dispatchertest.NewWorld(t, dispatchertest.InBucket(srv))
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Pair)
	watched(t, w)

	w.Probe.Put("raw", "2024-02-02", "b")
	w.Poll()
	task := w.One(w.D)
	srv.Kill()
	dispatchertest.Execute(t.Context(), w.D, task)
	require.Equal(t, "Failed handed_back waiting:backoff", w.Task(task.TaskID))
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE id = $1 AND failures > 0`, task.TaskID))
	w.Promote(dispatchertest.Later(time.Hour))
	claims(t, w)
	require.Equal(t, "Queued handed_back ready", w.Task(task.TaskID))

	srv.Restart()
	require.Empty(t, w.D.Health.Look(t.Context()))
	claims(t, w)
	require.Equal(t, "Completed", w.Task(task.TaskID))
}

// A worker elsewhere is asked to complete again, and the attempt goes on meanwhile.
func TestACompletionElsewhereWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t, smallDisk)
	t.Cleanup(func() { _ = unix.Unmount(w.Data, unix.MNT_DETACH) })
	w.Serve(farDAG)
	watched(t, w)
	f := claimFar(w.Tenant, "daily", "2024-02-02")
	outputs := f.upload("a.parquet", rows("x"))

	require.NoError(t, unix.Mount("none", w.Data, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, "size=4m"))
	_, err := f.complete(f.completed(outputs), time.Now())
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.ErrorContains(t, err, "the storage can only be read")
	require.Equal(t, "Running leased", w.Task(f.id))

	require.NoError(t, unix.Mount("none", w.Data, "tmpfs", unix.MS_REMOUNT, "size=4m"))
	_, err = f.complete(f.completed(outputs), time.Now())
	require.NoError(t, err)
	require.Equal(t, "Completed", w.Task(f.id))
}

// What a task that does not fit has written is removed, and a look finds room then. The task is handed back until there
// is more, and fails in the end where that does not help.
func TestATaskThatDoesNotFitSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t, smallDisk)
	t.Cleanup(func() { _ = unix.Unmount(w.Data, unix.MNT_DETACH) })
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Pair)
	watched(t, w)
	w.D.Health.Shortage = time.Nanosecond
	w.Probe.On("made", func(context.Context, *operators.Task) (operators.Result, error) {
		large := filepath.Join(w.Data, "large")
		defer os.Remove(large)
		return operators.Result{}, os.WriteFile(large, make([]byte, 8<<20), 0o600)
	})

	w.Probe.Put("raw", "2024-02-02", "b")
	w.Poll()
	dispatchertest.Execute(t.Context(), w.D, w.One(w.D)) // raw
	w.Route()
	task := w.One(w.D)
	for range 5 {
		dispatchertest.Execute(t.Context(), w.D, task)
		require.Equal(t, "Failed handed_back waiting:backoff", w.Task(task.TaskID))
		require.Empty(t, w.D.Health.Look(t.Context()), "the shortage has ended")
		w.Promote(dispatchertest.Later(time.Hour))
		task = w.One(w.D)
	}
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE id = $1 AND failures > 0`, task.TaskID))
	dispatchertest.Execute(t.Context(), w.D, task)
	require.Equal(t, 1, w.Count(`SELECT FROM tasks WHERE id = $1 AND failures = 1`, task.TaskID))
	require.Equal(t, 1, w.Count(`SELECT FROM tasks WHERE id = $1 AND error_message LIKE 'the storage has no room for what%'`,
		task.TaskID))
}
