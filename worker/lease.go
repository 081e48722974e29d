package worker

import (
	"context"
	"sync"
	"time"

	"github.com/dagctl/dagctl/worker/protocol"
)

// progressNote is the progress that a task has last reported.
type progressNote struct {
	mu      sync.Mutex
	percent int
	state   string
}

func (p *progressNote) set(percent int, state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.percent, p.state = min(max(percent, 0), 100), cut(state, 1000)
}

func (p *progressNote) get() (int, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.percent, p.state
}

// hearWithin is how soon a task learns that it is canceled.
const hearWithin = 5 * time.Second

// keepLease extends the lease at a third of its length until ctx ends. That is after the server has taken the end of
// the run, because a run may take a while to stop. keepLease stops the run when it is canceled or fenced off. It
// repeats a heartbeat that got no answer soon, so that one lost call does not cost the lease.
func (t *Task) keepLease(ctx context.Context) {
	every := t.lease / 3
	if !t.worker.registered.Load() { // nothing else tells it of a cancel
		every = min(every, hearWithin)
	}
	wait := every
	for n := 0; ; {
		if sleep(ctx, wait) != nil {
			return
		}
		percent, state := t.progress.get()
		call, cancel := context.WithTimeout(ctx, max(every, time.Second))
		answer, err := t.client.Heartbeat(call, t.capability(), protocol.Heartbeat{Fence: t.fence, Progress: percent,
			State: state})
		cancel()
		switch {
		case err == nil:
			n, wait = 0, every
		case ctx.Err() != nil:
			return
		case fenced(err) && t.reporting.Load():
			return // the server took the end of the run before this heartbeat
		case fenced(err):
			t.worker.cfg.Log.WarnContext(ctx, "the lease was lost", "task", t.TaskID, "attempt", t.Attempt, "error",
				err)
			t.stop(ErrFenced)
			return
		default:
			n++
			wait = min(pauseAfter(n, err), every)
			t.worker.cfg.Log.WarnContext(ctx, "heartbeat failed", "task", t.TaskID, "attempt", t.Attempt, "error", err)
			continue
		}

		if answer.CapabilityToken != "" {
			t.token.Store(answer.CapabilityToken)
		}
		if answer.DrainRequested {
			t.worker.Drain()
		}
		if answer.CancelRequested {
			t.stop(ErrCanceled)
		}
	}
}
