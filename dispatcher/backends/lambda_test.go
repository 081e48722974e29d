package backends_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/internal/testaws"
	"github.com/dagctl/dagctl/worker/protocol"
)

// tellBase is a function that posts its event to the server's address in the claim.
const tellBase = `export const handler = async (claim) => {
	await fetch(claim.base_url + "/invoked", { method: "POST", body: JSON.stringify(claim) })
}`

// invoked is a server that functions report their invocations to.
func invoked(t *testing.T) (string, <-chan protocol.Claim) {
	heard := make(chan protocol.Claim, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var claim protocol.Claim
		text, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(text, &claim)
		}
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		heard <- claim
	}))
	t.Cleanup(server.Close)
	return server.URL, heard
}

// inLambda runs the tasks of the runtime `other` in functions, which report to an address.
func inLambda(t *testing.T, base string, functions ...backends.Backend) func(*service.Config) {
	for i := range functions {
		functions[i].Kind = backends.Lambda
	}
	return func(c *service.Config) {
		c.Runtimes, c.AWS, c.Backends, c.BaseURL = []string{"dispatcher"}, testaws.Config(t),
			backends.RuntimeMap{"other": functions}, base
	}
}

// invoke runs the loops of all functions once.
func invoke(w *dispatchertest.World, now time.Time) {
	w.T.Helper()
	for _, f := range w.D.Backends.Functions() {
		_, err := w.D.Backends.InvokeTasks(w.T.Context(), f, now)
		require.NoError(w.T, err)
		f.Wait()
	}
}

func TestACallWithoutAnAnswerHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	calls, release := make(chan []byte, 10), make(chan struct{})
	front := testaws.Front(t, "http://127.0.0.1:1", func(r *http.Request, body []byte) ([]byte, *http.Response) {
		calls <- body
		<-release
		return nil, testaws.Answer(http.StatusAccepted, "")
	})
	w.D = w.Dispatcher("one", inLambda(t, "http://127.0.0.1:1", backends.Backend{Function: "silent", Endpoint: front}))
	w.Serve(parcels)
	for range 2 {
		asked := ask(w.Tenant, "pack", 1)[0]
		_, err := w.D.Backends.InvokeTasks(t.Context(), w.D.Backends.Functions()[0], dispatchertest.Later(0))
		require.NoError(t, err)
		require.Contains(t, string(<-calls), asked.String())
		require.Equal(t, "Running leased", w.Task(asked))
	}
	require.Equal(t, 2, w.Count(`SELECT FROM leases`))
	close(release)
	w.D.Backends.Functions()[0].Wait()
}

func TestAFunctionIsInvokedWithTheClaim(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	base, heard := invoked(t)
	w.D = w.Dispatcher("one", inLambda(t, base, backends.Backend{Function: "told", Endpoint: testaws.Lambda(t,
		map[string]testaws.Function{"told": {Code: tellBase}})}))
	w.Serve(parcels)
	asked := ask(w.Tenant, "pack", 1)[0]
	invoke(w, dispatchertest.Later(0))
	claim := <-heard
	require.Equal(t, protocol.Claimed, claim.Status)
	require.Equal(t, asked, claim.Task.TaskID)
	require.Equal(t, "hook", claim.Task.Operator)
	c, err := w.Signer.Verify(claim.CapabilityToken, time.Now())
	require.NoError(t, err)
	require.NoError(t, c.Covers(claim.Fence()))
	require.Equal(t, "Running leased", w.Task(asked))
	require.Equal(t, 1, w.Count(`SELECT FROM leases WHERE worker_id = 'lambda:told'`))
	require.Equal(t, 1.0, w.FiguresOf(w.D)["invocations_total{outcome=accepted,runtime=other}"])
	invoke(w, dispatchertest.Later(0))
	require.Empty(t, heard, "an attempt is one invocation")
}

// Only the lease shows whether a function has died: Lambda accepts the event before the function runs.
func TestAFunctionThatDiesIsFoundByItsLease(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]testaws.Function{
		"it fails":       {Code: `export const handler = async () => { throw new Error("no") }`},
		"it is not code": {Code: `this is no JavaScript`},
		"its time is up": {Code: `export const handler = () => new Promise(() => {})`, Timeout: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			base, _ := invoked(t)
			w.D = w.Dispatcher("one", inLambda(t, base, backends.Backend{Function: "f", Endpoint: testaws.Lambda(t,
				map[string]testaws.Function{"f": f})}))
			w.Serve(parcels)
			asked := ask(w.Tenant, "pack", 1)[0]
			invoke(w, dispatchertest.Later(0))
			require.Equal(t, "Running leased", w.Task(asked))
			w.Reap(dispatchertest.Later(dag.DefaultHeartbeatTimeout + time.Second))
			require.Equal(t, "Failed lease_expired waiting:backoff", w.Task(asked))
			w.Promote(dispatchertest.Later(time.Hour))
			require.Equal(t, "Queued lease_expired ready", w.Task(asked))
		})
	}
}

// A proxy answers what the test's endpoint does not support, as AWS documents it.
func TestErrorsOfInvoke(t *testing.T) {
	t.Parallel()
	endpoint := testaws.Lambda(t, map[string]testaws.Function{"told": {Code: tellBase}})
	for name, tc := range map[string]struct {
		function string
		answer   *http.Response // the proxy's answer; nil: forward to the endpoint
		task     string
		failures int
		outcome  string
		message  string
	}{
		"a throttle": {"told", testaws.Refusal(429, "TooManyRequestsException", "Rate Exceeded."),
			"Failed handed_back waiting:backoff", 0, "throttled", ""},
		"a throttle of the network": {"told", testaws.Refusal(502, "EC2ThrottledException", "slow down"),
			"Failed handed_back waiting:backoff", 0, "throttled", ""},
		"no such function": {"nobody", nil, "Failed error waiting:backoff", 1, "failed", "Function not found: nobody"},
		"not allowed": {"told", testaws.Refusal(403, "AccessDeniedException", "User may not invoke"),
			"Failed error waiting:backoff", 1, "failed", "User may not invoke"},
		"too large": {"told", testaws.Refusal(413, "RequestTooLargeException", "over 262144 bytes"),
			"Failed error waiting:dead", 1, "failed", "over 262144 bytes"},
		"broken": {"told", testaws.Refusal(500, "ServiceException", "sorry"), "Failed handed_back waiting:backoff", 0,
			"away", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			base, heard := invoked(t)
			answer := tc.answer
			front := testaws.Front(t, endpoint, func(_ *http.Request, body []byte) ([]byte, *http.Response) {
				once := answer
				answer = nil
				return body, once
			})
			w.D = w.Dispatcher("one", inLambda(t, base, backends.Backend{Function: tc.function, Endpoint: front}))
			w.Serve(parcels)
			asked := ask(w.Tenant, "pack", 1)[0]
			invoke(w, dispatchertest.Later(0))
			require.Equal(t, tc.task, w.Task(asked))
			var failures int
			var message string
			w.Row(`SELECT failures, coalesce(error_message, '') FROM tasks WHERE id = $1`, asked)(&failures, &message)
			require.Equal(t, tc.failures, failures)
			require.Contains(t, message, tc.message)
			require.Equal(t, 1.0, w.FiguresOf(w.D)["invocations_total{outcome="+tc.outcome+",runtime=other}"])
			require.Empty(t, heard)
			if tc.function == "told" && !strings.Contains(tc.task, "dead") { // the next attempt is taken
				w.Promote(dispatchertest.Later(time.Hour))
				invoke(w, dispatchertest.Later(time.Hour))
				require.Equal(t, asked, (<-heard).Task.TaskID)
			}
		})
	}
}

func TestAFunctionThatThrottlesIsLeftAlone(t *testing.T) {
	t.Parallel()
	f := &backends.Function{}
	at := time.Now()
	for _, most := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second,
		16 * time.Second, 32 * time.Second, time.Minute, time.Minute} {
		end, gone := f.Refused(false, at)
		require.False(t, gone)
		require.WithinRange(t, end, at.Add(most/2), at.Add(most*3/2))
		same, _ := f.Refused(false, at)
		require.Equal(t, end, same, "the calls of one round are one throttle")
		require.True(t, f.Rests(at))
		at = end
		require.False(t, f.Rests(at))
	}
	require.False(t, f.Took())
	end, gone := f.Refused(true, at)
	require.WithinRange(t, end, at, at.Add(2*time.Second))
	require.True(t, gone)
	_, gone = f.Refused(true, at)
	require.False(t, gone, "it is told once")
	require.True(t, f.Took(), "and that it is back")
}

// A function that cannot be reached spends no attempt, however long that takes.
func TestAFunctionThatIsAwaySpendsNoAttempt(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	base, heard := invoked(t)
	endpoint := testaws.Lambda(t, map[string]testaws.Function{"told": {Code: tellBase}})
	closed := httptest.NewServer(nil)
	address := closed.Listener.Addr().String()
	closed.Close()

	w.D = w.Dispatcher("one", inLambda(t, base, backends.Backend{Function: "told", Endpoint: "http://" + address}))
	w.Serve(parcels)
	asked := ask(w.Tenant, "pack", 1)[0]
	for round := range 12 {
		at := dispatchertest.Later(time.Duration(round) * time.Hour)
		w.Promote(at)
		invoke(w, at)
		require.Equal(t, "Failed handed_back waiting:backoff", w.Task(asked))
	}
	var failures int
	w.Row(`SELECT failures FROM tasks WHERE id = $1`, asked)(&failures)
	require.Zero(t, failures)
	waits := w.WhyTask(w.Caller, asked).Reasons[0]
	require.Equal(t, why.WhyHandedBack, waits.Code)
	require.Contains(t, waits.Text, "lambda:told is away: ")
	require.Contains(t, waits.Text, "connection refused")
	require.Equal(t, 12.0, w.FiguresOf(w.D)["invocations_total{outcome=away,runtime=other}"])

	w.D = w.Dispatcher("two", inLambda(t, base, backends.Backend{Function: "told", Endpoint: endpoint}))
	w.Promote(dispatchertest.Later(24 * time.Hour))
	invoke(w, dispatchertest.Later(24*time.Hour))
	require.Equal(t, asked, (<-heard).Task.TaskID)
}

// An attempt whose invocation was not answered may run: only its lease says that it does not.
func TestALostAnswerIsNoRefusal(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler) // the connection ends without an answer
	}))
	t.Cleanup(cut.Close)

	w.D = w.Dispatcher("one", inLambda(t, "http://127.0.0.1:1", backends.Backend{Function: "told", Endpoint: cut.URL}))
	w.Serve(parcels)
	asked := ask(w.Tenant, "pack", 1)[0]
	invoke(w, dispatchertest.Later(0))
	require.Equal(t, "Running leased", w.Task(asked))
	require.Equal(t, 1.0, w.FiguresOf(w.D)["invocations_total{outcome=lost,runtime=other}"])
	w.Reap(dispatchertest.Later(dag.DefaultHeartbeatTimeout + time.Second))
	require.Equal(t, "Failed lease_expired waiting:backoff", w.Task(asked))
}

// Two servers share the concurrency of a function.
func TestAFunctionNeverHasMoreThanItsConcurrency(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	base, heard := invoked(t)
	backend := backends.Backend{Function: "told", Concurrency: 7, Endpoint: testaws.Lambda(t,
		map[string]testaws.Function{"told": {Code: tellBase}})}
	w.D = w.Dispatcher("one", inLambda(t, base, backend))
	w.Serve(parcels)
	ask(w.Tenant, "pack", 40)
	var most atomic.Int64
	stop := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			var n int64
			if err := w.Pool.QueryRow(w.T.Context(), `SELECT count(*) FROM leases`).Scan(&n); err != nil {
				return
			}
			most.Store(max(most.Load(), n))
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	w.Start(w.D)
	w.Start(w.Dispatcher("two", inLambda(t, base, backend)))
	done := map[uuid.UUID]bool{}
	for len(done) < 40 { // each invocation reports its end and makes room
		claim := <-heard
		require.False(t, done[claim.Task.TaskID], "once each")
		done[claim.Task.TaskID] = true
		require.NoError(t, end(w, claim))
	}
	close(stop)
	<-watched
	require.LessOrEqual(t, most.Load(), int64(7))
	require.Greater(t, most.Load(), int64(1))
}

// Without a wake-up, the loop would find the room that an ended task leaves only at its next look.
func TestAFunctionGetsTheNextTaskWhenOneEnds(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	base, heard := invoked(t)
	lambda := inLambda(t, base, backends.Backend{Function: "told", Concurrency: 1, Endpoint: testaws.Lambda(t,
		map[string]testaws.Function{"told": {Code: tellBase}})})
	w.D = w.Dispatcher("one", lambda, func(c *service.Config) { c.Poll = time.Hour })
	w.Serve(parcels)
	ask(w.Tenant, "pack", 3)
	w.Start(w.D)
	for range 3 {
		require.NoError(t, end(w, <-heard))
	}
}

func TestTasksGoToTheFunctionOfTheirOperatorAndOrg(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	other := w.Org("other")
	base, heard := invoked(t)
	named := map[string]testaws.Function{}
	for _, name := range []string{"acts", "others", "rest"} {
		named[name] = testaws.Function{Code: strings.Replace(tellBase, "JSON.stringify(claim)",
			fmt.Sprintf("JSON.stringify({ ...claim, reason: %q })", name), 1)}
	}
	endpoint := testaws.Lambda(t, named)
	w.D = w.Dispatcher("one", inLambda(t, base,
		backends.Backend{Function: "acts", Operators: []string{"act"}, Orgs: []string{"acme"}, Endpoint: endpoint},
		backends.Backend{Function: "others", Orgs: []string{"other"}, Endpoint: endpoint},
		backends.Backend{Function: "rest", Endpoint: endpoint}))
	w.Serve(parcels)
	other.Serve(parcels)
	want := map[uuid.UUID]string{ask(w.Tenant, "ship", 1)[0]: "acts", ask(other, "ship", 1)[0]: "others",
		ask(other, "pack", 1)[0]: "others", ask(w.Tenant, "pack", 1)[0]: "rest"}
	invoke(w, dispatchertest.Later(0))
	got := map[uuid.UUID]string{}
	for range want {
		claim := <-heard
		got[claim.Task.TaskID] = claim.Reason
	}
	require.Equal(t, want, got)
}

func TestALargeTaskGoesByReference(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	base, heard := invoked(t)
	w.D = w.Dispatcher("one", inLambda(t, base, backends.Backend{Function: "told", Endpoint: testaws.Lambda(t,
		map[string]testaws.Function{"told": {Code: tellBase}})}))
	w.Serve(parcels)
	large := dispatchertest.Payload(map[string]any{"text": strings.Repeat("x", backends.InvokePayload)})
	made, err := w.D.Enqueue(t.Context(), w.Caller, "parcels", "pack", []dispatcher.EnqueueItem{{Payload: large}})
	require.NoError(t, err)
	invoke(w, dispatchertest.Later(0))
	claim := <-heard
	require.True(t, claim.ByReference)
	require.Equal(t, made[0].ID, claim.Task.TaskID)
	require.Empty(t, claim.Task.Payload)
	c, err := w.Signer.Verify(claim.CapabilityToken, time.Now())
	require.NoError(t, err)
	whole, err := w.D.AssignedTask(t.Context(), c, claim.Fence())
	require.NoError(t, err)
	require.JSONEq(t, string(large), string(whole.Payload))
	require.WithinDuration(t, claim.Task.TimeoutAt, whole.TimeoutAt, time.Microsecond)
	stale := claim.Fence()
	stale.LeaseToken = uuid.New()
	_, err = w.D.AssignedTask(t.Context(), c, stale)
	require.Error(t, err)
}

// end completes an attempt as its function would.
func end(w *dispatchertest.World, claim protocol.Claim) error {
	c, err := w.Signer.Verify(claim.CapabilityToken, time.Now())
	if err != nil {
		return err
	}
	g, err := w.D.RunningAttempt(w.T.Context(), c, claim.Fence())
	if err != nil {
		return err
	}
	return w.D.CompleteAttempt(w.T.Context(), g.Task, dispatcher.Completion{}, time.Now())
}
