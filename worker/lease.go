package worker

import (
	"context"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/dagctl/dagctl/worker/protocol"
)

// progressNote is the progress that a task has last reported.
type progressNote struct {
	mu      sync.Mutex
	percent int
	state   string
}

// set takes what the server accepts: a heartbeat that it refused would cost the lease.
func (p *progressNote) set(percent int, state string) {
	state = strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, state), "\uFFFD")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.percent, p.state = min(max(percent, 0), 100), cut(state, 1000)
}

func (p *progressNote) get() (int, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.percent, p.state
}

// hearWithin is the time between heartbeats of a task that hears of a cancel by them only. It has to arrive within five
// seconds.
const hearWithin = 3 * time.Second

// beatEvery is the time between heartbeats: a third of the lease, and less where nothing else tells of a cancel.
func (t *Task) beatEvery() time.Duration {
	if t.claimedBy != nil && t.worker.told.Load() == t.claimedBy {
		return t.lease / 3
	}
	return min(t.lease/3, hearWithin)
}

// rest waits until it is time for a heartbeat, or wake asks for one. It reports whether ctx still holds.
func (t *Task) rest(ctx context.Context, d time.Duration) bool {
	t.due.Store(time.Now().Add(d).UnixNano())
	defer t.due.Store(0)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-t.awake:
	}
	return true
}

// wake makes the next heartbeat come now.
func (t *Task) wake() {
	select {
	case t.awake <- struct{}{}:
	default:
	}
}

// keepLease extends the lease at a third of its length until ctx ends. That is after the server has taken the end of
// the run, because a run may take a while to stop. keepLease stops the run when it is canceled or fenced off. It
// repeats a heartbeat that got no answer soon, so that one lost call does not cost the lease.
func (t *Task) keepLease(ctx context.Context) {
	wait := t.beatEvery()
	for n := 0; ; {
		if !t.rest(ctx, wait) {
			return
		}
		every := t.beatEvery()
		percent, state := t.progress.get()
		call, cancel := context.WithTimeout(ctx, max(every, time.Second))
		answer, err := t.worker.beats.send(call, t, protocol.Heartbeat{Fence: t.fence, Progress: percent,
			State: state}, n > 0)
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
