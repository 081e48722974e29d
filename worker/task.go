package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dagctl/dagctl/worker/protocol"
)

// Task is a claimed task, with what its function may do while it runs. Its methods may be called from any goroutine.
type Task struct {
	protocol.Task
	// Log sends lines to the server, where `dagctl tasks logs` shows them, and to the worker's own log.
	Log *slog.Logger

	worker   *Worker
	client   *Client
	fence    protocol.Fence
	lease    time.Duration
	token    atomic.Value // capability token, a string
	stop     context.CancelCauseFunc
	telling  atomic.Bool // the end of the run is being told
	progress progressNote
	gathered gathered
	logs     *logShipper

	scratchOnce sync.Once
	scratch     string
	scratchErr  error
}

func (w *Worker) newTask(claim protocol.Claim, stop context.CancelCauseFunc) *Task {
	client := w.client
	if client.base == "" {
		client = client.at(claim.BaseURL)
	}
	t := &Task{Task: *claim.Task, worker: w, client: client, fence: claim.Fence(), stop: stop,
		lease: time.Duration(cmp.Or(claim.Task.LeaseSeconds, 30)) * time.Second}
	t.token.Store(claim.CapabilityToken)
	t.logs = newLogShipper(t)
	own := w.cfg.Log.With("org", t.Org, "dag", t.Job.DAGName, "job", t.Job.Name, "task", t.TaskID, "attempt", t.Attempt)
	t.Log = slog.New(&logHandler{ship: t.logs, line: t.logs.render, own: own.Handler()})
	return t
}

func (t *Task) capability() string { return t.token.Load().(string) }

// Fence is what each call of the attempt shows.
func (t *Task) Fence() protocol.Fence { return t.fence }

// Progress tells people how far the task is: 0-100 and a short text. It is sent with the next heartbeat and may be
// called often.
func (t *Task) Progress(percent int, state string) { t.progress.set(percent, state) }

// Secrets are the values of the secrets that the task's job names. Where the runtime is not trusted with them, the
// server refuses: ErrForbidden.
func (t *Task) Secrets(ctx context.Context) (map[string]string, error) {
	answer, err := t.BoundSecrets(ctx)
	return answer.Secrets, err
}

// BoundSecrets are those values with where an admin allows each to be sent.
func (t *Task) BoundSecrets(ctx context.Context) (answer protocol.Secrets, err error) {
	err = Repeat(ctx, func(ctx context.Context) (err error) {
		answer, err = t.client.Secrets(ctx, t.capability(), t.fence)
		return err
	})
	return answer, err
}

// Code is the zip archive of the job's own code, of operator udf.
func (t *Task) Code(ctx context.Context) (archive []byte, err error) {
	err = Repeat(ctx, func(ctx context.Context) (err error) {
		archive, err = t.client.Code(ctx, t.capability(), t.fence)
		return err
	})
	return archive, err
}

// Credentials are short-lived storage credentials: to read what was pinned and to put new objects under the attempt's
// prefixes. Only servers with S3 storage give any.
func (t *Task) Credentials(ctx context.Context) (answer protocol.Credentials, err error) {
	err = Repeat(ctx, func(ctx context.Context) (err error) {
		answer, err = t.client.Credentials(ctx, t.capability(), t.fence)
		return err
	})
	return answer, err
}

// Query runs SQL on the server, over the pinned inputs, each of which is a relation named as the input. maxRows is the
// server's own bound where it is 0.
func (t *Task) Query(ctx context.Context, sql string, maxRows int) (answer protocol.QueryAnswer, err error) {
	err = Repeat(ctx, func(ctx context.Context) (err error) {
		answer, err = t.client.Query(ctx, t.capability(), protocol.QueryRequest{Fence: t.fence, SQL: sql, MaxRows: maxRows})
		return err
	})
	return answer, err
}

// State decodes the operator state that the job's last task left; it reports whether there is any.
func (t *Task) State(into any) (bool, error) {
	if len(t.OperatorState) == 0 || string(t.OperatorState) == "null" {
		return false, nil
	}
	if err := json.Unmarshal(t.OperatorState, into); err != nil {
		return true, fmt.Errorf("operator state: %w", err)
	}
	return true, nil
}

// Scratch is a folder for the task's temporary files, removed after the run.
func (t *Task) Scratch() (string, error) {
	t.scratchOnce.Do(func() {
		t.scratch, t.scratchErr = os.MkdirTemp(t.worker.cfg.ScratchDir, fmt.Sprintf("dagctl-%s-%d-*", t.TaskID, t.fence.Attempt))
	})
	return t.scratch, t.scratchErr
}

func (t *Task) close() {
	if t.scratch != "" {
		if err := os.RemoveAll(t.scratch); err != nil {
			t.worker.cfg.Log.Warn("a task's folder could not be removed", "task", t.TaskID, "error", err)
		}
	}
}
