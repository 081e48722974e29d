// Package worker runs tasks of a dagctl server in a program of one's own. A program names functions that jobs with
// operator `handler` call, and runs until it is told to stop:
//
//	w, err := worker.New(worker.Config{URL: url, Token: token, Runtime: "ecs_platform"})
//	worker.Handle(w, "email:send", func(ctx context.Context, t *worker.Task, email Email) (Receipt, error) { ... })
//	err = w.Run(ctx)
//
// Vocabulary: a worker is this process, with a token that lets it claim tasks; a claim is a task under a lease, which is
// extended as long as its function runs; a fence is what each call of a task shows, so that a run whose lease went to
// another can change nothing any more. What a task writes, emits and enqueues is committed with its end, or before by
// Task.Commit. A worker never decides on retries: it says what happened, and whether trying again could help. The words on
// the wire are those of worker/protocol. Built-in operators are in worker/builtin, tasks named by SQS messages in
// worker/queue. It owns no tables.
package worker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dagctl/dagctl/worker/protocol"
)

// Config says whom a worker works for.
type Config struct {
	URL     string // of the server, or of its address for workers
	Token   string // worker token; `dagctl tokens create --kind worker` makes one
	Runtime string // runtime of DAG files whose tasks it claims
	// PoolSize is how many tasks run at once; 4 where it is 0.
	PoolSize int
	// ID names this process among all workers; host, process id and a random part where it is empty.
	ID      string
	Version string // of the program, for people
	// DrainTimeout is how long tasks may go on once the worker is told to stop; 24 s where it is 0. What still runs then
	// goes to other workers at once.
	DrainTimeout time.Duration
	// IdleExit ends Run when every job of the runtime has been idle for its idle_timeout, so that a scheduler of
	// containers can scale to zero.
	IdleExit bool
	// ScratchDir is where tasks' temporary files go; the system's folder where it is empty.
	ScratchDir string
	Log        *slog.Logger // slog.Default() where it is nil
	HTTP       *http.Client // one with sensible limits where it is nil; it must have no timeout of its own
}

// Func runs a claimed task to its end. What it returns is told to the server; its context ends when the run is to stop.
type Func func(ctx context.Context, t *Task) (result json.RawMessage, err error)

// Worker claims tasks and runs them.
type Worker struct {
	cfg    Config
	client *Client

	mu        sync.Mutex
	handlers  map[string]Func
	operators map[protocol.Operator]Func

	running  atomic.Int64
	lastBeat atomic.Int64    // Unix nanoseconds of the last answer to a heartbeat of the worker
	drain    context.Context // ends when no more tasks are to be claimed
	drainNow context.CancelCauseFunc
	exit     context.Context // ends when nothing is waited for any more
	exitNow  context.CancelFunc
}

// The defaults of a Config.
const (
	DefaultPoolSize     = 4
	DefaultDrainTimeout = 24 * time.Second // ECS ends a container 30 s after telling it to stop
)

var goodRuntime = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)

// New checks the config.
func New(cfg Config) (*Worker, error) {
	cfg.PoolSize = cmp.Or(cfg.PoolSize, DefaultPoolSize)
	cfg.DrainTimeout = cmp.Or(cfg.DrainTimeout, DefaultDrainTimeout)
	cfg.ID = cmp.Or(cfg.ID, newID())
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	var problems []error
	if cfg.URL != "" { // a worker that is given its claims takes the address from them
		if u, err := url.Parse(cfg.URL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			problems = append(problems, fmt.Errorf("URL %q is not of the form https://host[:port]", cfg.URL))
		}
	}
	if cfg.Runtime != "" && !goodRuntime.MatchString(cfg.Runtime) {
		problems = append(problems, fmt.Errorf("runtime %q is not a name of letters, digits, '_', '.' and '-'", cfg.Runtime))
	}
	if cfg.PoolSize < 1 || cfg.PoolSize > 1000 {
		problems = append(problems, fmt.Errorf("pool size %d is not between 1 and 1000", cfg.PoolSize))
	}
	if cfg.DrainTimeout < 0 {
		problems = append(problems, fmt.Errorf("drain timeout %s is negative", cfg.DrainTimeout))
	}
	if strings.ContainsAny(cfg.Token, " \r\n\t") {
		problems = append(problems, errors.New("the token has white space in it"))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	w := &Worker{cfg: cfg, client: NewClient(cfg.URL, cfg.Token, cfg.HTTP), handlers: map[string]Func{}, operators: map[protocol.Operator]Func{}}
	w.drain, w.drainNow = context.WithCancelCause(context.Background())
	w.exit, w.exitNow = context.WithCancel(context.Background())
	return w, nil
}

// newID names this process among all that ever run tasks.
func newID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", cmp.Or(host, "unknown"), os.Getpid(), strings.ToLower(rand.Text()[:6]))
}

// Handle names a function that jobs with operator `handler` call. A payload that does not fit P fails the task for good.
// A later function of the same name takes the place of an earlier one.
func Handle[P, R any](w *Worker, name string, run func(ctx context.Context, t *Task, payload P) (R, error)) {
	w.handle(name, func(ctx context.Context, t *Task) (json.RawMessage, error) {
		var payload P
		if len(t.Payload) > 0 {
			decoder := json.NewDecoder(bytes.NewReader(t.Payload))
			decoder.UseNumber() // a number in an any keeps its digits
			if err := decoder.Decode(&payload); err != nil {
				return nil, NotRetryable(fmt.Errorf("the payload does not fit %s: %w", name, err))
			}
		}
		result, err := run(ctx, t, payload)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(result)
		if err != nil {
			return nil, NotRetryable(fmt.Errorf("the result of %s is not JSON: %w", name, err))
		}
		return text, nil
	})
}

func (w *Worker) handle(name string, run Func) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handlers[name] = run
}

// HandleOperator runs tasks of an operator, at a version where it has one.
func (w *Worker) HandleOperator(operator protocol.Operator, run Func) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.operators[operator] = run
}

// HandlerOperator is the operator of jobs that call a function of a worker: config {handler: NAME}.
const HandlerOperator = "handler"

// function is what runs a task.
func (w *Worker) function(t *protocol.Task) (Func, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.Operator == HandlerOperator {
		name, _ := t.Config["handler"].(string)
		if run, ok := w.handlers[name]; ok {
			return run, nil
		}
		return nil, fmt.Errorf("this worker has no handler %q", name)
	}
	if run, ok := w.operators[protocol.Operator{Name: t.Operator, Version: t.OperatorVersion}]; ok {
		return run, nil
	}
	if run, ok := w.operators[protocol.Operator{Name: t.Operator}]; ok {
		return run, nil
	}
	for operator, run := range w.operators {
		if operator.Name == t.Operator && t.OperatorVersion == "" { // any version will do
			return run, nil
		}
	}
	return nil, fmt.Errorf("this worker does not run operator %s %s", t.Operator, t.OperatorVersion)
}

// offer is what this worker runs.
func (w *Worker) offer() (operators []protocol.Operator, handlers []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	operators = slices.SortedFunc(maps.Keys(w.operators), func(a, b protocol.Operator) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
	})
	if len(w.handlers) > 0 {
		operators = append(operators, protocol.Operator{Name: HandlerOperator})
	}
	return operators, slices.Sorted(maps.Keys(w.handlers))
}

// Client is the worker's own.
func (w *Worker) Client() *Client { return w.client }

// ID names this process among all workers.
func (w *Worker) ID() string { return w.cfg.ID }

// Log is where the worker tells what it does.
func (w *Worker) Log() *slog.Logger { return w.cfg.Log }
