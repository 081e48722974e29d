// Package usage adds up what jobs use: seconds of attempts, rows and bytes written, bytes stored; says what that costs
// by the prices of the server's config; and forecasts when sources fire and datasets are due next.
//
// Vocabulary: an Amount is what was used; a Row is the amount of one job, dataset, owner, DAG or org; a roll-up counts
// the attempts that have ended, each once, by the hour and by the day of UTC. It owns usage_hours, usage_days,
// usage_dag_days, usage_stored and usage_progress.
//
// Counting is a work item, apart from the transactions that end attempts (docs/decisions, 72): it reads the audit trail
// of tasks in the order of ids, up to where no transaction can add a row any more.
package usage

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
)

// Prices says what usage costs. The zero Prices shows no money.
type Prices struct {
	Currency     string  // such as EUR
	Second       float64 // of an attempt
	Written      float64 // of a gigabyte (10^9 bytes) written
	StoredMonths float64 // of a gigabyte that is stored for a month of 730 hours
}

// KeepUsage is how long usage stays by default.
const KeepUsage = 400 * 24 * time.Hour

// Usage counts what jobs use, and answers questions about it.
type Usage struct {
	pool, requests *pgxpool.Pool
	registry       *registry.Registry
	views          *views.Views

	// Prices says what usage costs.
	Prices Prices
	// Keep is how long usage stays.
	Keep time.Duration
	// Margin is how far the clock of a process may be behind that of the database, which it follows.
	Margin time.Duration
}

// margin is the default of Usage.Margin: so much, and the time between passes, the figures are behind.
const margin = 30 * time.Second

// New returns the usage of a dispatcher's jobs.
func New(d *dispatcher.Dispatcher, v *views.Views) *Usage {
	return &Usage{
		pool: d.Pool, requests: d.Requests, registry: d.Registry, views: v, Keep: KeepUsage, Margin: margin,
	}
}

// Amount is what was used.
type Amount struct {
	Seconds  float64 `json:"seconds" doc:"Of all attempts that ended"`
	Attempts int64   `json:"attempts" doc:"That ended"`
	Tasks    int64   `json:"tasks" doc:"That completed"`
	Failed   int64   `json:"failed" doc:"Attempts that failed"`
	Rows     int64   `json:"rows" doc:"Written"`
	Bytes    int64   `json:"bytes" doc:"Written"`
	Stored   int64   `json:"stored_bytes" doc:"Now, of what readers see, as it was measured within the last quarter of an hour"`
}

// add adds a part of another amount.
func (a *Amount) add(b Amount, part float64) {
	a.Seconds += b.Seconds * part
	a.Attempts += b.Attempts
	a.Tasks += b.Tasks
	a.Failed += b.Failed
	a.Rows += b.Rows
	a.Bytes += b.Bytes
	a.Stored += b.Stored
}

const gigabyte = 1e9

// month is the length of a month for what is stored.
const month = 730 * time.Hour

// of returns what an amount costs where what is stored was stored over a time.
func (p Prices) of(a Amount, over time.Duration) float64 {
	return a.Seconds*p.Second + float64(a.Bytes)/gigabyte*p.Written +
		float64(a.Stored)/gigabyte*p.StoredMonths*float64(over)/float64(month)
}
