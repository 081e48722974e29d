// Package upkeep removes what nobody needs any more: garbage, data that people purge, rows past their retention, and
// deleted DAGs. It also repeats, in the background, what hints may have missed. What touches many rows is a work item.
package upkeep

import (
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/usage"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// Upkeep removes data that nobody needs any more.
type Upkeep struct {
	dispatcher     *dispatcher.Dispatcher
	pool, requests *pgxpool.Pool
	registry       *registry.Registry
	storage        *storage.Storage
	builds         *builds.Builds
	views          *views.Views
	wake           *wakeup.Hub
	log            *slog.Logger
	workerID       string
	poll           time.Duration
	items          *workitems.Runner
	usage          *usage.Usage

	// KeepVersions is how long versions stay that no longer serve, before they shrink to their records.
	KeepVersions time.Duration
	// KeepDeliveries is how long it stays known that a payload was delivered.
	KeepDeliveries time.Duration
}

// New returns the upkeep of a dispatcher.
func New(d *dispatcher.Dispatcher, b *builds.Builds, v *views.Views, us *usage.Usage) *Upkeep {
	u := &Upkeep{
		dispatcher: d, pool: d.Pool, requests: d.Requests, registry: d.Registry, storage: d.Storage,
		builds: b, views: v, wake: d.Wakeups, log: d.Log, workerID: d.WorkerID, poll: d.Poll,
		KeepVersions: KeepVersions, KeepDeliveries: KeepDeliveries, usage: us,
	}
	u.items = workitems.New(d.Pool, d.Log, u.sweeps(), u.expiring(), u.collecting(), u.reconciling(), u.limits(),
		u.fanOut(), us.Counting(), us.Measuring())
	return u
}

// lookEvery is how often a process looks for background work that is due.
const lookEvery = 2 * time.Second

// Loops returns the loops that run River and the work items.
func (u *Upkeep) Loops() []dispatcher.Loop {
	return []dispatcher.Loop{
		{Name: "periodic", Run: u.runPeriodic},
		{Name: "background", Body: dispatcher.AtMostEach(lookEvery, u.items.Start), End: u.items.End},
	}
}
