package python_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/examples/processtest"
)

// Handlers that wait for a file, and one that listens. Leases are short, so that a worker which was stopped loses them
// soon.
const livesDAG = `name: lives
defaults: { runtime: python, heartbeat_timeout_seconds: 5, retry: { initial_seconds: 1, max_seconds: 1 } }
jobs:
  - name: waits
    operator: handler
    source: { kind: manual }
    config: { handler: waits }
  - name: listens
    operator: handler
    source: { kind: manual }
    outputs: 0
    config: { handler: listens }
publish:
  who: { from: { job: waits } }
`

// gate is a folder of files that handlers wait for.
type gate struct{ dir string }

func (g gate) open(t *testing.T, worker, name string) {
	t.Helper()
	require.NoError(t, touch(filepath.Join(g.dir, worker+"-"+name)))
}

func (w *world) liver(t *testing.T, g gate, name string, env ...string) *process {
	t.Helper()
	return w.worker(t, "lives.py", append(env, "GATE="+g.dir, "WORKER="+name)...)
}

func attempt(n int, status string) func(views.TaskDetail) bool {
	return func(task views.TaskDetail) bool { return task.Attempt == n && task.Status == status }
}

func TestLives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, livesDAG)

	// One after the other: each wants the tasks to go to its own workers.
	t.Run("a stale worker commits nothing", w.staleWorker)
	t.Run("a killed worker's task goes on elsewhere", w.killedWorker)
	t.Run("a canceled task hears of it", w.canceledTask)
	t.Run("a stopping worker finishes its tasks", w.drained)
	t.Run("and hands back what does not end", w.handedBack)
	t.Run("a worker that is drained ends", w.drainedWorker)
	t.Run("a worker stops whichever thread the signal comes to", w.signaledThread)
}

func (w *world) staleWorker(t *testing.T) {
	g := gate{t.TempDir()}
	first := w.liver(t, g, "first", "POOL=1") // no poll of its is left open, which would get the next attempt
	id := w.run(t, "lives/waits", `{"gate": "stale"}`)
	first.says(t, "begins 1\n")
	first.signal(t, syscall.SIGSTOP)
	second := w.liver(t, g, "second")
	second.says(t, "begins 2\n")

	// The first goes on while the second attempt runs.
	g.open(t, "first", "stale")
	before := w.task(t, id)
	require.True(t, attempt(2, "Running")(before), "%+v", before.Task)

	first.signal(t, syscall.SIGCONT)
	first.says(t, "goes on 1\n")
	first.says(t, "its end was not accepted")
	after := w.task(t, id)
	after.Progress, after.State, after.RanSeconds = before.Progress, before.State, before.RanSeconds // the second's own
	require.Equal(t, before, after)

	g.open(t, "second", "stale")
	w.ended(t, id, "Completed")
	require.JSONEq(t, `{"worker": "second", "attempt": 2}`, string(w.task(t, id).Result))

	rows := w.must(t, "datasets", "preview", "who")
	require.Contains(t, rows, "second")
	require.NotContains(t, rows, "first")
}

func (w *world) killedWorker(t *testing.T) {
	g := gate{t.TempDir()}
	first := w.liver(t, g, "first")
	id := w.run(t, "lives/waits", `{"gate": "killed"}`)
	first.says(t, "begins 1\n")
	first.signal(t, syscall.SIGKILL)
	require.Equal(t, -1, first.ends(t))

	g.open(t, "second", "killed")
	w.liver(t, g, "second")
	task := w.ended(t, id, "Completed")
	require.Equal(t, 2, task.Attempt)
	require.JSONEq(t, `{"worker": "second", "attempt": 2}`, string(task.Result))
}

func (w *world) canceledTask(t *testing.T) {
	worker := w.liver(t, gate{t.TempDir()}, "first")
	id := w.run(t, "lives/listens", `{}`)
	worker.says(t, "begins 1\n")
	w.reach(t, id, "its progress", func(task views.TaskDetail) bool {
		return task.Progress == 25 && task.State == "a quarter"
	})
	w.must(t, "tasks", "cancel", id, "--yes")
	worker.says(t, "hears of its cancellation\n")
	task := w.ended(t, id, "Canceled")
	require.Equal(t, 1, task.Attempt)
}

func (w *world) drained(t *testing.T) {
	g := gate{t.TempDir()}
	worker := w.liver(t, g, "first")
	id := w.run(t, "lives/waits", `{"gate": "drained"}`)
	worker.says(t, "begins 1\n")
	worker.signal(t, syscall.SIGTERM)
	worker.says(t, "stops: SIGTERM")
	g.open(t, "first", "drained")
	require.Zero(t, worker.ends(t))
	require.True(t, strings.HasSuffix(worker.said(), "the worker ends\n"))
	require.Equal(t, 1, w.ended(t, id, "Completed").Attempt)
}

func (w *world) handedBack(t *testing.T) {
	g := gate{t.TempDir()}
	first := w.liver(t, g, "first", "DRAIN=0.2")
	id := w.run(t, "lives/waits", `{"gate": "back"}`)
	first.says(t, "begins 1\n")
	first.signal(t, syscall.SIGTERM)
	require.Zero(t, first.ends(t))
	require.Contains(t, first.said(), "tasks handed back: 1")

	g.open(t, "second", "back")
	w.liver(t, g, "second")
	task := w.ended(t, id, "Completed")
	require.Equal(t, 2, task.Attempt)
	require.Zero(t, task.Failures, "to be handed back is no failure")
}

func (w *world) drainedWorker(t *testing.T) {
	worker := w.liver(t, gate{t.TempDir()}, "drained")
	processtest.Eventually(t, "the worker to be known", func() bool {
		var workers []dispatcher.Worker
		w.decode(t, &workers, "workers", "list")
		return slices.ContainsFunc(workers, func(found dispatcher.Worker) bool {
			return found.ID == "drained" && slices.Equal(found.Runtimes, []string{"python"})
		})
	})
	w.must(t, "workers", "drain", "drained", "--yes")
	require.Zero(t, worker.ends(t))
	require.Contains(t, worker.said(), "stops: the worker was drained")
	require.True(t, strings.HasSuffix(worker.said(), "the worker ends\n"))
}

// signaledThread sends SIGTERM to a thread that is not the main one, as the kernel may if the process was stopped.
func (w *world) signaledThread(t *testing.T) {
	worker := w.liver(t, gate{t.TempDir()}, "signaled")
	worker.says(t, "takes tasks of runtime")
	pid := worker.cmd.Process.Pid
	var threads []os.DirEntry
	worker.until(t, func() bool {
		var err error
		threads, err = os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		require.NoError(t, err)
		return len(threads) > 1
	})
	thread, err := strconv.Atoi(threads[len(threads)-1].Name())
	require.NoError(t, err)
	require.NotEqual(t, pid, thread)

	require.NoError(t, unix.Tgkill(pid, thread, unix.SIGTERM))
	require.Zero(t, worker.ends(t))
}
