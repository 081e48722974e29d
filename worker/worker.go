// Package worker lets a Go program run tasks of a dagctl server. The program names the functions that jobs with
// operator `handler` call, and runs until it is stopped:
//
//	w, err := worker.New(worker.Config{URL: url, Token: token, Runtime: "ecs_platform"})
//	worker.Handle(w, "email:send", func(ctx context.Context, t *worker.Task, email Email) (Receipt, error) { ... })
//	err = w.Run(ctx)
//
// Vocabulary: a worker is this process, with a token that lets it claim tasks; a claim is a task under a lease, which
// is extended as long as its function runs; a fence identifies the attempt in each of its calls, so that a run that has
// lost its lease can change nothing. What a task writes, emits and enqueues is committed with its end, or earlier by
// Task.Commit. A worker does not decide on retries: it reports what happened and whether another attempt could help.
// Package worker/protocol defines the messages, worker/builtin has the built-in operators, and worker/queue takes tasks
// from SQS messages. It owns no tables.
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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Config configures a worker.
type Config struct {
	URL   string // of the server, or of its address for workers
	Token string // worker token; `dagctl tokens create --kind worker` makes one
	// TokenFile names a file with the token, in place of Token. It may be replaced while the worker runs.
	TokenFile string
	Runtime   string // the runtime, as DAG files name it, whose tasks it claims
	// PoolSize is how many tasks run at once; 4 where it is 0.
	PoolSize int
	// ID is unique among all workers. By default it is made of the host, the process id and a random part.
	ID      string
	Version string // the program's, for people
	// DrainTimeout is how long tasks may go on once the worker is asked to stop; 0 means 24 s. Tasks that still
	// run then go to other workers at once.
	DrainTimeout time.Duration
	// IdleExit makes Run return when every job of the runtime has been idle for its idle_timeout, so that a container
	// scheduler can scale to zero.
	IdleExit bool
	// ScratchDir is the folder for tasks' temporary files; by default that of the system.
	ScratchDir string
	Log        *slog.Logger // slog.Default() where it is nil
	HTTP       *http.Client // one with sensible limits where it is nil; it must have no timeout of its own
}

// Func runs a claimed task to its end. The worker reports its result or error to the server. ctx ends when the run must
// stop.
type Func func(ctx context.Context, t *Task) (result json.RawMessage, err error)

// Worker claims tasks and runs them.
type Worker struct {
	cfg    Config
	client *Client

	mu        sync.Mutex
	handlers  map[string]Func
	operators map[protocol.Operator]Func
	runs      map[*Task]bool // the tasks that run now

	ends        *ends
	beats       *beats
	running     atomic.Int64
	lastBeat    atomic.Int64    // Unix nanoseconds of the last answer to a heartbeat of the worker
	told        atomic.Value    // token of the worker's last heartbeat, which tells it what is canceled
	incarnation string          // tells this process apart from an earlier one with the same id
	drain       context.Context // ends when the worker must claim no more tasks
	drainNow    context.CancelCauseFunc
	exit        context.Context // ends when the worker waits for nothing more
	exitNow     context.CancelFunc
}

// The defaults of a Config.
const (
	DefaultPoolSize     = 4
	DefaultDrainTimeout = 24 * time.Second // ECS ends a container 30 s after telling it to stop
)

var goodRuntime = late.Pattern(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)

// New returns a worker with a valid config.
func New(cfg Config) (*Worker, error) {
	cfg.PoolSize = cmp.Or(cfg.PoolSize, DefaultPoolSize)
	cfg.DrainTimeout = cmp.Or(cfg.DrainTimeout, DefaultDrainTimeout)
	cfg.ID = cmp.Or(cfg.ID, newID())
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	var problems []error
	if cfg.URL != "" { // a worker that is handed its claims takes the address from them
		if u, err := url.Parse(cfg.URL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			problems = append(problems, fmt.Errorf("URL %q does not have the form https://host[:port]", cfg.URL))
		}
	}

	if cfg.Runtime != "" && !goodRuntime.MatchString(cfg.Runtime) {
		problems = append(problems, fmt.Errorf("runtime %q is not a name: use letters, digits, '_', '.' and '-'",
			cfg.Runtime))
	}
	if cfg.PoolSize < 1 || cfg.PoolSize > 1000 {
		problems = append(problems, fmt.Errorf("pool size %d is not between 1 and 1000", cfg.PoolSize))
	}
	if cfg.DrainTimeout < 0 {
		problems = append(problems, fmt.Errorf("drain timeout %s is negative", cfg.DrainTimeout))
	}
	if strings.ContainsAny(cfg.Token, " \r\n\t") {
		problems = append(problems, errors.New("the token contains white space"))
	}

	token := &token{text: cfg.Token, file: cfg.TokenFile}
	if cfg.TokenFile != "" && token.read() == "" {
		problems = append(problems, fmt.Errorf("the token file %s cannot be read, or is empty", cfg.TokenFile))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	client := NewClient(cfg.URL, "", cfg.HTTP)
	client.token = token
	w := &Worker{cfg: cfg, client: client, handlers: map[string]Func{},
		operators: map[protocol.Operator]Func{}, runs: map[*Task]bool{}, incarnation: uuid.NewString()}
	w.ends, w.beats = &ends{worker: w}, &beats{worker: w}
	w.drain, w.drainNow = context.WithCancelCause(context.Background())
	w.exit, w.exitNow = context.WithCancel(context.Background())
	return w, nil
}

// newID returns an id that no other process has or has had.
func newID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", cmp.Or(host, "unknown"), os.Getpid(), strings.ToLower(rand.Text()[:6]))
}

// Handle registers a function that jobs with operator `handler` call by name. A payload that does not fit P fails the
// task for good. A function replaces an earlier one of the same name.
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

// HandleOperator registers a function that runs tasks of an operator, of one version if the operator has a version.
func (w *Worker) HandleOperator(operator protocol.Operator, run Func) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.operators[operator] = run
}

// HandlerOperator is the operator of jobs that call a worker's function, with config {handler: NAME}.
const HandlerOperator = "handler"

// function returns the function that runs a task.
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
		if operator.Name == t.Operator && t.OperatorVersion == "" { // the task takes any version
			return run, nil
		}
	}
	return nil, fmt.Errorf("this worker does not run operator %s %s", t.Operator, t.OperatorVersion)
}

// offer returns the operators and handlers that this worker runs.
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

// Client returns the worker's client.
func (w *Worker) Client() *Client { return w.client }

// ID returns the worker's id, which is unique among all workers.
func (w *Worker) ID() string { return w.cfg.ID }

// Log returns the worker's logger.
func (w *Worker) Log() *slog.Logger { return w.cfg.Log }
