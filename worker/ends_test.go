package worker_test

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/protocol"
	"github.com/dagctl/dagctl/workerapi/workerapitest"
)

const completeMany, completeOne = "/v1/tasks/complete", "/v1/task/complete"

// TestMain is also a worker: a test starts this program again, to kill it.
func TestMain(m *testing.M) {
	if url := os.Getenv("WORKER_URL"); url != "" {
		w, err := worker.New(worker.Config{URL: url, Token: os.Getenv("WORKER_TOKEN"), Runtime: workerapitest.Runtime,
			PoolSize: crowd})
		if err == nil {
			worker.Handle(w, "act", together())
			err = w.Run(context.Background())
		}
		if err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// crowd is how many tasks end at the same time.
const crowd = 40

// together returns a function whose runs end when a crowd of them has begun.
func together() act {
	var (
		mu    sync.Mutex
		begun int
		all   = make(chan struct{})
	)
	return func(ctx context.Context, _ *worker.Task, payload map[string]any) (any, error) {
		mu.Lock()
		says := payload["says"]
		if says == "nothing that can be stored" {
			says = "\x00"
		}
		if begun++; begun%crowd == 0 {
			close(all)
			all = make(chan struct{})
			mu.Unlock()
			return says, nil
		}
		wait := all
		mu.Unlock()
		select {
		case <-wait:
			return says, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func ofACrowd(c *worker.Config) { c.PoolSize = crowd }

// actAll makes a crowd of tasks.
func (w *world) actAll(t *testing.T) (ids []uuid.UUID) {
	t.Helper()
	for range crowd {
		ids = append(ids, w.act(t, `{}`))
	}
	return ids
}

// endOnce waits until tasks are completed, each by its first attempt, and checks that each has ended once.
func (w *world) endOnce(t *testing.T, ids []uuid.UUID) {
	t.Helper()
	for _, id := range ids {
		require.Equal(t, 1, w.Ended(t, id, protocol.Completed).Attempt)
	}
	w.endedOnce(t, len(ids))
}

func (w *world) endedOnce(t *testing.T, tasks int) {
	t.Helper()
	var ends, ended int
	require.NoError(t, w.Pool.QueryRow(t.Context(), `
		SELECT count(*), count(DISTINCT task_id) FROM task_events WHERE to_status = 'Completed'`).Scan(&ends, &ended))
	require.Equal(t, []int{tasks, tasks}, []int{ends, ended}, "a task ended twice")
}

func TestTasksThatEndTogetherAreEndedByOneCall(t *testing.T) {
	t.Parallel()
	w := start(t, together(), ofACrowd)
	w.endOnce(t, w.actAll(t))
	require.Positive(t, w.Calls(completeMany))
	require.Less(t, w.Calls(completeOne), crowd)
}

func TestALoneEndIsSentByItself(t *testing.T) {
	t.Parallel()
	w := start(t, func(context.Context, *worker.Task, map[string]any) (any, error) { return nil, nil })
	for range 3 {
		w.Ended(t, w.act(t, `{}`), protocol.Completed)
	}
	require.Zero(t, w.Calls(completeMany))
	require.Equal(t, 3, w.Calls(completeOne))
}

// A server from before the call answers that there is no such route, and is not asked again.
func TestAnOlderServerGetsEachEndByItself(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed} {
		w := &world{Server: workerapitest.New(t)}
		w.Deploy(t, "work", document)
		w.Refuse(completeMany, 1_000_000, status)
		w.begin(t, together(), ofACrowd)
		first := w.actAll(t)
		for _, id := range first {
			w.Ended(t, id, protocol.Completed)
		}

		asked := w.Calls(completeMany)
		require.Positive(t, asked)
		w.endOnce(t, append(first, w.actAll(t)...))
		require.Equal(t, asked, w.Calls(completeMany))
		require.NoError(t, w.stop())
	}
}

// Whatever becomes of the call, each task ends, and once: by a call of its own, with its own fence.
func TestAFailingCallForManyLosesNoEnd(t *testing.T) {
	t.Parallel()
	w := start(t, together(), ofACrowd)
	w.Refuse(completeMany, 1, http.StatusServiceUnavailable)
	first := w.actAll(t)
	w.endOnce(t, first)

	w.Refuse(completeMany, 1, http.StatusUnauthorized)
	first = append(first, w.actAll(t)...)
	w.endOnce(t, first)

	w.Break(func(_ http.ResponseWriter, r *http.Request) bool { // the call takes effect, and its answer is lost
		if r.URL.Path != completeMany {
			return false
		}
		w.API.Handler().ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	})
	w.endOnce(t, append(first, w.actAll(t)...))
}

func TestOneRefusedEndDoesNotHarmTheOthers(t *testing.T) {
	t.Parallel()
	w := start(t, together(), ofACrowd)
	odd := w.act(t, `{"says": "nothing that can be stored"}`)
	var rest []uuid.UUID
	for range crowd - 1 {
		rest = append(rest, w.act(t, `{}`))
	}
	require.Contains(t, w.Ended(t, odd, protocol.Failed).Error, "not valid")
	for _, id := range rest {
		w.Ended(t, id, protocol.Completed)
	}
}

// A worker that is killed when its call is on the way leaves its tasks to others, and none of them ends twice.
func TestAWorkerThatIsKilledWithGatheredEndsLosesNone(t *testing.T) {
	t.Parallel()
	w := &world{Server: workerapitest.New(t)}
	w.Deploy(t, "work", document)
	program, err := os.Executable()
	require.NoError(t, err)
	victim := exec.CommandContext(t.Context(), program)
	victim.Env = append(os.Environ(), "WORKER_URL="+w.URL, "WORKER_TOKEN="+w.Token)

	var once sync.Once
	started, killed := make(chan struct{}), make(chan struct{})
	w.Break(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != completeMany {
			return false
		}
		dies := false
		once.Do(func() {
			<-started
			_ = victim.Process.Kill()
			_ = victim.Wait()
			close(killed)
			dies = true
		})
		if dies {
			panic(http.ErrAbortHandler) // before the server has seen anything of it
		}
		return false
	})

	ids := w.actAll(t)
	require.NoError(t, victim.Start())
	close(started)
	<-killed
	w.begin(t, func(context.Context, *worker.Task, map[string]any) (any, error) { return nil, nil }, ofACrowd)
	again := 0
	for _, id := range ids {
		if w.Ended(t, id, protocol.Completed).Attempt > 1 {
			again++
		}
	}
	require.Positive(t, again)
	w.endedOnce(t, len(ids))
}

// The server could not be told what is not JSON. The attempt fails at once, rather than when its lease ends.
func TestWhatIsNotJSONFailsTheAttempt(t *testing.T) {
	t.Parallel()
	bad := json.RawMessage(`{"a": NaN}`)
	far := time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		run  func(t *worker.Task) (any, error)
		want string
	}{
		"result": {func(*worker.Task) (any, error) { return bad, nil }, "the result of act is not JSON: "},
		"NaN":    {func(*worker.Task) (any, error) { return math.NaN(), nil }, "the result of act is not JSON: "},
		"state":  {func(t *worker.Task) (any, error) { return nil, t.SetState(bad) }, "operator state: "},
		"payload": {func(t *worker.Task) (any, error) {
			t.Enqueue(protocol.EnqueuedTask{Job: "act"}, protocol.EnqueuedTask{Job: "act", Payload: bad})
			return nil, nil
		}, "tasks[1].payload is not JSON: invalid character 'N'"},
		"metadata": {func(t *worker.Task) (any, error) {
			t.Enqueue(protocol.EnqueuedTask{Job: "act", Metadata: bad})
			return nil, nil
		}, "tasks[0].metadata is not JSON: invalid character 'N'"},
		"commit": {func(t *worker.Task) (any, error) {
			t.Enqueue(protocol.EnqueuedTask{Job: "act", Payload: bad})
			_, err := t.Commit(context.Background())
			return nil, err
		}, "tasks[0].payload is not JSON: invalid character 'N'"},
		"reading": {func(t *worker.Task) (any, error) { t.SettleReading(bad); return nil, nil },
			"reading is not JSON: invalid character 'N'"},
		"event": {func(t *worker.Task) (any, error) { t.Emit(protocol.Event{Start: &far}); return nil, nil },
			"year outside of range"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, func(_ context.Context, task *worker.Task, _ map[string]any) (any, error) {
				return c.run(task)
			})
			failed := w.Ended(t, w.act(t, `{}`), protocol.Failed)
			require.Contains(t, failed.Error, c.want)
			require.Equal(t, 1, failed.Attempt)
			require.Nil(t, failed.NextRetryAt)
		})
	}
}
