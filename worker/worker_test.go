package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/protocol"
	"github.com/dagctl/dagctl/workerapi/workerapitest"
)

// document has a job for whatever a test calls "act", one that may run for two seconds only, and a pair that hands rows
// from one worker's task to the next.
const document = `
name: work
defaults: { runtime: poll, heartbeat_timeout_seconds: 5, retry: { initial_seconds: 1 } }
jobs:
  - { name: act, operator: handler, source: { kind: manual }, outputs: 0, config: { handler: act } }
  - name: short
    operator: handler
    source: { kind: manual }
    outputs: 0
    timeout_seconds: 2
    config: { handler: act }
  - { name: made, operator: handler, source: { kind: manual }, config: { handler: make } }
  - { name: summed, operator: handler, inputs: [{ from: { job: made } }], outputs: 0, config: { handler: sum } }
`

type act func(ctx context.Context, t *worker.Task, payload map[string]any) (any, error)

// world is a server with the document deployed, and a worker.
type world struct {
	*workerapitest.Server
	worker *worker.Worker
	stop   func() error // ends the worker as SIGTERM does and returns what Run returned
}

// start deploys the document and runs a worker with a handler "act".
func start(t *testing.T, run act, change ...func(*worker.Config)) *world {
	t.Helper()
	w := &world{Server: workerapitest.New(t)}
	w.Deploy(t, "work", document)
	w.begin(t, run, change...)
	return w
}

// begin runs a worker until the test ends.
func (w *world) begin(t *testing.T, run act, change ...func(*worker.Config)) {
	t.Helper()
	cfg := worker.Config{URL: w.URL, Token: w.Token, Runtime: workerapitest.Runtime, ScratchDir: t.TempDir(),
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, f := range change {
		f(&cfg)
	}

	var err error
	w.worker, err = worker.New(cfg)
	require.NoError(t, err)

	worker.Handle(w.worker, "act", run)

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended, done := error(nil), make(chan struct{})
	go func() {
		defer close(done)
		ended = w.worker.Run(ctx)
	}()

	w.stop = func() error {
		cancel()
		<-done
		return ended
	}
	t.Cleanup(func() { require.NoError(t, w.stop()) })
}

func (w *world) act(t *testing.T, payload string) uuid.UUID {
	t.Helper()
	return w.Enqueue(t, "work", "act", dispatcher.EnqueueItem{Payload: json.RawMessage(payload)})
}

// result reads what the task's run returned.
func (w *world) result(t *testing.T, id uuid.UUID) (result string) {
	t.Helper()
	require.NoError(t, w.Pool.QueryRow(t.Context(), `SELECT payload::text FROM task_results WHERE task_id = $1`, id).
		Scan(&result))
	return result
}

// waits blocks until the run's context ends and returns why.
func waits(ctx context.Context, _ *worker.Task, _ map[string]any) (any, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func TestARunEndsWithItsResultAndItsLines(t *testing.T) {
	t.Parallel()
	w := start(t, func(_ context.Context, task *worker.Task, payload map[string]any) (any, error) {
		task.Progress(50, "half")
		task.Log.Info("on it", "n", payload["n"])
		return map[string]any{"twice": payload["n"]}, nil
	})
	id := w.act(t, `{"n": 9007199254740993}`)
	done := w.Ended(t, id, protocol.Completed)
	require.Equal(t, 1, done.Attempt)

	require.JSONEq(t, `{"twice": 9007199254740993}`, w.result(t, id))
	var line string
	require.NoError(t, w.Pool.QueryRow(t.Context(), `SELECT text FROM task_logs WHERE task_id = $1`, id).Scan(&line))
	require.Equal(t, "on it n=9007199254740993", line)
}

// What was said about a task when it was made comes with it; a timer says so when it was due.
func TestATaskComesWithItsMetadata(t *testing.T) {
	t.Parallel()
	w := start(t, func(_ context.Context, task *worker.Task, _ map[string]any) (any, error) {
		return map[string]any{"metadata": task.Metadata}, nil
	})
	said := w.Enqueue(t, "work", "act", dispatcher.EnqueueItem{Payload: json.RawMessage(`{}`),
		Metadata: json.RawMessage(`{"ticket": 9007199254740993, "traceparent": "none"}`)})
	silent := w.act(t, `{}`)
	w.Ended(t, said, protocol.Completed)
	w.Ended(t, silent, protocol.Completed)
	require.JSONEq(t, `{"metadata": {"ticket": 9007199254740993}}`, w.result(t, said))
	require.JSONEq(t, `{"metadata": null}`, w.result(t, silent))
}

func TestAPanicFailsTheTaskForGoodAndTheWorkerGoesOn(t *testing.T) {
	t.Parallel()
	w := start(t, func(_ context.Context, _ *worker.Task, payload map[string]any) (any, error) {
		if payload["panic"] == true {
			panic("on purpose")
		}
		return nil, nil
	})
	failed := w.Ended(t, w.act(t, `{"panic": true}`), protocol.Failed)
	require.Equal(t, "panic: on purpose", failed.Error)
	require.Nil(t, failed.NextRetryAt)
	require.Equal(t, 1, failed.Attempt)
	w.Ended(t, w.act(t, `{}`), protocol.Completed)
}

func TestErrorsAreRetriedUnlessMarked(t *testing.T) {
	t.Parallel()
	w := start(t, func(_ context.Context, task *worker.Task, payload map[string]any) (any, error) {
		switch {
		case payload["lasting"] == true:
			return nil, worker.NotRetryable(errors.New("no such account"))
		case task.Attempt == 1:
			return nil, errors.New("try later")
		}
		return nil, nil
	})

	lasting, passing := w.act(t, `{"lasting": true}`), w.act(t, `{}`)
	unfit := w.act(t, `[1]`)

	done := w.Ended(t, passing, protocol.Completed)
	require.Equal(t, 2, done.Attempt)
	require.Equal(t, "try later", done.Attempts[0].Error)

	failed := w.Ended(t, lasting, protocol.Failed)
	require.Equal(t, "no such account", failed.Error)
	require.Nil(t, failed.NextRetryAt)

	failed = w.Ended(t, unfit, protocol.Failed)
	require.Contains(t, failed.Error, "payload does not fit act")
	require.Equal(t, 1, failed.Attempt)
}

func TestCallsAreRepeatedWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	s := workerapitest.New(t)
	s.Deploy(t, "work", document)
	s.Refuse("/internal/task-poll", 2, http.StatusServiceUnavailable)
	s.Refuse("/v1/task/logs", 1, http.StatusBadGateway)
	s.Refuse("/v1/task/complete", 3, http.StatusServiceUnavailable)
	w := &world{Server: s}
	w.begin(t, func(_ context.Context, task *worker.Task, _ map[string]any) (any, error) {
		ran.Add(1)
		task.Log.Info("said once")
		return nil, nil
	})

	id := w.act(t, `{}`)
	done := w.Ended(t, id, protocol.Completed)
	require.Equal(t, 1, done.Attempt)
	require.EqualValues(t, 1, ran.Load())
	require.Equal(t, 4, w.Calls("/v1/task/complete"))

	var lines int
	require.NoError(t, w.Pool.QueryRow(t.Context(), `SELECT count(*) FROM task_logs WHERE task_id = $1`, id).
		Scan(&lines))
	require.Equal(t, 1, lines)
}

// The server takes the completion, and its answer gets lost: the same completion again must be answered as the first.
func TestACompletionWhoseAnswerIsLostIsRepeated(t *testing.T) {
	t.Parallel()
	s := workerapitest.New(t)
	s.Deploy(t, "work", document)
	var lost atomic.Bool
	s.Break(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/task/complete" || !lost.CompareAndSwap(false, true) {
			return false
		}
		s.API.Handler().ServeHTTP(deaf{}, r)
		w.WriteHeader(http.StatusGatewayTimeout)
		return true
	})

	w := &world{Server: s}
	w.begin(t, func(context.Context, *worker.Task, map[string]any) (any, error) { return "ok", nil })
	id := w.act(t, `{}`)
	require.Equal(t, 1, w.Ended(t, id, protocol.Completed).Attempt)

	w.Eventually(t, "the second call", func() bool { return w.Calls("/v1/task/complete") == 2 })
	require.NoError(t, w.stop())
	require.Equal(t, 2, w.Calls("/v1/task/complete"))
}

// deaf is an answer that nobody receives.
type deaf struct{}

func (deaf) Header() http.Header         { return http.Header{} }
func (deaf) Write(p []byte) (int, error) { return len(p), nil }
func (deaf) WriteHeader(int)             {}

func TestHeartbeatsKeepTheLease(t *testing.T) {
	t.Parallel()
	w := start(t, func(ctx context.Context, task *worker.Task, _ map[string]any) (any, error) {
		task.Progress(40, "on it")
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(workerapitest.Lease + time.Second):
			return nil, nil
		}
	})

	w.Refuse("/v1/task/heartbeat", 1, http.StatusServiceUnavailable)
	id := w.act(t, `{}`)
	running := w.Reach(t, id, "its progress", func(task views.TaskDetail) bool { return task.Progress == 40 })
	require.Equal(t, "on it", running.State)
	require.Equal(t, 1, w.Ended(t, id, protocol.Completed).Attempt)
	require.GreaterOrEqual(t, w.Calls("/v1/task/heartbeat"), 3)
}

// A heartbeat that the server refuses costs the lease.
func TestNoTextOfProgressOrOfAnErrorIsRefused(t *testing.T) {
	t.Parallel()
	w := start(t, func(ctx context.Context, task *worker.Task, _ map[string]any) (any, error) {
		task.Progress(400, "bad\x00text, \xff\nand \x1b[0mcontrol"+strings.Repeat("é", 1000))
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(workerapitest.Lease + time.Second):
			return nil, worker.NotRetryable(errors.New("bad\x00error \xff"))
		}
	})
	id := w.act(t, `{}`)
	running := w.Reach(t, id, "its progress", func(task views.TaskDetail) bool { return task.Progress == 100 })
	require.Contains(t, running.State, "bad text, \uFFFD and  [0mcontrolééé")

	failed := w.Ended(t, id, protocol.Failed)
	require.Equal(t, 1, failed.Attempt)
	require.Equal(t, "bad\uFFFDerror \uFFFD", failed.Error)
}

func TestALostLeaseStopsTheRun(t *testing.T) {
	t.Parallel()
	causes := make(chan error, 1)
	started := make(chan struct{})
	w := start(t, func(ctx context.Context, task *worker.Task, _ map[string]any) (any, error) {
		if task.Attempt > 1 {
			return "second", nil
		}
		close(started)
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return "first", nil // too late: the end of this run must change nothing
	})

	id := w.act(t, `{}`)
	<-started
	w.Expire(t, id)

	done := w.Ended(t, id, protocol.Completed)
	require.Equal(t, 2, done.Attempt)
	require.ErrorIs(t, <-causes, worker.ErrFenced)
	require.JSONEq(t, `"second"`, w.result(t, id))
}

func TestCancelStopsTheRun(t *testing.T) {
	t.Parallel()
	causes := make(chan error, 1)
	w := start(t, func(ctx context.Context, task *worker.Task, payload map[string]any) (any, error) {
		_, err := waits(ctx, task, payload)
		causes <- err
		return nil, err
	})
	id := w.act(t, `{}`)
	w.Ended(t, id, "Running")
	w.Do(t, http.MethodPost, "/v1/tasks/"+id.String()+":cancel", nil, nil)
	w.Ended(t, id, protocol.Canceled)
	require.ErrorIs(t, <-causes, worker.ErrCanceled)
}

func TestARunThatTakesTooLongIsStopped(t *testing.T) {
	t.Parallel()
	w := start(t, waits)
	id := w.Enqueue(t, "work", "short", dispatcher.EnqueueItem{MaxAttempts: 1})
	failed := w.Ended(t, id, protocol.Failed)
	require.Contains(t, failed.Error, "longer than its timeout")
}

func TestADrainedWorkerFinishesWhatRuns(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	w := start(t, func(context.Context, *worker.Task, map[string]any) (any, error) {
		<-release
		return nil, nil
	}, func(c *worker.Config) { c.PoolSize, c.ID = 1, "drained" })

	running := w.act(t, `{}`)
	w.Ended(t, running, "Running")
	w.Do(t, http.MethodPost, "/v1/workers/drained:drain", nil, nil)
	w.Eventually(t, "the worker to hear of it", func() bool { return w.worker.Health(time.Now()).Draining })

	left := w.act(t, `{}`)
	close(release)
	w.Ended(t, running, protocol.Completed)
	require.NoError(t, w.stop())
	require.Equal(t, "Queued", string(w.Task(t, left).Status))
}

func TestAStoppedWorkerGivesItsTasksBack(t *testing.T) {
	t.Parallel()
	w := start(t, waits, func(c *worker.Config) { c.DrainTimeout = 100 * time.Millisecond })
	id := w.act(t, `{}`)
	w.Ended(t, id, "Running")
	require.NoError(t, w.stop())
	w.begin(t, func(context.Context, *worker.Task, map[string]any) (any, error) { return nil, nil })
	done := w.Ended(t, id, protocol.Completed)
	require.Equal(t, 2, done.Attempt)
	require.Zero(t, done.Failures, "a worker that stops is no failure of the task")
}

func TestAStoppedWorkerLetsRunsEnd(t *testing.T) {
	t.Parallel()
	began, release := make(chan struct{}), make(chan struct{})
	w := start(t, func(context.Context, *worker.Task, map[string]any) (any, error) {
		close(began)
		<-release
		return nil, nil
	})
	id := w.act(t, `{}`)
	<-began // a task that is claimed but does not run yet goes back to the queue

	stopped := make(chan error, 1)
	go func() { stopped <- w.stop() }()
	w.Eventually(t, "the worker to stop", func() bool { return w.worker.Health(time.Now()).Draining })
	close(release)
	require.NoError(t, <-stopped)
	require.Equal(t, protocol.Completed, string(w.Task(t, id).Status))
}

// idle is a source that has no tasks for long.
type idle struct{}

func (idle) Next(context.Context, int) ([]worker.Given, error) { return nil, worker.ErrIdle }

func TestAnIdleWorkerExits(t *testing.T) {
	t.Parallel()
	s := workerapitest.New(t)
	w, err := worker.New(worker.Config{URL: s.URL, Token: s.Token, Runtime: workerapitest.Runtime, IdleExit: true,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	worker.Handle(w, "act", func(context.Context, *worker.Task, any) (any, error) { return nil, nil })
	require.NoError(t, w.Serve(t.Context(), idle{}))
	require.True(t, w.Health(time.Now()).Draining)
}

// A worker removes what one before it left that was killed.
func TestFoldersOfKilledWorkersGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	left := filepath.Join(dir, "dagctl-task-1")
	require.NoError(t, os.Mkdir(left, 0o700))
	require.NoError(t, os.WriteFile(left+".lock", nil, 0o600))
	w, err := worker.New(worker.Config{URL: "http://127.0.0.1:1", Token: "t", Runtime: workerapitest.Runtime,
		ScratchDir: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	worker.Handle(w, "x", func(context.Context, *worker.Task, any) (any, error) { return nil, nil })

	ended, end := context.WithCancel(t.Context())
	end()
	require.NoError(t, w.Run(ended))
	require.NoDirExists(t, left)
	require.NoFileExists(t, left+".lock")
}

func TestRowsGoFromTaskToTask(t *testing.T) {
	t.Parallel()
	s := workerapitest.New(t)
	s.Deploy(t, "work", document)
	w, err := worker.New(worker.Config{URL: s.URL, Token: s.Token, Runtime: workerapitest.Runtime,
		ScratchDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)

	type row struct {
		N int `json:"n"`
	}
	sums := make(chan int, 1)
	worker.Handle(w, "make", func(ctx context.Context, task *worker.Task, _ any) (any, error) {
		out, err := task.Output("")
		if err != nil {
			return nil, err
		}
		return nil, worker.Write(ctx, out, slices.Values([]row{{1}, {2}, {39}}))
	})

	worker.Handle(w, "sum", func(ctx context.Context, task *worker.Task, _ any) (any, error) {
		if _, err := task.Input("nothing"); worker.Retryable(err) {
			return nil, errors.New("an input that the job lacks would be lacking again")
		}
		in, err := task.Input("made")
		if err != nil {
			return nil, err
		}

		sum := 0
		for r, err := range worker.Rows[row](ctx, in) {
			if err != nil {
				return nil, err
			}
			sum += r.N
		}
		sums <- sum
		return sum, nil
	})

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	s.Ended(t, s.Enqueue(t, "work", "made", dispatcher.EnqueueItem{}), protocol.Completed)
	require.Equal(t, 42, <-sums)
	stop()
	require.NoError(t, <-ended)
}

func TestAWorkerRegistersWithWhatItRuns(t *testing.T) {
	t.Parallel()
	w := start(t, waits, func(c *worker.Config) { c.ID, c.Version, c.PoolSize = "w1", "1.2.3", 7 })
	var said struct {
		version string
		pool    int
		runs    []string
	}

	w.Eventually(t, "the worker to be registered", func() bool {
		err := w.Pool.QueryRow(t.Context(), `SELECT version, pool_size, operators FROM workers WHERE id = 'w1'`).
			Scan(&said.version, &said.pool, &said.runs)
		return err == nil
	})
	require.Equal(t, "1.2.3", said.version)
	require.Equal(t, 7, said.pool)
	require.Equal(t, []string{"handler", "handler:act"}, said.runs)

	// The row is there before the worker has the answer.
	w.Eventually(t, "the worker to hear the server", func() bool { return w.worker.Health(time.Now()).OK })
	require.False(t, w.worker.Health(time.Now()).Draining)
	require.False(t, w.worker.Health(time.Now().Add(2*time.Minute)).OK, "the server has been silent for two minutes")
}

func TestAConfigIsChecked(t *testing.T) {
	t.Parallel()
	good := worker.Config{URL: "https://dagctl.example.com", Token: "t", Runtime: "poll"}
	_, err := worker.New(good)
	require.NoError(t, err)

	for message, change := range map[string]func(*worker.Config){
		"URL":           func(c *worker.Config) { c.URL = "dagctl.example.com" },
		"runtime":       func(c *worker.Config) { c.Runtime = "a b" },
		"pool size":     func(c *worker.Config) { c.PoolSize = 1001 },
		"drain timeout": func(c *worker.Config) { c.DrainTimeout = -1 },
		"token":         func(c *worker.Config) { c.Token = "t\n" },
	} {
		bad := good
		change(&bad)
		_, err := worker.New(bad)
		require.ErrorContains(t, err, message)
	}

	w, err := worker.New(worker.Config{})
	require.NoError(t, err, "a worker that is handed its claims needs no address")
	err = w.Run(t.Context())
	for _, lacks := range []string{"no URL", "no token", "no runtime", "no handler"} {
		require.ErrorContains(t, err, lacks)
	}
}

func TestAClaimThatWasNotGrantedIsNotRun(t *testing.T) {
	t.Parallel()
	w, err := worker.New(worker.Config{})
	require.NoError(t, err)
	lease := uuid.New()
	for name, claim := range map[string]protocol.Claim{
		"not claimed":      {Status: protocol.NotClaimed, Reason: protocol.Throttled},
		"without a task":   {Status: protocol.Claimed, LeaseToken: &lease},
		"without a lease":  {Status: protocol.Claimed, Task: &protocol.Task{}},
		"the empty answer": {},
	} {
		require.Error(t, w.RunClaim(t.Context(), claim), name)
	}
}

func TestRefusalsAreErrorsToAskFor(t *testing.T) {
	t.Parallel()
	kinds := map[int]error{400: worker.ErrInvalid, 401: worker.ErrUnauthorized, 403: worker.ErrForbidden,
		404: worker.ErrNotFound, 409: worker.ErrConflict, 413: worker.ErrInvalid, 422: worker.ErrInvalid}
	all := slices.Collect(maps.Values(kinds))
	for status, want := range kinds {
		err := error(&worker.StatusError{Status: status})
		for _, kind := range all {
			require.Equal(t, kind == want, errors.Is(err, kind), "%d is %v", status, kind)
		}
	}

	s := workerapitest.New(t)
	client := worker.NewClient(s.URL+"/", "dagctl_worker_none", nil)
	_, err := client.Poll(t.Context(), protocol.PollRequest{WorkerID: "w", Runtime: "poll", Max: 1})
	require.ErrorIs(t, err, worker.ErrUnauthorized)

	client = worker.NewClient(s.URL, s.Token, nil)
	_, err = client.Poll(t.Context(), protocol.PollRequest{WorkerID: "w", Runtime: "poll", Max: 5000})
	require.ErrorIs(t, err, worker.ErrInvalid)

	refusal := new(worker.StatusError)
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, "POST /internal/task-poll", refusal.Call)
	require.Contains(t, strings.Join(refusal.Problems, "\n"), "body.max")
}
