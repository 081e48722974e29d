package function_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/conformance"
	"github.com/dagctl/dagctl/worker/function"
	"github.com/dagctl/dagctl/worker/protocol"
)

// TestMain is also the function: a test starts this program again, as Lambda starts a bootstrap.
func TestMain(m *testing.M) {
	if os.Getenv("AWS_LAMBDA_RUNTIME_API") == "" {
		os.Exit(m.Run())
	}
	w, err := worker.New(worker.Config{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}

	worker.Handle(w, conformance.Echo, func(_ context.Context, _ *worker.Task, payload any) (any, error) {
		return payload, nil
	})
	worker.Handle(w, conformance.Fail, func(context.Context, *worker.Task, any) (any, error) {
		return nil, fmt.Errorf("no luck")
	})

	worker.Handle(w, conformance.Sleep, func(ctx context.Context, _ *worker.Task, _ any) (any, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	lambda.Start(function.Handler(w))
}

// runtimeAPI is AWS's Runtime API as Lambda serves it: it hands out events one after the other and receives the outcome
// of each. https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html
type runtimeAPI struct {
	events  chan event
	results chan string // "response: …" or "error: …"
}

type event struct {
	payload []byte
	time    time.Duration // the time limit of the invocation
}

func (a *runtimeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch path := strings.TrimPrefix(r.URL.Path, "/2018-06-01/runtime/"); {
	case path == "invocation/next":
		select {
		case e := <-a.events:
			w.Header().Set("Lambda-Runtime-Aws-Request-Id", uuid.NewString())
			w.Header().Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(time.Now().Add(e.time).UnixMilli()))
			w.Header().Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:000000000000:function:test")
			_, _ = w.Write(e.payload)
		case <-r.Context().Done():
		}
	default:
		text, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusAccepted)
		a.results <- path[strings.LastIndex(path, "/")+1:] + ": " + string(text)
	}
}

// world is a scripted server, and a function with the real loop of aws-lambda-go.
type world struct {
	*conformance.Scripted
	api    *runtimeAPI
	server string
	claim  atomic.Pointer[protocol.Claim] // whose task the server returns on request
	away   atomic.Int64                   // how many calls of tasks it answers with 503 first
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Scripted: conformance.NewScripted(), api: &runtimeAPI{make(chan event, 10), make(chan string, 10)}}
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/task/") && w.away.Add(-1) >= 0 {
			response.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if r.URL.Path == "/v1/task/assignment" {
			_ = json.NewEncoder(response).Encode(w.claim.Load().Task)
			return
		}
		w.ServeHTTP(response, r)
	}))

	t.Cleanup(server.Close)
	w.server = server.URL
	api := httptest.NewServer(w.api)
	t.Cleanup(api.Close)
	program, err := os.Executable()
	require.NoError(t, err)

	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "AWS_LAMBDA_RUNTIME_API="+strings.TrimPrefix(api.URL, "http://"))
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	require.NoError(t, cmd.Start())

	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
	})
	return w
}

// claimed creates a task and claims it, as the server does before it invokes the function.
func (w *world) claimed(t *testing.T, handler string, payload any) protocol.Claim {
	t.Helper()
	task, err := w.Create(t.Context(), handler, payload)
	require.NoError(t, err)
	claim, err := worker.NewClient(w.server, w.Token, nil).
		Claim(t.Context(), protocol.ClaimRequest{TaskID: task, WorkerID: "host-1", Runtime: conformance.Runtime,
			Handlers: conformance.Handlers()})
	require.NoError(t, err)
	require.Equal(t, protocol.Claimed, claim.Status, claim.Reason)
	claim.BaseURL = w.server
	return claim
}

// invoke passes an event to the function and returns the outcome of the invocation.
func (w *world) invoke(t *testing.T, claim any, limit time.Duration) string {
	t.Helper()
	payload, err := json.Marshal(claim)
	require.NoError(t, err)
	w.api.events <- event{payload, limit}
	return <-w.api.results
}

func (w *world) state(t *testing.T, claim protocol.Claim) protocol.TaskState {
	t.Helper()
	state, err := w.Task(t.Context(), claim.Task.TaskID)
	require.NoError(t, err)
	return state
}

func TestAFunctionRunsOneTaskAfterTheOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 3 {
		claim := w.claimed(t, conformance.Echo, map[string]any{"n": i})
		require.Equal(t, "response: null", w.invoke(t, claim, time.Minute))
		require.Equal(t, "Completed", w.state(t, claim).Status)
	}
	failing := w.claimed(t, conformance.Fail, nil)
	require.Equal(t, "response: null", w.invoke(t, failing, time.Minute),
		"the server knows of the failure, so the invocation succeeds")
	require.NotEqual(t, "Running", w.state(t, failing).Status)
}

func TestAnOldEventIsIgnored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	claim := w.claimed(t, conformance.Echo, nil)
	require.NoError(t, w.Expire(t.Context(), claim.Task.TaskID))
	require.Equal(t, "response: null", w.invoke(t, claim, time.Minute))
	require.NotEqual(t, "Completed", w.state(t, claim).Status)
	twice := w.claimed(t, conformance.Echo, nil)
	require.Equal(t, "response: null", w.invoke(t, twice, time.Minute))
	require.Equal(t, "response: null", w.invoke(t, twice, time.Minute))
	require.Equal(t, "Completed", w.state(t, twice).Status)
}

func TestARunIsStoppedInTimeToReportIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	claim := w.claimed(t, conformance.Sleep, map[string]any{"seconds": 600})
	require.Equal(t, "response: null", w.invoke(t, claim, 3*time.Second))
	state := w.state(t, claim)
	require.NotEqual(t, "Running", state.Status)
	require.NotEqual(t, "Completed", state.Status)
}

func TestATaskByReferenceIsFetchedFromTheServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	claim := w.claimed(t, conformance.Echo, map[string]any{"text": "long"})
	whole := claim
	w.claim.Store(&whole)
	claim.ByReference = true
	claim.Task = &protocol.Task{TaskID: whole.Task.TaskID, Attempt: whole.Attempt, Inputs: []protocol.Input{},
		Outputs: []protocol.Output{}}
	require.Equal(t, "response: null", w.invoke(t, claim, time.Minute))
	require.Equal(t, "Completed", w.state(t, whole).Status)
}

func TestCallsAreRepeatedWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	claim := w.claimed(t, conformance.Echo, nil)
	w.away.Store(2)
	require.Equal(t, "response: null", w.invoke(t, claim, time.Minute))
	require.Equal(t, "Completed", w.state(t, claim).Status)
}

func TestAnEventThatIsNoClaimIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Contains(t, w.invoke(t, map[string]any{"key": "value"}, time.Minute), "error: ")
	claim := w.claimed(t, conformance.Echo, nil)
	require.Equal(t, "response: null", w.invoke(t, claim, time.Minute), "and the next event runs")
}
