package worker

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dagctl/dagctl/worker/protocol"
)

// Where tasks end faster than one per often, their completions are gathered: each waits for up to endsGatherFor, and
// they go to the server in one call. A completion that comes alone goes at once, in a call of its own, and so does one
// that is large or that the server has to seal files for, which no other is to wait for.
const (
	often         = 20 * time.Millisecond
	endsGatherFor = 5 * time.Millisecond
	lightEnd      = 16 << 10 // bytes of a completion
)

// ends gathers the completions of a worker's tasks.
type ends struct {
	worker    *Worker
	reporting atomic.Int64 // tasks whose end is being reported
	alone     atomic.Bool  // the server does not know the call for many

	mu      sync.Mutex
	last    time.Time // when the last completion came
	waiting []*gatheredEnd
	timer   *time.Timer // sends those that wait; nil: there are none
}

// gatheredEnd is a completion that waits for others.
type gatheredEnd struct {
	call protocol.One[json.RawMessage]
	done chan struct{} // closed when err is the answer
	err  error
}

// errAlone says that a completion has to be made by a call of its own.
var errAlone = errors.New("the call for many tasks was refused as a whole")

// report makes the first try to report the end of a task, together with other tasks that end now. It returns errAlone
// where nothing speaks for that, or if the server does not take the call.
func (g *ends) report(ctx context.Context, t *Task, c protocol.Completion) error {
	if !g.shares(t, c) {
		return errAlone
	}
	text, err := json.Marshal(c)
	if err != nil || len(text) > lightEnd {
		return errAlone
	}

	e := &gatheredEnd{done: make(chan struct{}),
		call: protocol.One[json.RawMessage]{CapabilityToken: t.capability(), Body: text}}
	if !g.gather(e, time.Now()) {
		return errAlone
	}
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// shares reports whether a completion may go with others.
func (g *ends) shares(t *Task, c protocol.Completion) bool {
	if g.alone.Load() || t.client != g.worker.client || t.claimedBy == nil {
		return false
	}
	sealed := c.Status == protocol.Completed && len(t.Outputs) > 0
	return !sealed && len(c.Outputs)+len(c.Events)+len(c.Tasks)+len(c.ColumnLineage) == 0
}

// gather makes a completion wait for others. It reports whether it does: one that comes alone need not.
func (g *ends) gather(e *gatheredEnd, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	lone := now.Sub(g.last) > often && len(g.waiting) == 0
	g.last = now
	if lone {
		return false
	}

	g.waiting = append(g.waiting, e)
	switch {
	case len(g.waiting) == protocol.MostCalls, g.worker.running.Load() <= g.reporting.Load(): // nobody else will come
		g.send()
	case g.timer == nil:
		g.timer = time.AfterFunc(endsGatherFor, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.send()
		})
	}
	return true
}

// send sends those that wait. The caller holds mu.
func (g *ends) send() {
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	all := g.waiting
	g.waiting = nil
	if len(all) > 0 {
		go g.complete(all)
	}
}

// complete makes one call for all, and answers each. If the call fails as a whole, nothing is known of any: each is to
// be repeated by itself, with its own fence.
func (g *ends) complete(all []*gatheredEnd) {
	calls := make([]protocol.One[json.RawMessage], len(all))
	for i, e := range all {
		calls[i] = e.call
	}
	answers, err := g.worker.client.CompleteMany(g.worker.exit, calls)

	var status *StatusError
	if errors.Is(err, ErrNotFound) || errors.As(err, &status) && status.Status == http.StatusMethodNotAllowed {
		g.alone.Store(true)
	}
	if refused(err) {
		err = errAlone
	}
	for i, e := range all {
		e.err = err
		if err == nil {
			e.err = answers[i]
		}
		close(e.done)
	}
}
