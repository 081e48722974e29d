// Package builds makes new DAG versions ready and switches to them: it fills the generations that a version does not
// share, keeps them caught up, opens the gate, swaps all pointers in one transaction, and swaps back.
package builds

import (
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/metrics"
	"github.com/dagctl/dagctl/dispatcher/pressure"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/storage"
)

// Builds advances the versions that are being built.
type Builds struct {
	dispatcher     *dispatcher.Dispatcher
	pool, requests *pgxpool.Pool
	registry       *registry.Registry
	deployer       *deploy.Deployer
	storage        *storage.Storage
	tasks          *tasks.Store
	stale          *stale.Examiner
	sources        *sources.Sources
	pressure       *pressure.Gauge
	metrics        *metrics.Metrics
	wake           *wakeup.Hub
	log            *slog.Logger

	// Patience is how long a rollback waits for readers of a view that it has to replace.
	Patience time.Duration
	// FreshLook is how long after it began a look leaves so little to look at under the lock that it is not repeated.
	FreshLook time.Duration

	// For tests. AfterLook is called between a look without the lock and the lock. Doubt makes a cutover look at
	// everything under the lock as well, and refuse to go on if that finds anything else.
	AfterLook func()
	Doubt     bool

	behind   chan registry.Build // versions that serve again after a rollback
	promoted chan registry.Build // versions that a person has promoted just now
	apart    apart
	// By build, all under holding: when the live counterparts were last held back, what it waits for before it looks at
	// all of its revisions again, when it looks at its views again, and its wait after a turn that failed.
	holding sync.Mutex
	holds   map[uuid.UUID]liveHold
	awaited map[uuid.UUID]awaited
	looks   map[uuid.UUID]time.Time
	later   map[uuid.UUID]delay
}

// New returns the builds of a dispatcher; src reads their sources.
func New(d *dispatcher.Dispatcher, src *sources.Sources) *Builds {
	return &Builds{
		dispatcher: d, pool: d.Pool, requests: d.Requests, registry: d.Registry, deployer: deploy.New(d.Registry),
		storage: d.Storage,
		tasks:   d.Tasks, stale: d.Stale, sources: src, pressure: d.Pressure, metrics: d.Metrics,
		wake: d.Wakeups, log: d.Log,
		Patience: 30 * time.Second, FreshLook: 30 * time.Millisecond,
		later: map[uuid.UUID]delay{}, looks: map[uuid.UUID]time.Time{},
		behind: make(chan registry.Build, behindAtOnce), holds: map[uuid.UUID]liveHold{}, apart: newApart(),
		awaited: map[uuid.UUID]awaited{}, promoted: make(chan registry.Build),
	}
}

// Loops returns the loops that advance builds and catch up versions that serve again.
func (bs *Builds) Loops() []dispatcher.Loop {
	return []dispatcher.Loop{
		{Name: "build", Woken: bs.wake.Build, Body: bs.dispatcher.HalfTime(bs.advanceApart),
			End: bs.apart.running.Wait},
		{Name: "catch up", Run: bs.CatchUpBehind},
		{Name: "promote", Run: bs.AdvancePromoted},
		{Name: "stable views", Body: dispatcher.AtMostEach(viewsEach, bs.CoverViews)},
	}
}

// viewsEach is how often the loop looks for stable views that lack their generation.
const viewsEach = 30 * time.Second
