package python_test

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/examples/processtest"
)

// Handlers that wait for a file, and one that listens. Leases are short, so that a worker which was stopped loses them soon.
const livesDAG = `name: lives
defaults: { runtime: python, heartbeat_timeout_seconds: 5, retry: { initial_seconds: 1, max_seconds: 1 } }
jobs:
  - name: waits
    operator: handler
    source: { kind: manual }
    outputs: 0
    config: { handler: waits }
  - name: listens
    operator: handler
    source: { kind: manual }
    outputs: 0
    config: { handler: listens }
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

func attempt(n int, status string) func(dispatcher.TaskDetail) bool {
	return func(task dispatcher.TaskDetail) bool { return task.Attempt == n && task.Status == status }
}

// clear sees to it that no later worker gets a task.
func (w *world) clear(t *testing.T, id string) {
	t.Helper()
	if status := w.task(t, id).Status; status == "Running" || status == "Queued" {
		w.must(t, "tasks", "cancel", id, "--yes")
	}
}

func TestLives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, livesDAG)

	// One after the other: each wants the tasks to go to its own workers.
	t.Run("a stopped worker learns that its lease is lost", w.stoppedWorker)
	t.Run("a killed worker's task goes on elsewhere", w.killedWorker)
	t.Run("a canceled task hears of it", w.canceledTask)
	t.Run("a worker that is told to stop hands back what does not end", w.handedBack)
	t.Run("a worker that is drained ends", w.drainedWorker)
}

func (w *world) stoppedWorker(t *testing.T) {
	g := gate{t.TempDir()}
	first := w.liver(t, g, "first", "POOL=1") // no poll of its is left open, which would get the next attempt
	id := w.run(t, "lives/listens", `{}`)
	first.says(t, "begins 1\n")
	first.signal(t, syscall.SIGSTOP)
	second := w.liver(t, g, "second", "DRAIN=0.1")
	second.says(t, "begins 2\n")
	first.signal(t, syscall.SIGCONT)
	first.says(t, "hears of its loss\n")
	require.True(t, attempt(2, "Running")(w.task(t, id)))
	w.must(t, "tasks", "cancel", id, "--yes")
	second.says(t, "hears of its cancellation\n")
}

func (w *world) killedWorker(t *testing.T) {
	g := gate{t.TempDir()}
	first := w.liver(t, g, "first")
	id := w.run(t, "lives/waits", `{"gate": "killed"}`)
	first.says(t, "begins 1\n")
	first.signal(t, syscall.SIGKILL)
	require.Equal(t, -1, first.ends(t))

	second := w.liver(t, g, "second")
	second.says(t, "begins 2\n")
	require.True(t, attempt(2, "Running")(w.task(t, id)))
	g.open(t, "second", "killed")
	second.says(t, "goes on 2\n")
	w.clear(t, id)
}

func (w *world) canceledTask(t *testing.T) {
	worker := w.liver(t, gate{t.TempDir()}, "first")
	id := w.run(t, "lives/listens", `{}`)
	worker.says(t, "begins 1\n")
	w.reach(t, id, "its progress", func(task dispatcher.TaskDetail) bool { return task.Progress == 25 && task.State == "a quarter" })
	w.must(t, "tasks", "cancel", id, "--yes")
	worker.says(t, "hears of its cancellation\n")
}

func (w *world) handedBack(t *testing.T) {
	g := gate{t.TempDir()}
	first := w.liver(t, g, "first", "DRAIN=0.2")
	id := w.run(t, "lives/waits", `{"gate": "back"}`)
	first.says(t, "begins 1\n")
	first.signal(t, syscall.SIGTERM)
	require.Zero(t, first.ends(t))
	require.Contains(t, first.said(), "tasks handed back: 1")

	second := w.liver(t, g, "second")
	second.says(t, "begins 2\n")
	task := w.task(t, id)
	require.True(t, attempt(2, "Running")(task))
	require.Zero(t, task.Failures, "to be handed back is no failure")
	g.open(t, "second", "back")
	second.says(t, "goes on 2\n")
	w.clear(t, id)
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
