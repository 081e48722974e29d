// Package function runs tasks in an AWS Lambda function. The server claims a task and invokes the function with the claim,
// so the function needs neither a worker token nor an address: both the address and the task's capability are in the event.
//
//	w, err := worker.New(worker.Config{})
//	worker.Handle(w, "email:send", send)
//	lambda.Start(function.Handler(w)) // of github.com/aws/aws-lambda-go/lambda
//
// Vocabulary: that of worker. It owns no tables.
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

// errTimeIsUp is why a run is stopped while there is still time to tell the server.
var errTimeIsUp = errors.New("the time of the Lambda function is up")

// spare is what is left of a function's time for telling how a run ended: a tenth of it, spareMost at most.
const spareMost = 5 * time.Second

// Handler runs the claimed task that an event carries with what the worker was given to run; its config needs nothing. How
// the run ended is told to the server, so an invocation fails only where that could not be.
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
		return errors.New("the event is no claimed task: a dagctl server invokes this function, see docs/aws.md")
	}
	client, log := h.client(claim.BaseURL), h.worker.Log().With("task", claim.Task.TaskID, "attempt", claim.Attempt)
	// An event may be old, or delivered twice: another attempt may run by now, or this one have ended.
	err := worker.Repeat(ctx, func(ctx context.Context) error {
		_, err := client.Heartbeat(ctx, claim.CapabilityToken, protocol.Heartbeat{Fence: claim.Fence()})
		return err
	})
	if over(err) {
		log.Warn("the task went on without this attempt", "error", err)
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
		log.Warn("the task went on without this attempt", "error", err)
		return nil
	}
	return err
}

// over reports whether an attempt is not, or no longer, the one that runs.
func over(err error) bool {
	return errors.Is(err, worker.ErrFenced) || errors.Is(err, worker.ErrConflict)
}
