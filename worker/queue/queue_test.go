package queue_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testaws"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/conformance"
	"github.com/dagctl/dagctl/worker/protocol"
	"github.com/dagctl/dagctl/worker/queue"
)

// TestMain is also a worker: a test starts this program again, to kill it.
func TestMain(m *testing.M) {
	// The SDK looks for credentials where AWS tools keep them; the test server accepts any.
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
		"AWS_REGION": "us-east-1"} {
		if err := os.Setenv(name, value); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if os.Getenv("WORKER_URL") != "" {
		if err := victim(); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// victim is the worker that a test kills: it begins its tasks and ends none.
func victim() error {
	w, err := worker.New(worker.Config{URL: os.Getenv("WORKER_URL"), Token: os.Getenv("WORKER_TOKEN"),
		Runtime: conformance.Runtime, PoolSize: 3})
	if err != nil {
		return err
	}
	worker.Handle(w, conformance.Echo, func(ctx context.Context, _ *worker.Task, _ any) (any, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	messages, err := queue.New(context.Background(), w, queue.Config{URL: os.Getenv("WORKER_QUEUE"),
		Endpoint: os.Getenv("WORKER_ENDPOINT"), Visibility: 3 * time.Second})
	if err != nil {
		return err
	}
	return w.Serve(context.Background(), messages)
}

// world is a queue, a scripted server, and a worker between them.
type world struct {
	*conformance.Scripted
	queues *testaws.Queues
	url    string // of the queue
	dlq    string
	server string
	away   atomic.Bool // the server answers 503
	claims atomic.Int64
	ran    sync.Map // task id → how often its function was called
}

func newWorld(t *testing.T, receives int, attributes map[string]string) *world {
	t.Helper()
	w := &world{Scripted: conformance.NewScripted(), queues: testaws.SQS(t)}
	w.url, w.dlq = w.queues.NewWithDLQ(t, receives, attributes)
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/internal/task-claim" {
			w.claims.Add(1)
		}
		if w.away.Load() {
			response.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.ServeHTTP(response, r)
	}))

	t.Cleanup(server.Close)
	w.server = server.URL
	return w
}

// start runs a worker until the test ends.
func (w *world) start(t *testing.T, visibility time.Duration) {
	t.Helper()
	w.startWith(t, visibility, 0)
}

// startWith runs a worker with so many slots until the test ends or calls stop.
func (w *world) startWith(t *testing.T, visibility time.Duration, slots int) (stop func()) {
	t.Helper()
	work, err := worker.New(worker.Config{URL: w.server, Token: w.Token, Runtime: conformance.Runtime, PoolSize: slots,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)

	count := func(task *worker.Task) {
		n, _ := w.ran.LoadOrStore(task.TaskID, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
	}
	worker.Handle(work, conformance.Echo, func(_ context.Context, t *worker.Task, payload any) (any, error) {
		count(t)
		return payload, nil
	})

	worker.Handle(work, conformance.Sleep, func(ctx context.Context, t *worker.Task, p struct{ Seconds int }) (any,
		error) {
		count(t)
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(time.Duration(p.Seconds) * time.Second):
			return nil, nil
		}
	})

	messages, err := queue.New(t.Context(), work, queue.Config{URL: w.url, Endpoint: w.queues.Endpoint,
		Visibility: visibility})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- work.Serve(ctx, messages) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return cancel
}

func (w *world) create(t *testing.T, handler string, payload any) uuid.UUID {
	t.Helper()
	task, err := w.Create(t.Context(), handler, payload)
	require.NoError(t, err)
	return task
}

// send puts messages on the queue.
func (w *world) send(t *testing.T, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		_, err := w.queues.Client.SendMessage(t.Context(),
			&sqs.SendMessageInput{QueueUrl: &w.url, MessageBody: aws.String(body)})
		require.NoError(t, err)
	}
}

func names(t *testing.T, task uuid.UUID) string {
	t.Helper()
	text, err := json.Marshal(protocol.Message{TaskID: task})
	require.NoError(t, err)
	return string(text)
}

func (w *world) status(t *testing.T, task uuid.UUID) string {
	t.Helper()
	state, err := w.Task(t.Context(), task)
	require.NoError(t, err)
	return state.Status
}

// timesRun returns how often a task's function was called.
func (w *world) timesRun(task uuid.UUID) int64 {
	n, ok := w.ran.Load(task)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

// left counts the messages of a queue as "visible+hidden".
func (w *world) left(t *testing.T, url string) string {
	t.Helper()
	got, err := w.queues.Client.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: &url,
		AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
	require.NoError(t, err)
	return got.Attributes["ApproximateNumberOfMessages"] + "+" + got.Attributes["ApproximateNumberOfMessagesNotVisible"]
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	// Bounds a failure: the machine may be busy
	require.Eventually(t, condition, 2*time.Minute, 20*time.Millisecond, what)
}

func TestDuplicatesAndDisorderDoNoHarm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5, nil)
	var tasks []uuid.UUID
	for i := range 12 {
		tasks = append(tasks, w.create(t, conformance.Echo, i))
	}

	gone := w.create(t, conformance.Echo, "canceled meanwhile")
	require.NoError(t, w.Cancel(t.Context(), gone))
	w.send(t, names(t, gone), names(t, uuid.New()))
	for i := range tasks { // in reverse order, and each twice
		w.send(t, names(t, tasks[len(tasks)-1-i]))
	}

	for _, task := range tasks {
		w.send(t, names(t, task))
	}
	w.start(t, time.Minute)
	eventually(t, "the queue to be empty", func() bool { return w.left(t, w.url) == "0+0" })
	for _, task := range tasks {
		require.Equal(t, "Completed", w.status(t, task))
		require.EqualValues(t, 1, w.timesRun(task))
	}
	require.Zero(t, w.timesRun(gone))
	require.Equal(t, "0+0", w.left(t, w.dlq))
}

func TestAMessageStaysHiddenWhileItsTaskRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5, nil)
	task := w.create(t, conformance.Sleep, map[string]int{"Seconds": 7})
	w.send(t, names(t, task))
	w.start(t, 3*time.Second)
	eventually(t, "the task to run", func() bool { return w.timesRun(task) == 1 })
	eventually(t, "the task to complete", func() bool { return w.status(t, task) == "Completed" })
	eventually(t, "the message to be gone", func() bool { return w.left(t, w.url) == "0+0" })
	require.EqualValues(t, 1, w.claims.Load(), "the message reappeared while the task ran")
}

func TestAPoisonMessageEndsInTheDLQAndBlocksNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, nil)
	poison := []string{"who am I", `{"task_id":"no id"}`, `{}`, `{"task_ids":[]}`, `{"task_ids":["no id"]}`,
		`{"task_ids":["` + uuid.NewString() + `","00000000-0000-0000-0000-000000000000"]}`}
	w.send(t, poison...)
	task := w.create(t, conformance.Echo, "beside it")
	w.send(t, names(t, task))
	w.start(t, 2*time.Second)
	eventually(t, "the task to complete", func() bool { return w.status(t, task) == "Completed" })
	eventually(t, "the poison to be in the DLQ", func() bool { return w.left(t, w.dlq) == "6+0" })
	require.Len(t, poison, 6)
	require.Equal(t, "0+0", w.left(t, w.url))
}

// A server that restarts must not use up a message's receives: it would end in the DLQ, and with it a task's
// announcement.
func TestAServerThatIsAwayUsesUpNoReceives(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, nil)
	w.away.Store(true)
	task := w.create(t, conformance.Echo, "later")
	w.send(t, names(t, task))
	w.start(t, 2*time.Second)
	eventually(t, "the worker to ask again and again", func() bool { return w.claims.Load() >= 5 })
	w.away.Store(false)
	eventually(t, "the task to complete", func() bool { return w.status(t, task) == "Completed" })
	eventually(t, "the message to be gone", func() bool { return w.left(t, w.url) == "0+0" })
	require.Equal(t, "0+0", w.left(t, w.dlq))
}
