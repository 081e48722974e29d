package dispatcher

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

// channel is what dispatchers on one database listen on. A payload is a list of topics, after the name of the process.
const channel = "dagctl"

// wakeups carries hints between loops: within the process by channels of capacity one, to other processes by NOTIFY,
// debounced and outside the transactions that caused it, because a NOTIFY inside every commit serialises them.
type wakeups struct {
	route, claim, announce, build, promote, sources chan struct{}

	invoke    []chan struct{} // of each function
	claimable broadcast       // for the polls of workers elsewhere

	self    string // begins what this process tells the others, so that it does not hear itself
	mu      sync.Mutex
	pending map[string]bool // topics to tell other processes
	told    chan struct{}
}

func newWakeups() *wakeups {
	one := func() chan struct{} { return make(chan struct{}, 1) }
	return &wakeups{route: one(), claim: one(), announce: one(), build: one(), promote: one(), sources: one(),
		self: uuid.NewString(), pending: map[string]bool{}, told: one()}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // somebody poked already and was not heard yet
	}
}

// broadcast wakes everybody who waits.
type broadcast struct {
	mu sync.Mutex
	c  chan struct{}
}

// wait returns what is closed at the next tell.
func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		b.c = make(chan struct{})
	}
	return b.c
}

// waiting reports whether anybody may be waiting.
func (b *broadcast) waiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.c != nil
}

func (b *broadcast) tell() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		close(b.c)
		b.c = nil
	}
}

// What a wake-up is about.
const (
	topicRoute   = "route"
	topicClaim   = "claim"
	topicBuild   = "build"
	topicPromote = "promote"
	topicSources = "sources"
)

// topics are wake-ups to send after COMMIT.
type topics []string

func (w *wakeups) local(topic string) {
	switch topic {
	case topicRoute:
		poke(w.route)
	case topicClaim:
		poke(w.claim)
		poke(w.announce)
		for _, f := range w.invoke {
			poke(f)
		}
		w.claimable.tell()
	case topicBuild:
		poke(w.build)
		poke(w.sources) // a new version has sources to enumerate
	case topicPromote:
		poke(w.promote)
	case topicSources:
		poke(w.sources)
	}
}

// send wakes the loops of this process now and those of others soon. It is called after COMMIT.
func (w *wakeups) send(topics ...string) {
	if len(topics) == 0 {
		return
	}
	w.mu.Lock()
	for _, t := range topics {
		w.pending[t] = true
	}
	w.mu.Unlock()
	for _, t := range topics {
		w.local(t)
	}
	poke(w.told)
}

func (w *wakeups) all() {
	w.send(topicRoute, topicClaim, topicBuild, topicPromote, topicSources)
}

// debounce bounds how often one process notifies the others.
const debounce = 20 * time.Millisecond

// tell notifies other processes of what was sent, one NOTIFY per burst.
func (w *wakeups) tell(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.told:
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
		if _, err := pool.Exec(ctx, `SELECT pg_notify($1, $2)`, channel, strings.Join(topics, ",")); err != nil && ctx.Err() == nil {
			log.Warn("notify failed, others will find out by themselves", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(debounce):
		}
	}
}

// listen passes on what other processes tell. A lost connection is replaced; meanwhile polling finds the work.
func (w *wakeups) listen(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	for {
		err := w.listenOnce(ctx, pool)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		log.Warn("listening for wake-ups failed, will try again", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(jitter(time.Second)):
		}
	}
}

func (w *wakeups) listenOnce(ctx context.Context, pool *pgxpool.Pool) error {
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
			w.local(topic)
		}
	}
}

// jitter spreads what would otherwise happen everywhere at once: d ± 20 %.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
