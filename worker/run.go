package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/dagctl/dagctl/worker/protocol"
)

// reportFor bounds how long a worker tries to report the end of a run. The server accepts it even after the lease has
// expired, as long as no other attempt has begun.
const reportFor = 10 * time.Minute

// RunClaim runs a claimed task and reports its end to the server. The run stops when its time is up, when it is
// canceled, when its lease is lost, and when ctx ends. RunClaim returns an error if the server did not accept the end:
// because the task runs elsewhere, or because the server could not be reached.
func (w *Worker) RunClaim(ctx context.Context, claim protocol.Claim) error {
	if claim.Status != protocol.Claimed || claim.Task == nil || claim.LeaseToken == nil {
		return fmt.Errorf("worker: there is no task to run: the claim is %s %s", claim.Status, claim.Reason)
	}
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	task := *claim.Task
	claim.Task = &task
	if task.TimeoutSeconds > 0 { // from here on, the time is up by this machine's clock
		task.TimeoutAt = time.Now().Add(time.Duration(task.TimeoutSeconds * float64(time.Second)))
	}
	if !task.TimeoutAt.IsZero() {
		var cancel context.CancelFunc
		runCtx, cancel = context.WithDeadlineCause(runCtx, task.TimeoutAt, ErrTimedOut)
		defer cancel()
	}

	t := w.newTask(claim, stop)
	defer t.close()
	w.note(t, true)
	defer w.note(t, false)
	alive, ended := context.WithCancel(context.WithoutCancel(ctx))
	var beside sync.WaitGroup
	beside.Go(func() { t.keepLease(alive) })
	beside.Go(func() { t.logs.ship(alive) })
	result, err := w.runFunc(runCtx, t)

	// The cause counts only if the function did not finish.
	cause := context.Cause(runCtx)
	report, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportFor)
	defer cancel()
	defer context.AfterFunc(w.exit, cancel)() // an exiting worker does not wait for a server that is away

	err = t.end(report, result, err, cause)
	ended()
	beside.Wait()
	return err
}

// note records whether a task runs.
func (w *Worker) note(t *Task, runs bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if runs {
		w.runs[t] = true
	} else {
		delete(w.runs, t)
	}
}

// runFunc runs the task's function. It turns a panic into an error that is not retryable.
func (w *Worker) runFunc(ctx context.Context, t *Task) (result json.RawMessage, err error) {
	run, err := w.function(&t.Task)
	if err != nil {
		return nil, err
	}
	defer func() {
		if p := recover(); p != nil {
			t.Log.ErrorContext(ctx, "panic", "panic", p, "stack", string(debug.Stack()))
			err = NotRetryable(fmt.Errorf("panic: %v", p))
		}
	}()
	return run(ctx, t)
}

// end reports how the run ended.
func (t *Task) end(ctx context.Context, result json.RawMessage, err, cause error) error {
	if errors.Is(cause, ErrFenced) {
		return cause
	}
	if err != nil && errors.Is(cause, ErrStopped) {
		return cause // the worker's last heartbeat hands the task to others, without counting a failure
	}

	t.logs.flush(ctx)
	if err == nil {
		err = t.unsound(result)
	}
	completion := protocol.Completion{Fence: t.fence}
	switch {
	case err == nil:
		t.gathered.complete(&completion)
		completion.Status = protocol.Completed
		if string(result) != "null" {
			completion.Result = result
		}
	case errors.Is(cause, ErrCanceled):
		completion.Status = protocol.Canceled
	default:
		if errors.Is(cause, ErrTimedOut) {
			err = cause
		} else if cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		t.fail(&completion, err)
	}

	t.reporting.Store(true)
	answer := t.complete(ctx, completion)
	if errors.Is(answer, ErrInvalid) || errors.Is(answer, ErrForbidden) {
		if completion.Status == protocol.Completed {
			// The server does not accept what the run produced. Without a failure the lease would expire, and the task
			// would be tried again for ever.
			refused := protocol.Completion{Fence: t.fence}
			t.fail(&refused, NotRetryable(answer))
			return t.complete(ctx, refused)
		}
	}
	return answer
}

// aloneAlways reports no end together with others.
func aloneAlways(context.Context, *Task, protocol.Completion) error { return errAlone }

// maxMessage is the longest message of an error, in bytes.
const maxMessage = 10_000

func (t *Task) fail(c *protocol.Completion, err error) {
	retryable := Retryable(err)
	c.Status = protocol.Failed
	c.Error = &protocol.Error{Message: cut(storable(cmp.Or(err.Error(), "failed")), maxMessage), Retryable: &retryable,
		ColumnsUnknown: errors.As(err, new(columnsUnknown))}
}

func (t *Task) complete(ctx context.Context, c protocol.Completion) error {
	ends := t.worker.ends
	ends.reporting.Add(1)
	defer ends.reporting.Add(-1)

	report := ends.report // with others, if the first try comes to that
	err := Repeat(ctx, func(ctx context.Context) error {
		err := report(ctx, t, c)
		if report = aloneAlways; errors.Is(err, errAlone) {
			_, err = t.client.Complete(ctx, t.capability(), c)
		}
		if err != nil && !refused(err) {
			t.worker.cfg.Log.WarnContext(ctx, "the server has not accepted the end of a task yet", "task", t.TaskID,
				"attempt",
				t.Attempt, "error", err)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("report the end of attempt %d of task %s: %w", t.Attempt, t.TaskID, err)
	}
	return nil
}

// storable replaces what a server cannot keep: NUL, and bytes that are not UTF-8.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// cut shortens a text to at most so many bytes, between two runes.
func cut(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	const mark = "…"
	bytes -= len(mark)
	for bytes > 0 && text[bytes]&0xC0 == 0x80 {
		bytes--
	}
	return text[:bytes] + mark
}
