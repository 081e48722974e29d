// Package sources makes the tasks that no event calls for: it fires schedules and polls, supervises always_on sources,
// and accepts deliveries of webhooks and timers. It owns sources and enumerations.
package sources

import (
	"log/slog"
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
}

// New returns the sources of a dispatcher. The limiter bounds the deliveries to each webhook; nil: they are unbounded.
func New(d *dispatcher.Dispatcher, deliveries *rest.Limiter) *Sources {
	return &Sources{
		dispatcher: d, pool: d.Pool, requests: d.Requests, registry: d.Registry, operators: d.Operators,
		tasks: d.Tasks, pressure: d.Pressure, vault: d.Vault, wake: d.Wakeups, log: d.Log, roots: d.Roots,
		hookLimiter: deliveries,
	}
}

// Loops returns the loops that fire and supervise sources.
func (src *Sources) Loops() []dispatcher.Loop {
	return []dispatcher.Loop{
		{Name: "sources", Woken: src.wake.Sources, Body: src.Fire, End: src.EndReading},
		{Name: "always_on", Body: src.Supervise},
	}
}
