package worker

import (
	"context"
	"sync"
	"time"

	"github.com/dagctl/dagctl/worker/protocol"
)

// progressNote is the latest that a task said of how far it is.
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

// keepLease extends the lease at a third of its length until ctx ends, which is when the server was told of the run's end:
// a run that is to stop may take a while. It stops the run when it was canceled or fenced off. A heartbeat without an answer is made again soon, so that one lost call does not cost the lease.
func (t *Task) keepLease(ctx context.Context) {
	every := t.lease / 3
	wait := every
	for n := 0; ; {
		if sleep(ctx, wait) != nil {
			return
		}
		percent, state := t.progress.get()
		call, cancel := context.WithTimeout(ctx, max(every, time.Second))
		answer, err := t.client.Heartbeat(call, t.capability(), protocol.Heartbeat{Fence: t.fence, Progress: percent, State: state})
		cancel()
		switch {
		case err == nil:
			n, wait = 0, every
		case ctx.Err() != nil:
			return
		case fenced(err) && t.telling.Load():
			return // the end was taken before this heartbeat
		case fenced(err):
			t.worker.cfg.Log.WarnContext(ctx, "the lease was lost", "task", t.TaskID, "attempt", t.Attempt, "error", err)
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
