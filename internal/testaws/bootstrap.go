package testaws

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Bootstraps are the processes of a function with a custom runtime: programs that speak Lambda's Runtime API. The
// server of the tests runs only Node and Python, so its function passes each event to one of them.
type Bootstraps struct {
	events chan *invocation
	intake *httptest.Server
}

type invocation struct {
	event []byte
	ended chan error // buffered
}

// NewBootstraps returns Bootstraps without processes. Each process gets its address from Address.
func NewBootstraps(t testing.TB) *Bootstraps {
	b := &Bootstraps{events: make(chan *invocation)}
	b.intake = httptest.NewServer(http.HandlerFunc(b.take))
	t.Cleanup(b.intake.Close)
	return b
}

// relay passes an event on, and fails if the bootstrap reports a failure.
const relay = `export const handler = async (event) => {
	const answer = await fetch(process.env.BOOTSTRAPS, { method: "POST", body: JSON.stringify(event) })
	if (!answer.ok) throw new Error(await answer.text())
}`

// Function returns the function for Lambda.
func (b *Bootstraps) Function() Function {
	return Function{Code: relay, Environment: map[string]string{"BOOTSTRAPS": b.intake.URL}, Timeout: 300}
}

// take waits until a bootstrap has run an event.
func (b *Bootstraps) take(w http.ResponseWriter, r *http.Request) {
	event, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	i := &invocation{event, make(chan error, 1)}
	select {
	case b.events <- i:
	case <-r.Context().Done():
		return
	}

	select {
	case err := <-i.ended:
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	case <-r.Context().Done():
	}
}

// Address returns the AWS_LAMBDA_RUNTIME_API of one bootstrap, and of one that replaces it when it has died. The event
// that the dead one ran has failed.
func (b *Bootstraps) Address(t testing.TB) string {
	api := httptest.NewServer(&runtimeAPI{events: b.events})
	t.Cleanup(api.Close)
	return strings.TrimPrefix(api.URL, "http://")
}

// runtimeAPI is Lambda's API for one bootstrap, which runs one event at a time:
// https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html.
type runtimeAPI struct {
	events <-chan *invocation

	mu  sync.Mutex
	now *invocation // nil: none
}

// turn ends the current invocation, if there is one, and begins another.
func (a *runtimeAPI) turn(next *invocation, end error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.now != nil {
		a.now.ended <- end
	}
	a.now = next
}

// ServeHTTP implements http.Handler.
func (a *runtimeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}

	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/invocation/next"):
		a.turn(nil, errors.New("the bootstrap exited without an answer"))
		select {
		case i := <-a.events:
			a.turn(i, nil)
			w.Header().Set("Lambda-Runtime-Aws-Request-Id", uuid.NewString())
			w.Header().Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli()))
			w.Header().Set("Lambda-Runtime-Invoked-Function-Arn",
				"arn:aws:lambda:"+Region+":000000000000:function:dagctl")
			_, _ = w.Write(i.event) // an error means that the bootstrap has exited
		case <-r.Context().Done():
		}
	case strings.HasSuffix(path, "/response"):
		a.turn(nil, nil)
		w.WriteHeader(http.StatusAccepted)
	default:
		a.turn(nil, errors.New(string(body)))
		w.WriteHeader(http.StatusAccepted)
	}
}
