// Package control does what people ask of tasks and datasets: retry, cancel and skip, one by one or many at once, pause
// and resume, backfill, accept and reject, publish. It owns pauses, backfills, backfill_partitions, bulk_actions and
// bulk_action_tasks.
package control

import (
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/pressure"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// The statuses of backfills and bulk actions.
const (
	statusRunning   = "Running"
	statusCompleted = "Completed"
	statusFailed    = "Failed"
	statusCanceled  = "Canceled"
)

// Control carries out what people ask for.
type Control struct {
	dispatcher     *dispatcher.Dispatcher
	pool, requests *pgxpool.Pool
	registry       *registry.Registry
	storage        *storage.Storage
	tasks          *tasks.Store
	stale          *stale.Examiner
	sources        *sources.Sources
	views          *views.Views
	pressure       *pressure.Gauge
	wake           *wakeup.Hub
	log            *slog.Logger
}

// New returns the control of a dispatcher.
func New(d *dispatcher.Dispatcher, src *sources.Sources, v *views.Views) *Control {
	return &Control{
		dispatcher: d, pool: d.Pool, requests: d.Requests, registry: d.Registry, storage: d.Storage,
		tasks: d.Tasks, stale: d.Stale, sources: src, views: v, pressure: d.Pressure, wake: d.Wakeups, log: d.Log,
	}
}

// Loops returns the loops that work off backfills and bulk actions, apply pauses, and take back tasks for which
// somebody answers again.
func (ctl *Control) Loops() []dispatcher.Loop {
	return []dispatcher.Loop{
		{Name: "backfill", Body: ctl.AdvanceBackfills},
		{Name: "pauses", Body: ctl.ReviewPauses},
		{Name: "authority", Body: ctl.ReviewAuthority},
		{Name: "bulk", Body: ctl.AdvanceBulkActions},
	}
}
