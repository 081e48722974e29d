// Package wakeup carries hints between loops: within a process by channels, to other processes by NOTIFY. A hint may be
// lost; it only makes things fast.
package wakeup

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// channel is the NOTIFY channel of all dispatchers on one database. A payload is the name of the sending process,
// followed by a list of topics.
const channel = "dagctl"

// Hub carries hints between loops: within the process by channels of capacity one, to other processes by NOTIFY. It
// debounces notifications and sends them outside the transactions that caused them, because a NOTIFY inside every
// transaction would serialise their commits.
type Hub struct {
	Route, Claim, Announce, Build, Promote, Sources, Timers chan struct{}

	Invoke    []chan struct{} // one for each Lambda function
	Claimable broadcast       // for the polls of workers elsewhere

	self    string // begins each payload of this process, so that it ignores its own
	mu      sync.Mutex
	pending map[string]bool // topics to send to other processes
	changed chan struct{}   // pending has grown
}

// New returns a Hub.
func New() *Hub {
	one := func() chan struct{} { return make(chan struct{}, 1) }
	return &Hub{Route: one(), Claim: one(), Announce: one(), Build: one(), Promote: one(), Sources: one(),
		Timers: one(),
		self:   uuid.NewString(), pending: map[string]bool{}, changed: one()}
}

// Poke puts a hint into a channel of capacity one, unless one is already there.
func Poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // an earlier hint has not been received yet
	}
}

// broadcast wakes any number of waiters.
type broadcast struct {
	mu sync.Mutex
	c  chan struct{}
}

// Wait returns a channel that is closed at the next wake.
func (b *broadcast) Wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		b.c = make(chan struct{})
	}
	return b.c
}

// Waiting reports whether anybody may be waiting.
func (b *broadcast) Waiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.c != nil
}

// wake wakes everybody who waits.
func (b *broadcast) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		close(b.c)
		b.c = nil
	}
}

// The topics of wake-ups.
const (
	Route   = "route"
	Claim   = "claim"
	Build   = "build"
	Promote = "promote"
	Sources = "sources"
)

// Topics are wake-ups to send after COMMIT.
type Topics []string

// wakeLoops wakes the loops of this process that a topic concerns.
func (w *Hub) wakeLoops(topic string) {
	switch topic {
	case Route:
		Poke(w.Route)
	case Claim:
		Poke(w.Claim)
		Poke(w.Announce)
		for _, f := range w.Invoke {
			Poke(f)
		}
		w.Claimable.wake()
	case Build:
		Poke(w.Build)
		Poke(w.Sources) // a new version has sources to enumerate
	case Promote:
		Poke(w.Promote)
	case Sources:
		Poke(w.Sources)
	}
}

// Send wakes the loops of this process now and those of others soon. It is called after COMMIT.
func (w *Hub) Send(topics ...string) {
	if len(topics) == 0 {
		return
	}
	w.mu.Lock()
	for _, t := range topics {
		w.pending[t] = true
	}
	w.mu.Unlock()
	for _, t := range topics {
		w.wakeLoops(t)
	}
	Poke(w.changed)
}

// All sends every topic.
func (w *Hub) All() {
	w.Send(Route, Claim, Build, Promote, Sources)
}

// debounce bounds how often one process notifies the others.
const debounce = 20 * time.Millisecond

// Notify sends pending topics to other processes, one NOTIFY per burst, until ctx ends.
func (w *Hub) Notify(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.changed:
		}

		w.mu.Lock()
		topics := append(make([]string, 0, len(w.pending)+1), w.self)
		for t := range w.pending {
			topics = append(topics, t)
		}
		clear(w.pending)
		w.mu.Unlock()

		if len(topics) == 1 {
			continue
		}
		_, err := pool.Exec(ctx, `SELECT pg_notify($1, $2)`, channel, strings.Join(topics, ","))
		if err != nil && ctx.Err() == nil {
			log.Warn("notify failed, others will find out by themselves", "error", err)
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(debounce):
		}
	}
}

// Listen wakes the loops of this process when other processes notify it, until ctx ends. It replaces a lost connection;
// meanwhile polling finds the work.
func (w *Hub) Listen(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	for {
		err := w.listenOnce(ctx, pool)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		log.Warn("listening for wake-ups failed, will try again", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(Jitter(time.Second)):
		}
	}
}

// listenOnce listens on one connection until it fails.
func (w *Hub) listenOnce(ctx context.Context, pool *pgxpool.Pool) error {
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	conn := pooled.Hijack() // a listening connection must never go back to the pool
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return err
	}

	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if strings.HasPrefix(n.Payload, w.self) {
			continue
		}
		for topic := range strings.SplitSeq(n.Payload, ",") {
			w.wakeLoops(topic)
		}
	}
}

// Jitter returns d ± 20 %, so that processes do not act all at once.
func Jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
