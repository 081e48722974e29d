// Package conformance checks that an SDK speaks the worker protocol. It plays the server's side over HTTP, runs the
// SDK's program against it, and judges the calls that the program makes, above all when answers are lost, late or
// refused.
//
// Vocabulary: a program is a worker built with the SDK under test, with the functions of Handlers; a backend is the
// server's side: a script here, and a real server where the suite itself is checked; a recorder stands before the
// backend, remembers every call and injects faults into some; a scenario creates tasks, waits and checks.
// docs/workers.md describes what a program must offer. It owns no tables.
package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/worker/protocol"
)

// Runtime is the runtime whose tasks the program claims.
const Runtime = "conformance"

// The functions that a program must offer. docs/workers.md describes them.
const (
	Echo    = "conformance:echo"
	Fail    = "conformance:fail"
	Sleep   = "conformance:sleep"
	Log     = "conformance:log"
	Copy    = "conformance:copy"
	NoRows  = "conformance:norows"
	Commit  = "conformance:commit"
	Secrets = "conformance:secrets"
	Query   = "conformance:query"
	Hold    = "conformance:hold"
)

// Handlers lists the functions that a program must offer.
func Handlers() []string {
	return []string{Echo, Fail, Sleep, Log, Copy, NoRows, Commit, Secrets, Query, Hold}
}

// LeaseSeconds is the length of the leases of the suite's tasks. It is long enough that a worker on a busy machine
// keeps a lease between two heartbeats, and that three calls which fail cost it none.
const LeaseSeconds = 9

// The secret that the job of Secrets names.
const (
	SecretName  = "greeting"
	SecretValue = "hello, world"
)

// Rows returns the rows of the input "rows" of Copy and Query.
func Rows() []map[string]any {
	return []map[string]any{{"n": 1, "s": "one"}, {"n": 2, "s": "two, and \"more\""}, {"n": 3, "s": "drei ☃"}}
}

// Backend is the server's side of the protocol. The tasks of a function belong to one job, which has the function's
// name without "conformance:". Leases last LeaseSeconds, and a task has three attempts.
type Backend interface {
	http.Handler // the endpoints of the protocol
	// Create makes a task that calls a function. Copy and Query read Rows and get no payload.
	Create(ctx context.Context, handler string, payload any) (uuid.UUID, error)
	// Cancel asks a running task to stop.
	Cancel(ctx context.Context, task uuid.UUID) error
	// Expire ends a running task's lease, so that a newer attempt can be claimed.
	Expire(ctx context.Context, task uuid.UUID) error
	// Task returns the present state of a task.
	Task(ctx context.Context, task uuid.UUID) (protocol.TaskState, error)
	// Output returns the rows that a task has published.
	Output(ctx context.Context, task uuid.UUID) ([]map[string]any, error)
	// Lines returns the stored lines of an attempt, in order.
	Lines(ctx context.Context, task uuid.UUID, attempt int) ([]protocol.LogLine, error)
}

// Options select what to check.
type Options struct {
	Command []string // the program; it gets DAGCTL_URL, DAGCTL_TOKEN, DAGCTL_TOKEN_FILE and DAGCTL_RUNTIME
	Dir     string   // working directory of the program; default: the current one
	Stderr  io.Writer
	Backend Backend // nil: the scripted one
	Token   string  // worker token of the backend; only with Backend
	// Only lists the scenarios to run by name; none: all.
	Only []string
}

// Check is the result of one check.
type Check struct {
	Scenario string `json:"scenario"`
	Check    string `json:"check"`
	Passed   bool   `json:"passed"`
	Reason   string `json:"reason,omitempty"` // why it failed
}

// Report is the result of a run.
type Report struct {
	Checks []Check `json:"checks"`
	Passed int     `json:"passed"`
	Failed int     `json:"failed"`
}

// Run runs the program through the scenarios. It returns an error if the program could not be checked at all.
func Run(ctx context.Context, o Options) (Report, error) {
	chosen, err := choose(o.Only)
	if err != nil {
		return Report{}, err
	}
	if o.Backend == nil {
		scripted := NewScripted()
		o.Backend, o.Token = scripted, scripted.Token
	}

	dir, err := os.MkdirTemp("", "dagctl-conformance-*")
	if err != nil {
		return Report{}, fmt.Errorf("folder of the token's file: %w", err)
	}
	defer os.RemoveAll(dir)
	r := &runner{options: o, recorder: newRecorder(o.Backend), backend: o.Backend,
		tokenFile: filepath.Join(dir, "token")}
	if err := r.writeToken(o.Token); err != nil {
		return Report{}, err
	}

	if err := r.listen("127.0.0.1:0"); err != nil {
		return Report{}, err
	}
	defer func() { r.server.Close() }() // the one that is there by then
	defer r.kill()
	for _, sc := range chosen {
		if err := r.run(ctx, sc); err != nil {
			return Report{}, err
		}
	}
	return r.report(), nil
}

// choose returns the scenarios with the given names, or all.
func choose(names []string) ([]scenario, error) {
	if len(names) == 0 {
		return scenarios(), nil
	}
	var chosen []scenario
	for _, sc := range scenarios() {
		if slices.Contains(names, sc.name) {
			chosen = append(chosen, sc)
		}
	}

	for _, name := range names {
		if !slices.ContainsFunc(chosen, func(sc scenario) bool { return sc.name == name }) {
			return nil, fmt.Errorf("there is no scenario %q; there are: %s", name, strings.Join(Scenarios(), ", "))
		}
	}
	return chosen, nil
}

// Scenarios lists the names of all scenarios.
func Scenarios() []string {
	var names []string
	for _, sc := range scenarios() {
		names = append(names, sc.name)
	}
	return names
}

// runner runs scenarios and collects their checks.
type runner struct {
	options   Options
	address   string // of the server
	server    *http.Server
	recorder  *recorder
	backend   Backend
	program   *program // the running one; nil: none
	tokenFile string   // the worker token, as the program finds it

	mu     sync.Mutex
	checks []Check
	later  []func() // checks that something has not happened until the end
}

// listen starts the server at an address.
func (r *runner) listen(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen for the program: %w", err)
	}
	r.address = listener.Addr().String()
	r.server = &http.Server{Handler: r.recorder, ReadHeaderTimeout: 10 * time.Second}
	go r.server.Serve(listener) //nolint:errcheck // it ends with Close
	return nil
}

// restart ends the server with all its connections, and starts it again after a while.
func (r *runner) restart(ctx context.Context, after time.Duration) error {
	r.server.Close() //nolint:errcheck // it has no more use
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(after):
		return r.listen(r.address)
	}
}

func (r *runner) writeToken(token string) error {
	next := r.tokenFile + ".new"
	if err := os.WriteFile(next, []byte(token+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the token: %w", err)
	}
	return os.Rename(next, r.tokenFile)
}

func (r *runner) add(c Check) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks = append(r.checks, c)
}

func (r *runner) report() Report {
	for _, check := range r.later {
		check()
	}
	report := Report{Checks: r.checks}
	for _, c := range r.checks {
		if c.Passed {
			report.Passed++
		} else {
			report.Failed++
		}
	}
	return report
}

// sameJSON reports whether two JSON texts have the same value, with all digits of numbers.
func sameJSON(a, b []byte) bool {
	x, errX := normal(a)
	y, errY := normal(b)
	return errX == nil && errY == nil && x == y
}

func normal(text []byte) (string, error) {
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return "", err
	}
	out, err := json.Marshal(v)
	return string(out), err
}
