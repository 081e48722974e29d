package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dagctl/dagctl/internal/workdir"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Task is a claimed task and what its function may do while it runs. Its methods may be called from any goroutine.
type Task struct {
	protocol.Task
	// Log sends lines to the server, where `dagctl tasks logs` shows them, and to the worker's own log.
	Log *slog.Logger

	worker    *Worker
	client    *Client
	fence     protocol.Fence
	lease     time.Duration
	token     atomic.Value // capability token, a string
	stop      context.CancelCauseFunc
	reporting atomic.Bool // whether the end of the run is being reported
	claimedBy any         // token of the worker's heartbeats when it began; nil: it had none
	awake     chan struct{}
	due       atomic.Int64 // when its next heartbeat is due, in Unix nanoseconds
	progress  progressNote
	gathered  gathered
	logs      *logShipper

	scratchOnce sync.Once
	scratch     *workdir.Dir
	scratchErr  error
}

func (w *Worker) newTask(claim protocol.Claim, stop context.CancelCauseFunc) *Task {
	client := w.client
	if client.base == "" {
		client = client.at(claim.BaseURL)
	}
	t := &Task{Task: *claim.Task, worker: w, client: client, fence: claim.Fence(), stop: stop,
		claimedBy: w.told.Load(), awake: make(chan struct{}, 1),
		lease: time.Duration(cmp.Or(claim.Task.LeaseSeconds, 30)) * time.Second}
	t.token.Store(claim.CapabilityToken)
	t.logs = newLogShipper(t)
	own := w.cfg.Log.With("org", t.Org, "dag", t.Job.DAGName, "job", t.Job.Name, "task", t.TaskID, "attempt", t.Attempt)
	t.Log = slog.New(&logHandler{ship: t.logs, line: t.logs.render, own: own.Handler()})
	return t
}

func (t *Task) capability() string { return t.token.Load().(string) }

// Fence returns the fence that each call of the attempt shows.
func (t *Task) Fence() protocol.Fence { return t.fence }

// Progress reports how far the task is, from 0 to 100, with a short text for people. It is sent with the next
// heartbeat, so it may be called often.
func (t *Task) Progress(percent int, state string) { t.progress.set(percent, state) }

// Secrets returns the values of the secrets that the task's job names. The server refuses runtimes that are not trusted
// with them: ErrForbidden.
func (t *Task) Secrets(ctx context.Context) (map[string]string, error) {
	answer, err := t.BoundSecrets(ctx)
	return answer.Secrets, err
}

// BoundSecrets returns these values together with the hosts that an admin allows each to be sent to.
func (t *Task) BoundSecrets(ctx context.Context) (answer protocol.Secrets, err error) {
	err = Repeat(ctx, func(ctx context.Context) (err error) {
		answer, err = t.client.Secrets(ctx, t.capability(), t.fence)
		return err
	})
	return answer, err
}

// Code returns the zip archive of the job's own code, for operator udf.
func (t *Task) Code(ctx context.Context) (archive []byte, err error) {
	err = Repeat(ctx, func(ctx context.Context) (err error) {
		archive, err = t.client.Code(ctx, t.capability(), t.fence)
		return err
	})
	return archive, err
}

// Credentials returns short-lived storage credentials: to read what was pinned and to put new objects under the
// attempt's prefixes. Only servers with S3 storage have any.
func (t *Task) Credentials(ctx context.Context) (answer protocol.Credentials, err error) {
	err = Repeat(ctx, func(ctx context.Context) (err error) {
		answer, err = t.client.Credentials(ctx, t.capability(), t.fence)
		return err
	})
	return answer, err
}

// Query runs SQL on the server over the pinned inputs. Each input is a relation with the input's name. The server's own
// bound applies if maxRows is 0.
func (t *Task) Query(ctx context.Context, sql string, maxRows int) (answer protocol.QueryAnswer, err error) {
	err = Repeat(ctx, func(ctx context.Context) (err error) {
		answer, err = t.client.Query(ctx, t.capability(), protocol.QueryRequest{Fence: t.fence, SQL: sql,
			MaxRows: maxRows})
		return err
	})
	return answer, err
}

// State decodes the operator state that the job's last task left. It reports whether there is one.
func (t *Task) State(into any) (bool, error) {
	if len(t.OperatorState) == 0 || string(t.OperatorState) == "null" {
		return false, nil
	}
	if err := json.Unmarshal(t.OperatorState, into); err != nil {
		return true, fmt.Errorf("operator state: %w", err)
	}
	return true, nil
}

// Scratch returns a folder for the task's temporary files, which is removed after the run.
func (t *Task) Scratch() (string, error) {
	t.scratchOnce.Do(func() {
		t.scratch, t.scratchErr = workdir.Make(t.worker.cfg.ScratchDir,
			fmt.Sprintf("%s%s-%d-", scratchPrefix, t.TaskID, t.fence.Attempt))
	})
	if t.scratchErr != nil {
		return "", t.scratchErr
	}
	return t.scratch.Path, nil
}

// scratchPrefix begins the names of tasks' folders.
const scratchPrefix = "dagctl-task-"

// sweep removes the folders of tasks whose workers were killed.
func (w *Worker) sweep() {
	if err := workdir.Sweep(w.cfg.ScratchDir, scratchPrefix); err != nil {
		w.cfg.Log.Warn("folders of tasks whose worker was killed stay", "error", err)
	}
}

func (t *Task) close() {
	if t.scratch != nil {
		if err := t.scratch.Remove(); err != nil {
			t.worker.cfg.Log.Warn("the folder of a task could not be removed", "task", t.TaskID, "error", err)
		}
	}
}
