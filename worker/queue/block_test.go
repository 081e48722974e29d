package queue_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/worker/conformance"
	"github.com/dagctl/dagctl/worker/protocol"
)

// block names tasks in one message.
func block(t *testing.T, tasks ...uuid.UUID) string {
	t.Helper()
	text, err := json.Marshal(protocol.Message{TaskIDs: tasks})
	require.NoError(t, err)
	return string(text)
}

// echoes makes tasks that end at once.
func (w *world) echoes(t *testing.T, n int) (tasks []uuid.UUID) {
	t.Helper()
	for i := range n {
		tasks = append(tasks, w.create(t, conformance.Echo, i))
	}
	return tasks
}

// ranOnce waits until nothing is left of the queue, and checks that each task has run once.
func (w *world) ranOnce(t *testing.T, tasks []uuid.UUID) {
	t.Helper()
	eventually(t, "the queue to be empty", func() bool { return w.left(t, w.url) == "0+0" })
	for _, task := range tasks {
		eventually(t, "the task to complete", func() bool { return w.status(t, task) == "Completed" })
		require.EqualValues(t, 1, w.timesRun(task))
	}
	require.Equal(t, "0+0", w.left(t, w.dlq))
}

func TestTasksOfABlockRunOnceHoweverOftenTheyAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5, nil)
	tasks := w.echoes(t, 25)
	gone := w.create(t, conformance.Echo, "canceled meanwhile")
	require.NoError(t, w.Cancel(t.Context(), gone))

	w.send(t, block(t, append(tasks[20:], gone, uuid.New(), tasks[20])...), block(t, tasks[10:20]...))
	w.send(t, block(t, tasks[:10]...), names(t, tasks[3]))
	mixed := slices.Concat(tasks[15:], tasks[:5])
	w.send(t, block(t, mixed[:10]...), block(t, mixed[5:]...))
	w.start(t, time.Minute)
	w.ranOnce(t, tasks)
	require.Zero(t, w.timesRun(gone))
}

// With fewer slots than a message has tasks, the others wait in the worker, and the message stays hidden.
func TestABlockThatIsLargerThanThePoolRunsInTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, nil)
	long := w.create(t, conformance.Sleep, map[string]int{"Seconds": 13})
	tasks := append(w.echoes(t, 9), long)
	w.send(t, block(t, slices.Concat(tasks[9:], tasks[:9])...))
	w.startWith(t, 10*time.Second, 1)
	w.ranOnce(t, tasks)
	require.EqualValues(t, len(tasks), w.claims.Load(), "the message reappeared while its tasks ran or waited")
}

// What waits for a slot of a worker that stops is another's at once, and what runs there goes on.
func TestAWorkerThatStopsLeavesTheRestOfABlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5, nil)
	long := w.create(t, conformance.Sleep, map[string]int{"Seconds": 5})
	tasks := append(w.echoes(t, 4), long)
	w.send(t, block(t, slices.Concat(tasks[4:], tasks[:4])...))
	stop := w.startWith(t, time.Hour, 1)
	eventually(t, "the first task to run", func() bool { return w.timesRun(long) == 1 })
	stop()

	w.startWith(t, time.Hour, 1)
	w.ranOnce(t, tasks)
}

// A worker that is killed ends nothing and deletes nothing: the message comes again, with the tasks that ran and those
// that waited.
func TestAKilledWorkerLosesNothingOfABlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5, nil)
	tasks := w.echoes(t, 10)
	w.send(t, block(t, tasks...))

	program, err := os.Executable()
	require.NoError(t, err)
	victim := exec.CommandContext(t.Context(), program)
	victim.Env = append(os.Environ(), "WORKER_URL="+w.server, "WORKER_TOKEN="+w.Token, "WORKER_QUEUE="+w.url,
		"WORKER_ENDPOINT="+w.queues.Endpoint)
	require.NoError(t, victim.Start())
	running := func() (list []uuid.UUID) {
		for _, task := range tasks {
			if w.status(t, task) == "Running" {
				list = append(list, task)
			}
		}
		return list
	}
	eventually(t, "its slots to be full", func() bool { return len(running()) == 3 })
	require.NoError(t, victim.Process.Kill())
	require.Error(t, victim.Wait())
	for _, task := range running() {
		require.NoError(t, w.Expire(t.Context(), task))
	}

	w.start(t, time.Minute)
	w.ranOnce(t, tasks)
}

// While the server is away, a block costs no receives, and nothing of it is lost.
func TestAServerThatIsAwayLosesNothingOfABlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, nil)
	w.away.Store(true)
	tasks := w.echoes(t, 10)
	w.send(t, block(t, tasks...))
	w.startWith(t, 2*time.Second, 4)
	eventually(t, "the worker to ask again and again", func() bool { return w.claims.Load() >= 20 })
	w.away.Store(false)
	w.ranOnce(t, tasks)
}
