// Package function runs tasks in an AWS Lambda function. The server claims a task and invokes the function with the
// claim. The function needs neither a worker token nor an address, because the event carries the address and the task's
// capability.
package function

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/protocol"
)

// errTimeIsUp is the cause of a run that is stopped while there is still time to report its end.
var errTimeIsUp = errors.New("the time of the Lambda function is up")

// spareMost bounds the time reserved for reporting the end of a run, which is a tenth of the function's time.
const spareMost = 5 * time.Second

// Handler returns a Lambda handler that runs the claimed task that an event carries with the functions of w, whose
// config may be empty. The server hears how the run ended, so an invocation fails only if that could not be reported.
func Handler(w *worker.Worker) func(ctx context.Context, claim protocol.Claim) error {
	h := &handler{worker: w, clients: map[string]*worker.Client{}}
	return h.run
}

type handler struct {
	worker *worker.Worker

	mu      sync.Mutex
	clients map[string]*worker.Client // by address
}

func (h *handler) client(base string) *worker.Client {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.clients[base]
	if !ok {
		c = worker.NewClient(base, "", nil)
		h.clients[base] = c
	}
	return c
}

func (h *handler) run(ctx context.Context, claim protocol.Claim) error {
	if claim.Status != protocol.Claimed || claim.Task == nil || claim.LeaseToken == nil || claim.BaseURL == "" {
		return errors.New("the event is not a claimed task: only a dagctl server can invoke this function, see " +
			"docs/aws.md")
	}
	client, log := h.client(claim.BaseURL), h.worker.Log().With("task", claim.Task.TaskID, "attempt", claim.Attempt)

	// An event may be old or a duplicate: another attempt may run by now, or this one may have ended.
	err := worker.Repeat(ctx, func(ctx context.Context) error {
		_, err := client.Heartbeat(ctx, claim.CapabilityToken, protocol.Heartbeat{Fence: claim.Fence()})
		return err
	})
	if over(err) {
		log.Warn("the task continues without this attempt", "error", err)
		return nil
	} else if err != nil {
		return fmt.Errorf("begin attempt %d of task %s: %w", claim.Attempt, claim.Task.TaskID, err)
	}

	if claim.ByReference {
		err := worker.Repeat(ctx, func(ctx context.Context) error {
			task, err := client.Assignment(ctx, claim.CapabilityToken, claim.Fence())
			claim.Task = &task
			return err
		})
		if err != nil {
			return fmt.Errorf("fetch the task of attempt %d: %w", claim.Attempt, err)
		}
	}

	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		left := time.Until(deadline)
		ctx, cancel = context.WithDeadlineCause(ctx, deadline.Add(-min(spareMost, left/10)), errTimeIsUp)
		defer cancel()
	}

	err = h.worker.RunClaim(ctx, claim)
	if over(err) {
		log.Warn("the task continues without this attempt", "error", err)
		return nil
	}
	return err
}

// over reports whether an attempt is no longer the current one.
func over(err error) bool {
	return errors.Is(err, worker.ErrFenced) || errors.Is(err, worker.ErrConflict)
}
