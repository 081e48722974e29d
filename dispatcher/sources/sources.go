// Package sources makes the tasks that no event calls for: it fires schedules and polls, supervises always_on sources,
// and accepts deliveries of webhooks and timers. It owns sources and enumerations.
package sources

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/pressure"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// Sources fires the sources of active versions.
type Sources struct {
	dispatcher     *dispatcher.Dispatcher
	pool, requests *pgxpool.Pool
	registry       *registry.Registry
	operators      *operators.Registry
	tasks          *tasks.Store
	pressure       *pressure.Gauge
	vault          *authz.Vault
	wake           *wakeup.Hub
	log            *slog.Logger
	roots          func(orgSlug, dagName string) []string
	hookLimiter    *rest.Limiter
	readers        readers
	looked         time.Time // when Fire fired last; only its loop uses it
	until          atomic.Pointer[time.Time]
}

// New returns the sources of a dispatcher. The limiter bounds the deliveries to each webhook; nil: they are unbounded.
func New(d *dispatcher.Dispatcher, deliveries *rest.Limiter) *Sources {
	return &Sources{
		dispatcher: d, pool: d.Pool, requests: d.Requests, registry: d.Registry, operators: d.Operators,
		tasks: d.Tasks, pressure: d.Pressure, vault: d.Vault, wake: d.Wakeups, log: d.Log, roots: d.Roots,
		hookLimiter: deliveries,
	}
}

// FireUntil leaves what is due after a moment to other processes, for one that ends when all that was due is done.
func (src *Sources) FireUntil(at time.Time) { src.until.Store(&at) }

// dueBy returns until when a source must be due to be fired now.
func (src *Sources) dueBy(now time.Time) time.Time {
	if until := src.until.Load(); until != nil && until.Before(now) {
		return *until
	}
	return now
}

// Loops returns the loops that fire and supervise sources.
func (src *Sources) Loops() []dispatcher.Loop {
	return []dispatcher.Loop{
		{Name: "sources", Woken: src.wake.Sources, Body: src.Fire, End: src.EndReading},
		{Name: "always_on", Body: src.Supervise},
	}
}
