// Package engine runs what users wrote or uploaded, their statements and their files, in processes of their own. The
// server's own process never opens DuckDB for any of it: a text that crashes DuckDB, or keeps it busy, ends one engine.
//
// Vocabulary: an Engine is a child process of this same binary that serves one Purpose: a kind of work for one org, and
// for one job of it. Engines is the set of them, which shares slots among orgs. A Question asks an engine for one piece
// of work. What a question names lies in the engine's folder, which is all that its process sees of the file system;
// files are linked into it and taken out of it. What runs inside is in engine/inside. It owns no tables.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/shares"
)

// Kind is a kind of work.
type Kind string

// The kinds of work. Each has slots of its own, so that no query waits for jobs, and no plan for either.
const (
	Parse Kind = "parse" // statements that are not run
	Job   Kind = "job"   // tasks of a job, and their checks
	Query Kind = "query" // what people ask
	Copy  Kind = "copy"  // rows on their way into Postgres and out of it, also of those who hold an engine already
)

var kinds = []Kind{Parse, Job, Query, Copy}

// Purpose is what an engine is for. No engine ever serves another purpose than its first.
type Purpose struct {
	Kind   Kind
	Org    string
	Of     string           // what it works for within the org: a job; may be empty
	Limits relations.Limits // of DuckDB
	// CPU is the processor time of an engine's whole life; 0: any.
	CPU time.Duration
	// Each is the processor time of one question; 0: any.
	Each time.Duration
	// Spills lets an engine of kind Query write files: what does not fit into its memory. Those of other kinds always
	// may.
	Spills bool
}

// writes reports whether engines of a purpose may write files.
func (p Purpose) writes() bool { return p.Kind != Query || p.Spills }

// Config configures engines.
type Config struct {
	// Dir is the parent of the engines' folders. On the file system of the storage, files are linked instead of copied.
	// Default: that of temporary files.
	Dir string
	// Slots are how many engines work at once, by kind. Default: see DefaultSlots.
	Slots map[Kind]int
	// PerOrg returns how many engines of a kind may work for an org at once; nil or 0: all but one, so that what one
	// org runs for long keeps no other waiting for its end.
	PerOrg func(org string, kind Kind) int
	// Idle is how long an engine waits for more work of its purpose; below 0: it ends with its work. Default: 30
	// seconds.
	Idle time.Duration
	// Processors are how many engines get on with their work at once. Default: those of the machine.
	Processors int
	// Inside runs the loop of an engine in this process. Nil: engines are processes of their own. Tests of packages
	// whose binary cannot be an engine set it.
	Inside func(in io.Reader, out io.Writer) int
}

// DefaultSlots returns the slots of a machine with a number of processors.
func DefaultSlots(processors int) map[Kind]int {
	return map[Kind]int{Parse: 1 + max(2, processors), Job: 1 + max(8, 4*processors), Query: max(4, processors),
		Copy: 1 + max(4, processors)}
}

// Engines is a set of engines. It is safe for concurrent use.
type Engines struct {
	config  Config
	slots   map[Kind]*shares.Slots
	counted counted

	mu      sync.Mutex
	idle    map[Purpose][]*Engine
	working map[Purpose]int
	turns   map[Purpose][]chan *Engine // of those who wait for an engine that works
	took    time.Duration              // the last start
	closed  bool
}

// New returns a set of engines, none of which runs yet.
func New(c Config) (*Engines, error) {
	c.Dir, c.Idle = cmp.Or(c.Dir, os.TempDir()), cmp.Or(c.Idle, 30*time.Second)
	c.Processors = cmp.Or(c.Processors, runtime.NumCPU())
	if c.Slots == nil {
		c.Slots = DefaultSlots(runtime.NumCPU())
	}

	e := &Engines{config: c, slots: map[Kind]*shares.Slots{}, idle: map[Purpose][]*Engine{},
		working: map[Purpose]int{}, turns: map[Purpose][]chan *Engine{}, counted: newCounted()}
	for _, kind := range kinds {
		if c.Slots[kind] < 1 {
			return nil, fmt.Errorf("engines: there must be a slot for %s at least", kind)
		}
		perOrg := func(org string) int {
			if c.PerOrg == nil {
				return 0
			}
			return c.PerOrg(org, kind)
		}
		e.slots[kind] = shares.New(c.Slots[kind], perOrg)
	}
	return e, e.Sweep()
}

// Take returns an engine for a purpose, which the caller must Release. It waits for a slot until ctx ends. Callers of
// those that people wait for are told to try again if the time of ctx runs out.
func (e *Engines) Take(ctx context.Context, p Purpose) (*Engine, error) {
	return e.TakeTelling(ctx, p, func() {})
}

// TakeTelling is Take for one who wants to know when it has to wait: waits is called then.
func (e *Engines) TakeTelling(ctx context.Context, p Purpose, waits func()) (*Engine, error) {
	if p.Org == "" {
		return nil, errors.New("an engine works for an org")
	}
	if err := e.slots[p.Kind].Take(ctx, p.Org, waits); err != nil {
		if (p.Kind == Query || p.Kind == Parse) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			busy := fault.New(fault.TooMany, "all engines of the org are busy, and none became free in time")
			err = rest.RetryAfter(busy.WithHint("try again in a moment"), time.Second)
		}
		return nil, err
	}
	g, err := e.get(ctx, p)
	if err != nil {
		e.slots[p.Kind].Release(p.Org)
	}
	return g, err
}

// Waiting returns how many callers wait for engines of a kind.
func (e *Engines) Waiting(kind Kind) int {
	_, waiting := e.slots[kind].Counts()
	return waiting
}

// Do takes an engine for one question.
func (e *Engines) Do(ctx context.Context, p Purpose, q Question, answer any) error {
	engine, err := e.Take(ctx, p)
	if err != nil {
		return err
	}
	defer engine.Release()
	return engine.Do(ctx, q, answer)
}

// put keeps an engine for more work of its purpose. Beyond as many as there are slots, the one that waits longest ends.
func (e *Engines) put(engine *Engine) {
	e.mu.Lock()
	if e.closed || e.config.Idle < 0 {
		e.leave(engine.purpose)
		e.mu.Unlock()
		engine.end()
		return
	}
	if e.handOver(engine) {
		e.mu.Unlock()
		return
	}
	e.leave(engine.purpose)

	oldest, count := (*Engine)(nil), 0
	for p, waiting := range e.idle {
		if p.Kind != engine.purpose.Kind {
			continue
		}
		count += len(waiting)
		if oldest == nil || waiting[0].since.Before(oldest.since) {
			oldest = waiting[0]
		}
	}
	if count < e.config.Slots[engine.purpose.Kind] {
		oldest = nil
	} else {
		e.remove(oldest)
		oldest.ends.Stop()
	}

	engine.since = time.Now()
	engine.ends = time.AfterFunc(e.config.Idle, func() { e.retire(engine) })
	e.idle[engine.purpose] = append(e.idle[engine.purpose], engine)
	e.mu.Unlock()
	if oldest != nil {
		oldest.end()
	}
}

// retire ends an engine that has waited long enough.
func (e *Engines) retire(engine *Engine) {
	e.mu.Lock()
	found := e.remove(engine)
	e.mu.Unlock()
	if found {
		engine.end()
	}
}

// remove removes an engine from those that wait, if it is there. The caller holds the lock.
func (e *Engines) remove(engine *Engine) bool {
	waiting := e.idle[engine.purpose]
	for i, other := range waiting {
		if other != engine {
			continue
		}
		if waiting = append(waiting[:i:i], waiting[i+1:]...); len(waiting) == 0 {
			delete(e.idle, engine.purpose)
		} else {
			e.idle[engine.purpose] = waiting
		}
		return true
	}
	return false
}

// Close ends the engines that wait, and each of the others when it is released.
func (e *Engines) Close() error {
	e.mu.Lock()
	e.closed = true
	var all []*Engine
	for _, waiting := range e.idle {
		all = append(all, waiting...)
	}
	e.idle = map[Purpose][]*Engine{}
	e.mu.Unlock()

	for _, engine := range all {
		engine.ends.Stop()
		engine.end()
	}
	return nil
}
