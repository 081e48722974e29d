// Package health knows whether this process can use its storage, and whether that is the storage of its installation.
// A storage that is away is a state of the server and no failure of the tasks that meet it. It owns installation and
// storage_servers.
package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/storage"
)

// How often the storage is looked at, and how long one look may take.
const (
	wellEvery = 30 * time.Second
	illEvery  = 2 * time.Second
	lookTime  = 10 * time.Second
)

// Config is what a Health needs.
type Config struct {
	Storage *storage.Storage
	Pool    *pgxpool.Pool // the owner's
	Log     *slog.Logger
	Changed func()        // called after each change of Reason; nil: nobody is told
	Every   time.Duration // between looks at a storage that cannot be used; default 2 s

	Server   string        // the name of this process, for others that use the storage; empty: there are no others
	Patience time.Duration // see patience, the default
	Shortage time.Duration // how long too little room for a task lasts at most; default: see shortFor
}

// Health is the state of a storage. The nil *Health is that of one that is always well.
type Health struct {
	Config
	usable      prometheus.GaugeFunc
	failedLooks prometheus.Counter
	spared      prometheus.Counter

	looking sync.Mutex    // one look at a time
	busy    chan error    // gets the end of a probe that is under way; held with looking
	news    chan struct{} // for Run: the reason has changed

	// for the probe alone
	id    string          // of the installation, once the storage has carried it
	met   map[string]bool // the servers whose names were in the storage
	apart bool            // as in storage_servers

	mu     sync.Mutex
	reason string // empty: the storage can be used
	until  string // as in storage.Unusable
	since  time.Time
	turn   int // number of the last look that began
	short  shortage
}

// notLooked is the reason of a storage that nobody has looked at.
const notLooked = "the storage has not been looked at yet"

// New returns the state of a storage that Look has yet to find out.
func New(c Config) (*Health, error) {
	if c.Storage == nil || c.Pool == nil {
		return nil, errors.New("storage health: a storage and a pool are needed")
	}
	c.Log, c.Every, c.Patience = cmp.Or(c.Log, slog.Default()), cmp.Or(c.Every, illEvery), cmp.Or(c.Patience, patience)

	h := &Health{Config: c, reason: notLooked, since: time.Now(), met: map[string]bool{},
		news: make(chan struct{}, 1), short: shortage{met: map[uuid.UUID]meeting{}}}
	h.usable = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "dagctl_storage_usable",
		Help: "1 if this server can use its storage, 0 if it takes no tasks because it cannot."}, func() float64 {
		if h.Reason() == "" {
			return 1
		}
		return 0
	})

	h.failedLooks = prometheus.NewCounter(prometheus.CounterOpts{Name: "dagctl_storage_probe_failures_total",
		Help: "Looks of this server at its storage that found that it cannot be used."})
	h.spared = prometheus.NewCounter(prometheus.CounterOpts{Name: "dagctl_storage_spared_attempts_total",
		Help: "Attempts that failed because of the storage, and were not counted as failures."})
	return h, nil
}

// Describe implements prometheus.Collector.
func (h *Health) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(h, ch) }

// Collect implements prometheus.Collector.
func (h *Health) Collect(ch chan<- prometheus.Metric) {
	h.usable.Collect(ch)
	h.failedLooks.Collect(ch)
	h.spared.Collect(ch)
}

// Reason returns why the storage cannot be used, or an empty text if it can. It names no folder and no bucket.
func (h *Health) Reason() string {
	if h == nil {
		return ""
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until != "" {
		return h.reason + "; " + h.until
	}
	return h.reason
}

// Run looks at the storage until ctx ends: often while it cannot be used, and rarely while it can.
func (h *Health) Run(ctx context.Context) error {
	defer h.leave()
	for {
		every := wellEvery
		if h.Reason() != "" {
			every = h.Every
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.news: // somebody else's look says how often to look now
		case <-time.After(every):
			h.Look(ctx)
		}
	}
}

// Explains returns the reason for which the storage, and not the task, is to blame for an error of the task. Otherwise
// the reason is empty, and the task fails: by tooOften if that is an error, because it has been spared too often.
func (h *Health) Explains(ctx context.Context, task uuid.UUID, err error) (reason string, tooOften error) {
	if h == nil || err == nil || !storage.MayBeUnusable(err) {
		return "", nil
	}
	if reason = h.Look(ctx); reason != "" {
		return reason, nil
	}
	if met := (*storage.Unusable)(nil); errors.As(err, &met) { // it answers again
		return met.Reason, nil
	}
	if reason, room := storage.NotWritten(err); reason != "" {
		return h.again(ctx, task, reason, room, err)
	}
	return "", nil
}

// Answer returns what a request is answered that failed by an error, if that is the storage's; nil: it is not, or the
// error says it already. In any case the storage is looked at.
func (h *Health) Answer(ctx context.Context, err error) error {
	if h == nil || err == nil || !storage.MayBeUnusable(err) {
		return nil
	}
	reason := h.Look(ctx)
	if reason == "" {
		reason, _ = storage.NotWritten(err)
	}
	if reason == "" {
		return nil
	}
	return fault.New(fault.Unavailable, "this server cannot use its storage: %s", reason).
		WithHint("whoever runs the server has to mend it: docs/operations.md, When the storage cannot be used; then " +
			"the same works again")
}

// Spared counts an attempt that failed because of the storage and does not count as failed.
func (h *Health) Spared() { h.spared.Inc() }

// Look looks at the storage now and returns the reason for which it cannot be used. Callers that wait for a look that
// began after they asked share it.
func (h *Health) Look(ctx context.Context) (reason string) {
	h.mu.Lock()
	asked := h.turn
	h.mu.Unlock()

	h.looking.Lock()
	defer h.looking.Unlock()
	h.mu.Lock()
	began := h.turn
	h.mu.Unlock()
	if began > asked {
		return h.Reason()
	}

	h.mu.Lock()
	h.turn++
	h.mu.Unlock()
	err := h.look(ctx)
	if !errors.Is(err, errUnknown) {
		h.found(err)
	}
	return h.Reason()
}

// errUnknown is the error of a look that found out nothing: the database is away, or nobody waits any more.
var errUnknown = errors.New("the state of the storage is not known")

// look probes the storage, within bounds: a network's file system that is away holds whoever touches it, so at most one
// probe of this process hangs.
func (h *Health) look(ctx context.Context) error {
	if h.busy == nil {
		done := make(chan error, 1)
		h.busy = done
		go func() {
			// It ends by itself if its caller does not wait for it, and the next look finds how.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTime)
			defer cancel()
			err := h.Storage.Probe(ctx)
			if err == nil {
				err = h.fits(time.Now())
			}
			if err == nil {
				err = h.compare(ctx)
			}
			if err == nil {
				err = h.meet(ctx)
			}
			done <- err
		}()
	}

	late := time.NewTimer(lookTime + time.Second)
	defer late.Stop()
	select {
	case err := <-h.busy:
		h.busy = nil
		return err
	case <-ctx.Done():
		return errUnknown
	case <-late.C:
		return &storage.Unusable{Reason: storage.ReasonSilent, Err: fmt.Errorf("no answer within %s", lookTime)}
	}
}

// found records what a look found, and says it if it is new.
func (h *Health) found(err error) {
	reason, until := "", ""
	var why *storage.Unusable
	if err != nil {
		h.failedLooks.Inc()
		if reason = err.Error(); errors.As(err, &why) {
			reason, until = why.Reason, why.Until
		}
	}

	h.mu.Lock()
	before, since := h.reason, h.since
	h.until = until
	if before != reason {
		h.reason, h.since = reason, time.Now()
	}
	h.mu.Unlock()
	switch {
	case before == reason:
		return
	case reason != "":
		said := []any{"reason", reason, "error", err}
		var classified *fault.Error
		if errors.As(err, &classified) && classified.Hint != "" {
			said = append(said, "hint", classified.Hint)
		}
		h.Log.Error("the storage cannot be used: this server takes no tasks", said...)
	case before != notLooked:
		h.Log.Info("the storage can be used again", "after", time.Since(since).Round(time.Second).String())
	}
	select {
	case h.news <- struct{}{}:
	default:
	}
	if h.Changed != nil {
		h.Changed()
	}
}
