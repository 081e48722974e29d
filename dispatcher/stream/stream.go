// Package stream tells listeners that something in their org has changed, and not what: they ask for that again. While
// nobody listens it does nothing; while somebody does, a process looks at the database once a second for all of its
// listeners together, however many they are.
//
// Vocabulary: a listener is a caller with a filter; a probe is one look at the database; a sight is what a probe saw; a
// change is a difference between two sights; a news is the changes of one DAG that one listener may know of.
package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Config is what a Stream needs.
type Config struct {
	Pool     *pgxpool.Pool // the owner's: one probe is for the listeners of all orgs
	Requests *pgxpool.Pool // under row-level security: for what a caller may know
	Registry *registry.Registry
	Log      *slog.Logger

	PerOrg    int // listeners of an org at the same time; default 1,000
	PerCaller int // listeners of a caller at the same time; default 30
}

// every is how long after a probe the next one begins.
const every = time.Second

// Stream tells listeners of changes. It is safe for concurrent use.
type Stream struct {
	Config
	woken  chan struct{} // a first listener has come
	probes atomic.Int64  // how many there have been

	mu        sync.Mutex
	listeners map[*Listener]struct{}
	ended     sync.Once
	over      chan struct{} // closed when Run has ended
}

// New validates the config.
func New(c Config) (*Stream, error) {
	if c.Pool == nil || c.Requests == nil || c.Registry == nil {
		return nil, errors.New("stream: both pools and a registry are needed")
	}
	c.PerOrg, c.PerCaller = cmp.Or(c.PerOrg, 1000), cmp.Or(c.PerCaller, 30)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return &Stream{Config: c, woken: make(chan struct{}, 1), listeners: map[*Listener]struct{}{},
		over: make(chan struct{})}, nil
}

// Run probes while there are listeners, until ctx ends. Then it ends the listeners too.
func (s *Stream) Run(ctx context.Context) error {
	defer s.ended.Do(func() { close(s.over) })
	var seen *sight
	for {
		if len(s.listening()) == 0 {
			seen = nil
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-s.woken:
			}
			continue
		}

		next, err := s.probe(ctx, seen)
		switch {
		case err == nil:
			seen = next
		case ctx.Err() == nil:
			s.Log.Warn("listeners were not told of changes, will try again", "error", err)
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(every):
		}
	}
}

// Probes returns how often the Stream has looked at the database.
func (s *Stream) Probes() int64 { return s.probes.Load() }

// Ended is closed when nobody is told of anything any more.
func (s *Stream) Ended() <-chan struct{} { return s.over }

// listening lists the listeners.
func (s *Stream) listening() []*Listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Listener, 0, len(s.listeners))
	for l := range s.listeners {
		all = append(all, l)
	}
	return all
}

// Filter says which changes a listener wants to hear of; empty fields are no condition. What does not exist, and what
// the caller may not see, never changes.
type Filter struct {
	DAG     string
	Dataset string    // its name; also the tasks of the job that makes it, and its DAG's versions
	Task    uuid.UUID // and of no other task
}

// News says of what kinds the changes of a DAG were.
type News struct {
	DAG     string   `json:"dag,omitempty"` // absent: several
	What    []string `json:"what"`          // tasks, versions, sources, pauses, datasets; sorted
	Dataset string   `json:"dataset,omitempty"`
}

// The kinds of changes.
const (
	Tasks    = "tasks"
	Versions = "versions"
	Sources  = "sources"
	Pauses   = "pauses"
	Datasets = "datasets"
)

// Listener hears of changes until End is called.
type Listener struct {
	stream  *Stream
	ctx     context.Context // names the reader to row-level security; it may have ended
	caller  authz.Caller
	filter  Filter
	dataset *registry.Dataset // of the filter; nil: there is none for this caller

	came    chan struct{}
	mu      sync.Mutex
	ready   bool
	pending map[string]map[string]bool // kinds by DAG
}

// Listen adds a listener for a caller. It returns a TooMany fault where the org or the caller has too many of them.
func (s *Stream) Listen(ctx context.Context, caller authz.Caller, f Filter) (*Listener, error) {
	l := &Listener{stream: s, ctx: context.WithoutCancel(ctx), caller: caller, filter: f, came: make(chan struct{}, 1),
		pending: map[string]map[string]bool{}}
	if f.Dataset != "" {
		if err := s.find(ctx, l); err != nil {
			return nil, err
		}
	}
	if err := s.add(l); err != nil {
		return nil, err
	}

	select {
	case s.woken <- struct{}{}:
	default:
	}
	return l, nil
}

// find looks for the dataset of a listener's filter.
func (s *Stream) find(ctx context.Context, l *Listener) error {
	err := pg.InOrgTx(ctx, s.Requests, l.caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		d, err := s.Registry.FindDataset(ctx, tx, l.caller, l.filter.Dataset)
		if err == nil {
			l.dataset = &d
		}
		return err
	})
	if err != nil && !fault.Is(err, fault.NotFound) {
		return fmt.Errorf("listen to dataset %s: %w", l.filter.Dataset, err)
	}
	return nil
}

// add adds a listener if there is room.
func (s *Stream) add(l *Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	inOrg, own := 0, 0
	for other := range s.listeners {
		if other.caller.OrgID == l.caller.OrgID {
			inOrg++
			if other.caller.Actor == l.caller.Actor {
				own++
			}
		}
	}

	switch {
	case own >= s.PerCaller:
		return fault.New(fault.TooMany, "%s has %d streams open", l.caller.Actor, own).WithHint("close some of them")
	case inOrg >= s.PerOrg:
		return fault.New(fault.TooMany, "the org has %d streams open", inOrg).
			WithHint("close some of them, or ask another server")
	}
	s.listeners[l] = struct{}{}
	return nil
}

// End ends the listener.
func (l *Listener) End() {
	l.stream.mu.Lock()
	defer l.stream.mu.Unlock()
	delete(l.stream.listeners, l)
}

// Came receives when Take has something new.
func (l *Listener) Came() <-chan struct{} { return l.came }

// mostNews is how many DAGs are told one by one.
const mostNews = 50

// Take returns what has come since the last time, by DAG, and whether the listener hears of everything from now on.
func (l *Listener) Take() (news []News, ready bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]bool{}
	for dag, kinds := range l.pending {
		n := News{DAG: dag, Dataset: l.filter.Dataset}
		for kind := range kinds {
			n.What, all[kind] = append(n.What, kind), true
		}
		slices.Sort(n.What)
		news = append(news, n)
	}
	clear(l.pending)

	if len(news) > mostNews {
		news = []News{{What: slices.Sorted(maps.Keys(all))}}
	}
	slices.SortFunc(news, func(a, b News) int { return cmp.Compare(a.DAG, b.DAG) })
	return news, l.ready
}

// tell adds changes of a DAG.
func (l *Listener) tell(dag, kind string) {
	l.mu.Lock()
	if l.pending[dag] == nil {
		l.pending[dag] = map[string]bool{}
	}
	l.pending[dag][kind] = true
	l.mu.Unlock()
	l.wake()
}

// begin says that the listener hears of everything from now on.
func (l *Listener) begin() {
	l.mu.Lock()
	begins := !l.ready
	l.ready = true
	l.mu.Unlock()
	if begins {
		l.wake()
	}
}

func (l *Listener) wake() {
	select {
	case l.came <- struct{}{}:
	default: // it has not looked yet
	}
}
