package worker

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dagctl/dagctl/worker/protocol"
)

// A worker that holds more than fewLeases renews them by one call for many. When a heartbeat of one task is due, those
// of the others that are due within half of their interval come with it: so all are soon in step. A heartbeat that got
// no answer is repeated by itself, so that none depends on a call that fails for another's sake.
const (
	fewLeases      = 3
	beatsGatherFor = 20 * time.Millisecond
)

// beats gathers the heartbeats of a worker's tasks.
type beats struct {
	worker *Worker
	alone  atomic.Bool // the server does not know the call for many

	mu      sync.Mutex
	waiting []*gatheredBeat
}

// gatheredBeat is a heartbeat that waits for others.
type gatheredBeat struct {
	call protocol.One[protocol.Heartbeat]
	done chan struct{} // closed when the rest is the answer

	answer protocol.HeartbeatAnswer
	err    error
}

// send makes a heartbeat of a task, together with those of others where the worker holds more than a few leases.
func (g *beats) send(ctx context.Context, t *Task, h protocol.Heartbeat, again bool) (protocol.HeartbeatAnswer, error) {
	shares := !again && !g.alone.Load() && t.client == g.worker.client && t.claimedBy != nil
	if !shares || !g.worker.callTogether(t) {
		return t.client.Heartbeat(ctx, t.capability(), h)
	}

	b := &gatheredBeat{done: make(chan struct{}),
		call: protocol.One[protocol.Heartbeat]{CapabilityToken: t.capability(), Body: h}}
	g.gather(b)
	select {
	case <-b.done:
	case <-ctx.Done():
		return protocol.HeartbeatAnswer{}, context.Cause(ctx)
	}
	if errors.Is(b.err, errAlone) {
		return t.client.Heartbeat(ctx, t.capability(), h)
	}
	return b.answer, b.err
}

// callTogether wakes the tasks whose heartbeats may come now. It reports whether the worker holds more than a few
// leases.
func (w *Worker) callTogether(t *Task) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.runs) <= fewLeases {
		return false
	}
	now := time.Now().UnixNano()
	for other := range w.runs {
		if due := other.due.Load(); other != t && due > now && due-now < int64(other.beatEvery()/2) {
			other.wake()
		}
	}
	return true
}

func (g *beats) gather(b *gatheredBeat) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, b)
	switch len(g.waiting) {
	case 1:
		time.AfterFunc(beatsGatherFor, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.leave()
		})
	case protocol.MostCalls:
		g.leave()
	}
}

// leave sends those that wait. The caller holds mu.
func (g *beats) leave() {
	all := g.waiting
	g.waiting = nil
	if len(all) > 0 {
		go g.renew(all)
	}
}

// renew makes one call for all, and answers each. If the call is refused as a whole, each is made by itself.
func (g *beats) renew(all []*gatheredBeat) {
	calls := make([]protocol.One[protocol.Heartbeat], len(all))
	for i, b := range all {
		calls[i] = b.call
	}
	answers, refusals, err := g.worker.client.HeartbeatMany(g.worker.exit, calls)

	var status *StatusError
	if errors.Is(err, ErrNotFound) || errors.As(err, &status) && status.Status == http.StatusMethodNotAllowed {
		g.alone.Store(true)
	}
	if refused(err) {
		err = errAlone
	}
	for i, b := range all {
		if b.err = err; err == nil {
			b.answer, b.err = answers[i], refusals[i]
		}
		close(b.done)
	}
}
