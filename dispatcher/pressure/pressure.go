// Package pressure makes producers wait while too much is queued. It owns backpressure.
//
// When too much is queued, or the next task in line has waited too long, everything that brings more work waits, across
// all orgs, until the queue has shrunk to half of that: sources do not fire, backfills admit no partition, builds that
// need tasks make none. Nothing is lost, because each of these is made up for from stored state: a source stays due, a
// backfill keeps its list, a build its pointers. Work that somebody hands over (a delivery, an enqueue) is accepted as
// long as there is any room, and then refused with the time to try again: the sender keeps it, which a full disk would
// not. Admitted work goes on to its end, including the tasks that follow from it, so the queue empties by itself.
package pressure

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
)

// Thresholds are the limits above which producers wait; zero: there is none.
type Thresholds struct {
	MaxQueued int           // tasks that are ready, or wait for a limit or a sibling
	MaxAge    time.Duration // how long the next in line of a served runtime has been ready
	// RefuseAt is the number of queued tasks from which on deliveries and enqueues are refused; default: twice
	// MaxQueued.
	RefuseAt int
}

// Pressure is the state of the queue at its last measurement.
type Pressure struct {
	Since  *time.Time `json:"since,omitempty" doc:"When producers were made to wait; absent: they are not"`
	Queued int64      `json:"queued" doc:"Tasks of all orgs that were queued when last counted, as far as that went"`
	Oldest float64    `json:"oldest_seconds" doc:"How long the next task in line has waited"`
	At     time.Time  `json:"measured_at"`
}

// On reports whether producers are to wait.
func (p Pressure) On() bool { return p.Since != nil }

// Config is what a Gauge needs.
type Config struct {
	Pool, Requests *pgxpool.Pool
	Wakeups        *wakeup.Hub
	Thresholds     Thresholds
	Functions      []string      // the runtimes that functions serve, as the config says
	Quotas         *authz.Quotas // of orgs; nil: none
	// Stored counts the bytes that orgs store.
	Stored func(ctx context.Context, tx pgx.Tx, orgs []uuid.UUID) (map[uuid.UUID]int64, error)
	Log    *slog.Logger
}

// Gauge measures how much is queued and decides whether producers have to wait.
type Gauge struct {
	pool, requests *pgxpool.Pool
	wake           *wakeup.Hub
	thresholds     Thresholds
	functions      []string
	quotas         *authz.Quotas
	stored         func(context.Context, pgx.Tx, []uuid.UUID) (map[uuid.UUID]int64, error)
	log            *slog.Logger
	pressed        atomic.Pointer[Pressure] // the state of the queue when this process last looked
}

// New returns a Gauge.
func New(c Config) *Gauge {
	return &Gauge{pool: c.Pool, requests: c.Requests, wake: c.Wakeups, thresholds: c.Thresholds,
		functions: c.Functions, quotas: c.Quotas, stored: c.Stored, log: c.Log}
}
