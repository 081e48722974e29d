package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/worker/protocol"
)

// The endpoints, as faults and checks name them.
const (
	pollCall       = "POST /internal/task-poll"
	workerBeatCall = "POST /internal/worker-heartbeat"
	beatCall       = "POST /v1/task/heartbeat"
	eventsCall     = "POST /v1/task/events"
	completeCall   = "POST /v1/task/complete"
	logsCall       = "POST /v1/task/logs"
	secretsCall    = "POST /v1/task/secrets"
	queryCall      = "POST /v1/task/query"
	uploadCall     = "PUT /v1/task/outputs/"
	downloadCall   = "GET /v1/task/inputs/"
)

// call is one request of the program and its answer.
type call struct {
	endpoint string // one of the above
	path     string
	header   http.Header
	body     []byte
	began    time.Time
	task     uuid.UUID // the task it is about; zero: none
	attempt  int

	ended  time.Time // zero: not yet
	status int       // 0: the connection was cut
	answer []byte
}

// fault is what happens to a call.
type fault struct {
	endpoint string
	task     uuid.UUID // zero: any task
	times    int       // how many calls it happens to

	status  int                        // unless 0, the answer, without calling the backend
	header  http.Header                // headers of that answer
	before  func(task uuid.UUID)       // called first
	rewrite func(answer []byte) []byte // changes the backend's answer
	cut     bool                       // cuts the connection after the backend has acted
	half    bool                       // cuts the connection in the middle of the answer
}

// recorder stands between the program and a backend.
type recorder struct {
	backend http.Handler
	handing sync.Mutex // held while no poll may be answered

	mu      sync.Mutex
	calls   []*call
	faults  []*fault
	rotated string        // the worker token that is no longer taken
	changed chan struct{} // closed at the next change
}

func newRecorder(backend http.Handler) *recorder {
	return &recorder{backend: backend, changed: make(chan struct{})}
}

// meet adds a fault for calls from now on.
func (r *recorder) meet(f *fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.times == 0 {
		f.times = 1
	}
	r.faults = append(r.faults, f)
}

// find returns copies of the calls that satisfy a condition, oldest first.
func (r *recorder) find(pick func(*call) bool) []call {
	r.mu.Lock()
	calls := make([]call, len(r.calls))
	for i, c := range r.calls {
		calls[i] = *c
	}
	r.mu.Unlock() // a condition may look for other calls
	return slices.DeleteFunc(calls, func(c call) bool { return !pick(&c) })
}

func (r *recorder) change(what func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	what()
	close(r.changed)
	r.changed = make(chan struct{})
}

// next returns a channel that is closed at the next change.
func (r *recorder) next() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if path, ok := manyCalls[endpointOf(request)]; ok {
		r.serveMany(w, request, path)
		return
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the program broke off, so there is no call
	}
	c := &call{endpoint: endpointOf(request), path: request.URL.RequestURI(), header: request.Header.Clone(),
		body: body, began: time.Now()}
	c.task, c.attempt = about(request.Header, body)
	r.change(func() { r.calls = append(r.calls, c) })
	f := r.meets(c)
	if f != nil && f.before != nil {
		f.before(c.task)
	}

	answer := &answer{header: http.Header{}, status: http.StatusOK}
	if f != nil && f.status != 0 {
		maps.Copy(answer.header, f.header)
		problem(answer, f.status, "this answer is part of the test")
	} else if r.refuses(request.Header) {
		problem(answer, http.StatusUnauthorized, "the worker token is not valid any more")
	} else {
		request.Body = io.NopCloser(bytes.NewReader(body))
		r.unmask(request.Header)
		r.backend.ServeHTTP(answer, request)
	}

	if c.endpoint == pollCall {
		r.handing.Lock()
		defer r.handing.Unlock()
	}
	if f == nil { // a fault may have been added while the call waited for its answer
		f = r.meetsAnswer(c)
	}
	text := answer.body.Bytes()
	if f != nil && f.rewrite != nil && answer.status == http.StatusOK {
		text = f.rewrite(text)
		answer.header.Del("Content-Length")
	}

	done := func(status int) {
		r.change(func() { c.ended, c.status, c.answer = time.Now(), status, text })
	}
	if f != nil && (f.cut || f.half) {
		done(0)
		cut(w, answer, text, f.half)
		return
	}

	done(answer.status) // before the program can see it
	maps.Copy(w.Header(), answer.header)
	w.WriteHeader(answer.status)
	w.Write(text) //nolint:errcheck // the program may have gone
}

// meets uses up the first fault that fits the call.
func (r *recorder) meets(c *call) *fault { return r.take(c, func(*fault) bool { return true }) }

// meetsAnswer uses up the first fault that fits the answer of the call.
func (r *recorder) meetsAnswer(c *call) *fault {
	return r.take(c, func(f *fault) bool { return f.status == 0 && f.before == nil })
}

func (r *recorder) take(c *call, fits func(*fault) bool) *fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.faults {
		if f.times > 0 && f.endpoint == c.endpoint && (f.task == uuid.Nil || f.task == c.task) && fits(f) {
			f.times--
			return f
		}
	}
	return nil
}

// cut ends the connection, without an answer or in the middle of it.
func cut(w http.ResponseWriter, a *answer, text []byte, half bool) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // ends the connection as well
	}
	defer conn.Close()
	if half {
		fmt.Fprintf(buffered, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
			a.header.Get("Content-Type"), len(text), text[:len(text)/2])
		buffered.Flush() //nolint:errcheck // it is meant to be cut short
	}
}

// rotate makes the recorder refuse the worker token, and take a new one in its place. It returns the new one.
func (r *recorder) rotate(token string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rotated = token
	return renewal + token
}

// refuses reports whether a call shows the worker token that was replaced. It puts that token in the place of the new
// one, because the backend knows no other.
func (r *recorder) refuses(h http.Header) bool {
	r.mu.Lock()
	token := r.rotated
	r.mu.Unlock()
	switch shown := h.Get("Authorization"); {
	case token == "":
		return false
	case shown == "Bearer "+renewal+token:
		h.Set("Authorization", "Bearer "+token)
		return false
	default:
		return shown == "Bearer "+token
	}
}

// renewal is a prefix that the recorder puts before a token to make a new token of it, and removes again.
// So a token can be renewed at any time, whatever the backend does.
const renewal = "renewed."

func (r *recorder) renew(token string) string { return renewal + token }

func (r *recorder) unmask(h http.Header) {
	if token, ok := strings.CutPrefix(h.Get(protocol.CapabilityHeader), renewal); ok {
		h.Set(protocol.CapabilityHeader, token)
	}
}

func endpointOf(request *http.Request) string {
	endpoint := request.Method + " " + request.URL.Path
	for _, family := range []string{uploadCall, downloadCall} {
		if strings.HasPrefix(endpoint, family) {
			return family
		}
	}
	return endpoint
}

// about returns the attempt that a call is about, from its headers or its body.
func about(h http.Header, body []byte) (uuid.UUID, int) {
	if id, err := uuid.Parse(h.Get(protocol.TaskHeader)); err == nil {
		attempt, _ := strconv.Atoi(h.Get(protocol.AttemptHeader))
		return id, attempt
	}
	var fence struct {
		TaskID  uuid.UUID `json:"task_id"`
		Attempt int       `json:"attempt"`
	}
	if json.Unmarshal(body, &fence) != nil {
		return uuid.Nil, 0
	}
	return fence.TaskID, fence.Attempt
}

// answer collects a backend's answer.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
	wrote  bool
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if !a.wrote {
		a.status, a.wrote = status, true
	}
}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}

// problem answers with a problem document.
func problem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	//nolint:errcheck // a map of texts
	json.NewEncoder(w).Encode(map[string]any{"title": http.StatusText(status), "status": status, "detail": detail})
}

// forget drops the faults of an endpoint.
func (r *recorder) forget(endpoint string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.faults {
		if f.endpoint == endpoint {
			f.times = 0
		}
	}
}
