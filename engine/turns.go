package engine

import (
	"context"
	"slices"
	"time"
)

// Where as many engines work as there are processors, one more makes no work end sooner, and its start costs as much as
// a small task. Whoever needs an engine then waits for one that works for the same purpose, for a moment: a task may
// also hold its engine while it waits for something else than a processor.

// The moment is as long as some starts take: longer where the machine has other work, too.
const (
	patience      = 3 // starts
	leastPatience = 100 * time.Millisecond
	mostPatience  = time.Second
)

// get returns an engine for a purpose: an idle one, one that becomes free in time, or a new one.
func (e *Engines) get(ctx context.Context, p Purpose) (*Engine, error) {
	if g := e.existing(ctx, p); g != nil {
		return g, nil
	}
	began := time.Now()
	g, err := e.start(p)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.took = time.Since(began); err != nil {
		e.leave(p)
	}
	return g, err
}

// existing returns an engine that has been started for a purpose; nil: a new one is needed. Both count as working.
func (e *Engines) existing(ctx context.Context, p Purpose) *Engine {
	e.mu.Lock()
	if idle := e.idle[p]; len(idle) > 0 {
		last := idle[len(idle)-1]
		e.remove(last)
		e.working[p]++
		e.mu.Unlock()
		last.ends.Stop()
		return last
	}
	if !e.busy(p) {
		e.working[p]++
		e.mu.Unlock()
		return nil
	}
	turn := make(chan *Engine, 1)
	e.turns[p] = append(e.turns[p], turn)
	most := min(max(patience*e.took, leastPatience), mostPatience)
	e.mu.Unlock()

	wait, stop := context.WithTimeout(ctx, most)
	defer stop()
	select {
	case g := <-turn:
		return g
	case <-wait.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if at := slices.Index(e.turns[p], turn); at >= 0 {
		e.setTurns(p, slices.Delete(e.turns[p], at, at+1))
		e.working[p]++
		return nil
	}
	return <-turn // it came at the last moment
}

// busy reports whether an engine for a purpose is worth waiting for. Those of other kinds do not serve again, or serve
// people. The caller holds the lock.
func (e *Engines) busy(p Purpose) bool {
	if p.Kind != Job || e.config.Idle < 0 || e.working[p] == 0 {
		return false
	}
	all := 0
	for other, n := range e.working {
		if other.Kind == p.Kind {
			all += n
		}
	}
	return all >= e.config.Processors
}

// handOver gives an engine that has done its work to who waits for it. The caller holds the lock.
func (e *Engines) handOver(g *Engine) bool {
	turns := e.turns[g.purpose]
	if len(turns) == 0 {
		return false
	}
	e.setTurns(g.purpose, turns[1:])
	turns[0] <- g
	return true
}

// drop ends an engine that works. Who waits for it starts a new one.
func (e *Engines) drop(g *Engine) {
	e.mu.Lock()
	if turns := e.turns[g.purpose]; len(turns) > 0 {
		e.setTurns(g.purpose, turns[1:])
		turns[0] <- nil
	} else {
		e.leave(g.purpose)
	}
	e.mu.Unlock()
	g.end()
}

// leave counts an engine that works no longer. The caller holds the lock.
func (e *Engines) leave(p Purpose) {
	if e.working[p]--; e.working[p] == 0 {
		delete(e.working, p)
	}
}

func (e *Engines) setTurns(p Purpose, turns []chan *Engine) {
	if len(turns) == 0 {
		delete(e.turns, p)
	} else {
		e.turns[p] = turns
	}
}
