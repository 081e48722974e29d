// Package pressure makes producers wait while too much is queued. It owns backpressure and org_backpressure.
//
// When an org has too much queued for a runtime, or its next task in line there has waited too long, everything waits
// that brings the org more work for the runtime, until the queue has shrunk to half of that: in the DAGs with jobs of
// the runtime sources do not fire, backfills admit no partition, builds that need tasks make none. Other orgs, and the
// org's DAGs that do not use the runtime, notice nothing. Nothing is lost, because each of these is made up for from
// stored state: a source stays due, a backfill keeps its list, a build its pointers. Work that somebody hands over (a
// delivery, an enqueue) is accepted as long as there is any room, and then refused with the time to try again: the
// sender keeps it, which a full disk would not. Admitted work goes on to its end, including the tasks that follow from
// it, so the queue empties by itself.
package pressure

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
)

// Thresholds are the limits above which producers of an org wait, for each runtime; zero: there is none.
type Thresholds struct {
	MaxQueued int           // tasks that are ready, or wait for a limit or a sibling
	MaxAge    time.Duration // how long the next in line has been ready
	// RefuseAt is the number of queued tasks from which on deliveries and enqueues are refused; default: twice
	// MaxQueued.
	RefuseAt int
}

// exceeds returns which threshold is passed, for people, or "". Pressure that is on lasts until both figures are at
// half of their thresholds.
func (t Thresholds) exceeds(p Queued) string {
	share := int64(1)
	if p.On() {
		share = 2
	}
	switch {
	case t.MaxQueued > 0 && p.Queued*share > int64(t.MaxQueued):
		return plural.Or(p.Queued, "task is queued", "tasks are queued")
	case t.MaxAge > 0 && p.Oldest*float64(share) > t.MaxAge.Seconds():
		return fmt.Sprintf("the next in line has waited for %s", time.Duration(p.Oldest)*time.Second)
	}
	return ""
}

// refusesFrom returns the number of queued tasks from which on work is refused; 0: none is.
func (t Thresholds) refusesFrom() int64 {
	if t.RefuseAt > 0 {
		return int64(t.RefuseAt)
	}
	return 2 * int64(t.MaxQueued)
}

// refuses reports whether work of an org for a runtime is refused.
func (t Thresholds) refuses(p Queued) bool { return t.refusesFrom() > 0 && p.Queued >= t.refusesFrom() }

// Queued is what an org had queued for a runtime at the last measurement.
type Queued struct {
	Runtime string     `json:"runtime"`
	Since   *time.Time `json:"since,omitempty" doc:"When producers were made to wait; absent: they are not"`
	Queued  int64      `json:"queued" doc:"Tasks that were queued when last counted, as far as that went"`
	Oldest  float64    `json:"oldest_seconds" doc:"How long the next task in line has waited"`
}

// On reports whether producers are to wait.
func (p Queued) On() bool { return p.Since != nil }

// Pressure is the state of an org's queues at the last measurement. It names the runtimes of which too much is queued.
type Pressure struct {
	Since    *time.Time `json:"since,omitempty" doc:"When producers were first made to wait; absent: they are not"`
	Queued   int64      `json:"queued" doc:"Tasks of these runtimes that were queued when last counted, as far as that went"`
	Oldest   float64    `json:"oldest_seconds" doc:"How long the next task in line of these runtimes has waited"`
	At       time.Time  `json:"measured_at"`
	Runtimes []Queued   `json:"runtimes" nullable:"false" doc:"Those of which too much is queued"`
}

// On reports whether producers are to wait.
func (p Pressure) On() bool { return p.Since != nil }

// add adds what is queued for one more runtime.
func (p *Pressure) add(q Queued) {
	if q.On() && (p.Since == nil || q.Since.Before(*p.Since)) {
		p.Since = q.Since
	}
	p.Queued += q.Queued
	p.Oldest = max(p.Oldest, q.Oldest)
	p.Runtimes = append(p.Runtimes, q)
}

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
	pressed        atomic.Pointer[pressed] // the state of the queues when this process last looked
}

// pressed holds the orgs and runtimes of which too much is queued.
type pressed struct {
	queues map[tasks.OrgRuntime]Queued
	dags   map[registry.DAGOf]bool // those that have to wait for that reason
}

// New returns a Gauge.
func New(c Config) *Gauge {
	g := &Gauge{pool: c.Pool, requests: c.Requests, wake: c.Wakeups, thresholds: c.Thresholds,
		functions: c.Functions, quotas: c.Quotas, stored: c.Stored, log: c.Log}
	g.pressed.Store(&pressed{})
	return g
}

// High reports whether the producers of any org have to wait because too much is queued.
func (g *Gauge) High() bool {
	for _, q := range g.pressed.Load().queues {
		if q.On() {
			return true
		}
	}
	return false
}

// Holds reports whether the producers of a DAG have to wait: too much is queued, or a quota of the org is used up.
func (g *Gauge) Holds(org uuid.UUID, dag string) bool {
	return g.pressed.Load().dags[registry.DAGOf{Org: org, Name: dag}] || g.quotas.Holds(org)
}

// Held is what has to wait: whole orgs, and single DAGs, of which the org and the name are at the same place.
type Held struct {
	Orgs    []uuid.UUID
	DAGOrgs []uuid.UUID
	DAGs    []string
}

// Any reports whether anything has to wait.
func (h Held) Any() bool { return len(h.Orgs)+len(h.DAGs) > 0 }

// Condition returns the SQL condition that a row with org_id and dag_name has to wait. Its arguments, of which the
// first has the given number, are those of Args.
func (Held) Condition(first int) string {
	return fmt.Sprintf(`(org_id = ANY($%d) OR (org_id, dag_name) IN (SELECT * FROM unnest($%d::uuid[], $%d::text[])))`,
		first, first+1, first+2)
}

// Args returns the arguments of Condition.
func (h Held) Args() []any { return []any{h.Orgs, h.DAGOrgs, h.DAGs} }

// Held returns what has to wait.
func (g *Gauge) Held() Held {
	h := Held{Orgs: g.quotas.Held(), DAGOrgs: []uuid.UUID{}, DAGs: []string{}}
	for d := range g.pressed.Load().dags {
		h.DAGOrgs, h.DAGs = append(h.DAGOrgs, d.Org), append(h.DAGs, d.Name)
	}
	return h
}

const retryAfter = 30 * time.Second // when refused work may be sent again

// HasRoom returns an error if there is no room left for work that somebody hands over to an org for a runtime.
func (g *Gauge) HasRoom(org uuid.UUID, runtime string) error {
	if err := g.quotas.HasRoom(org, clock.Now()); err != nil {
		return err
	}
	q := g.pressed.Load().queues[tasks.OrgRuntime{Org: org, Runtime: runtime}]
	if !g.thresholds.refuses(q) {
		return nil
	}
	return rest.RetryAfter(
		fault.New(fault.Unavailable, "too much is queued: %s for runtime %s", plural.Of(q.Queued, "task"),
			runtime).
			WithHint("nothing was stored: send it again when Retry-After has passed"), retryAfter)
}
