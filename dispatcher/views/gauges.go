package views

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// Collect reads the figures of the database at most every GaugesEvery. It reads the small sets of open work, never
// history; at most gaugeRows rows of each set and gaugeBuilds builds; and no statement may take longer than gaugeTime:
// measuring a backlog must not make it worse.
const (
	GaugesEvery = 5 * time.Second
	gaugeRows   = 100_000
	gaugeTime   = "2s"
	gaugeBuilds = 50
)

// Metrics returns the figures of this process and of its database, for a Prometheus registry.
func (vs *Views) Metrics() prometheus.Collector {
	return &figures{counted: vs.metrics.Collectors(), gauges: &Gauges{Views: vs}}
}

// figures collects what this process counted, and the gauges of the database.
type figures struct {
	counted []prometheus.Collector
	gauges  *Gauges
}

// Describe implements prometheus.Collector.
func (f *figures) Describe(out chan<- *prometheus.Desc) {
	for _, c := range f.counted {
		c.Describe(out)
	}
	f.gauges.describe(out)
}

// Collect implements prometheus.Collector.
func (f *figures) Collect(out chan<- prometheus.Metric) {
	f.gauges.Collect(out, clock.Now())
	for _, c := range f.counted {
		c.Collect(out)
	}
}

// gauge describes a gauge.
func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// The descriptions never change; they are variables because Go has no constants of their type.
var (
	descQueue = gauge("dagctl_queue_tasks",
		"Tasks that may be claimed now; at most 100,000 are counted.", "org", "runtime")
	descQueueAge = gauge("dagctl_queue_oldest_seconds",
		"Time since the oldest task that may be claimed was made.", "org", "runtime")
	descWaiting = gauge("dagctl_waiting_tasks",
		"Open tasks that may not be claimed now, by reason; at most 100,000 are counted.", "org", "reason")
	descRunning = gauge("dagctl_running_tasks", "Leases: tasks that run.", "org")
	descOutbox  = gauge("dagctl_outbox_pending_rows",
		"Outbox rows that are still to be processed.", "org", "kind")
	descOutboxAge = gauge("dagctl_outbox_oldest_seconds",
		"Time since the oldest pending announcement was made.", "org", "kind")
	descOutboxLost = gauge("dagctl_outbox_failed_rows",
		"Announcements given up after 20 tries, within the last day.", "org", "kind")
	descUnsent = gauge("dagctl_messages_pending",
		"Tasks to be announced to the queue of a runtime.", "runtime")
	descUnsentAge = gauge("dagctl_messages_oldest_seconds",
		"Time since the oldest task that is not announced to the queue became ready.", "runtime")
	descUnsentLost = gauge("dagctl_messages_failed",
		"Tasks that a queue did not take 20 times in a row.", "runtime")
	descBuildAge = gauge("dagctl_build_seconds",
		"Time since the build of a version began.", "org", "dag")
	descBuildTasks = gauge("dagctl_build_tasks",
		"Open and dead tasks of a version that is being built, by state.", "org", "dag", "state")
	descSources   = gauge("dagctl_sources_due", "Sources that are due to fire.", "org")
	descSourceLag = gauge("dagctl_source_lag_seconds",
		"Time since the source that is due longest should have fired.", "org")
	descUnserved = gauge("dagctl_queue_unserved_tasks",
		"Those of dagctl_queue_tasks whose runtime no living process serves for the org.", "org", "runtime")
	descWorkers = gauge("dagctl_workers",
		"Processes that run tasks, by state: live, drained, dead; org is that of their token, empty for servers.",
		"org", "state")
	descSlots = gauge("dagctl_worker_slots",
		"Tasks that living processes may run at once; org is that of their token, empty for servers.", "org")
	descPressure = gauge("dagctl_backpressure",
		"1 while sources, backfills and builds wait because too much is queued.")
	descLeader = gauge("dagctl_leader", "1 where this process leads the periodic sweeps.")
	descAdmins = gauge("dagctl_admin_token_seconds",
		"Time until the last admin token of an org ends; 0 or less: nobody can administer it.", "org")
	descGaugeTime = gauge("dagctl_gauge_seconds", "Time that reading the figures of the database took.")

	gaugeDescs = []*prometheus.Desc{
		descQueue, descQueueAge, descWaiting, descRunning, descOutbox, descOutboxAge, descOutboxLost,
		descUnsent, descUnsentAge, descUnsentLost, descBuildAge, descBuildTasks, descSources, descSourceLag,
		descPressure, descUnserved, descWorkers, descSlots, descLeader, descAdmins, descGaugeTime,
	}
)

// Gauges reads figures from the database, and keeps what it read last.
type Gauges struct {
	Views *Views

	mu   sync.Mutex
	at   time.Time
	kept []prometheus.Metric
}

func (g *Gauges) describe(out chan<- *prometheus.Desc) {
	for _, d := range gaugeDescs {
		out <- d
	}
}

// Collect sends the figures, and reads them again if they are old. Figures that cannot be read are absent.
func (g *Gauges) Collect(out chan<- prometheus.Metric, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.kept == nil || now.Sub(g.at) >= GaugesEvery {
		g.read(now)
	}
	for _, m := range g.kept {
		out <- m
	}
}

// read reads all figures in one transaction.
func (g *Gauges) read(now time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), GaugesEvery)
	defer cancel()

	began := time.Now()
	r := &reading{views: g.Views, now: now}
	err := pg.InTx(ctx, g.Views.pool, func(ctx context.Context, tx pgx.Tx) error {
		r.found = []prometheus.Metric{}
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = '`+gaugeTime+`'`); err != nil {
			return err
		}
		for _, part := range []func(context.Context, pgx.Tx) error{
			r.queue, r.waiting, r.running, r.outbox, r.messages, r.sources, r.workers, r.builds,
			r.admins,
		} {
			if err := part(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	})

	g.at = now
	if err != nil {
		g.Views.metrics.GaugeErrors.Inc()
		g.Views.log.Warn("the figures of the database could not be read", "error", err)
		r.found = []prometheus.Metric{}
	}

	r.add(descGaugeTime, time.Since(began).Seconds())
	g.kept = r.found
}

// reading is one look at the database.
type reading struct {
	views *Views
	now   time.Time
	found []prometheus.Metric
}

func (r *reading) add(desc *prometheus.Desc, value float64, labels ...string) {
	r.found = append(r.found, prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...))
}

func (r *reading) since(t time.Time) float64 { return max(r.now.Sub(t).Seconds(), 0) }

// waiting adds what waits, by reason. Dead tasks of jobs that no version runs any more are counted apart: nobody has to
// do anything about those.
func (r *reading) waiting(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		SELECT org_id, reason, CASE WHEN reason = 'dead' THEN origin_job_id END, count(*)
		FROM (SELECT org_id, reason, origin_job_id FROM waiting LIMIT $1) AS looked GROUP BY 1, 2, 3`, gaugeRows)
	if err != nil {
		return fmt.Errorf("measure what waits: %w", err)
	}
	type wait struct {
		Org    uuid.UUID
		Reason string
		Origin *uuid.UUID
		N      int64
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[wait])
	if err != nil {
		return fmt.Errorf("measure what waits: %w", err)
	}

	var dead []uuid.UUID
	for _, w := range found {
		if w.Origin != nil {
			dead = append(dead, *w.Origin)
		}
	}
	inWork, err := registry.OriginsInWork(ctx, tx, dead)
	if err != nil {
		return err
	}
	type label struct {
		org    uuid.UUID
		reason string
	}
	sums := map[label]int64{}
	for _, w := range found {
		if w.Origin != nil && !inWork[*w.Origin] {
			w.Reason = "dead_ended"
		}
		sums[label{w.Org, w.Reason}] += w.N
	}
	for l, n := range sums {
		r.add(descWaiting, float64(n), l.org.String(), l.reason)
	}
	return nil
}

// running counts leases: there are only as many as tasks run.
func (r *reading) running(ctx context.Context, tx pgx.Tx) error {
	return r.counts(ctx, tx, descRunning, `
		SELECT org_id, '', count(*) FROM (SELECT org_id FROM leases LIMIT $1) AS looked GROUP BY org_id`)
}

// counts adds a figure for each row of a statement, which has an org, a second label or "", and a number.
func (r *reading) counts(ctx context.Context, tx pgx.Tx, desc *prometheus.Desc, sql string) error {
	rows, err := tx.Query(ctx, sql, gaugeRows)
	if err != nil {
		return fmt.Errorf("measure: %w", err)
	}

	var (
		org   uuid.UUID
		label string
		n     int64
	)
	_, err = pgx.ForEachRow(rows, []any{&org, &label, &n}, func() error {
		labels := []string{org.String()}
		if label != "" {
			labels = append(labels, label)
		}
		r.add(desc, float64(n), labels...)
		return nil
	})
	return err
}

// lostLately is how long an announcement that was given up is counted. Nothing brings it back, so that an alert on it
// would never end.
const lostLately = 24 * time.Hour

// outbox adds the figures of the outbox by kind: events that are to be routed are urgent, while a notice may have been
// postponed on purpose, or wait for a receiver that is away.
func (r *reading) outbox(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		SELECT org_id, kind, count(*) FILTER (WHERE status = 'Pending'),
		       count(*) FILTER (WHERE status = 'Failed' AND available_at > $3),
		       coalesce(min(created_at) FILTER (WHERE status = 'Pending'), $2)
		FROM (SELECT org_id, kind, status, created_at, available_at FROM outbox
			WHERE status IN ('Pending', 'Failed') LIMIT $1) AS looked
		GROUP BY org_id, kind`, gaugeRows, r.now, r.now.Add(-lostLately))
	if err != nil {
		return fmt.Errorf("measure the outbox: %w", err)
	}

	var (
		org             uuid.UUID
		kind            string
		pending, failed int64
		oldest          time.Time
	)
	_, err = pgx.ForEachRow(rows, []any{&org, &kind, &pending, &failed, &oldest}, func() error {
		r.add(descOutbox, float64(pending), org.String(), kind)
		r.add(descOutboxAge, r.since(oldest), org.String(), kind)
		r.add(descOutboxLost, float64(failed), org.String(), kind)
		return nil
	})
	return err
}

// messages adds the figures of tasks that are still to be announced to the queue of a runtime.
func (r *reading) messages(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		SELECT runtime, count(*) FILTER (WHERE status = 'Pending'), count(*) FILTER (WHERE status = 'Failed'),
		       min(created_at)
		FROM (SELECT payload->>'runtime' AS runtime, status, created_at FROM outbox
			WHERE kind = 'enqueue_task' AND status IN ('Pending', 'Failed') LIMIT $1) AS looked
		GROUP BY runtime`, gaugeRows)
	if err != nil {
		return fmt.Errorf("measure the messages: %w", err)
	}

	var (
		runtime         string
		pending, failed int64
		oldest          time.Time
	)
	_, err = pgx.ForEachRow(rows, []any{&runtime, &pending, &failed, &oldest}, func() error {
		r.add(descUnsent, float64(pending), runtime)
		r.add(descUnsentAge, r.since(oldest), runtime)
		r.add(descUnsentLost, float64(failed), runtime)
		return nil
	})
	return err
}

// sources adds the figures of sources that should have fired. Those that are paused or being replaced stay due, but are
// not to fire. It relies on idx_sources_due.
func (r *reading) sources(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		SELECT org_id, count(*), min(next_fire_at)
		FROM (SELECT org_id, next_fire_at FROM sources
			WHERE next_fire_at <= $2 AND state <> 'Draining' AND `+tasks.NotPaused+`
			ORDER BY next_fire_at LIMIT $1) AS due
		GROUP BY org_id`, gaugeRows, r.now)
	if err != nil {
		return fmt.Errorf("measure the sources: %w", err)
	}

	var (
		org   uuid.UUID
		due   int64
		since time.Time
	)
	_, err = pgx.ForEachRow(rows, []any{&org, &due, &since}, func() error {
		r.add(descSources, float64(due), org.String())
		r.add(descSourceLag, r.since(since), org.String())
		return nil
	})
	return err
}

func (r *reading) admins(ctx context.Context, tx pgx.Tx) error {
	ends, err := authz.AdminsEnd(ctx, tx)
	for org, at := range ends {
		r.add(descAdmins, at.Sub(r.now).Seconds(), org.String())
	}
	return err
}

// builds adds the figures of the versions that are being built: at most gaugeBuilds, the oldest first.
func (r *reading) builds(ctx context.Context, tx pgx.Tx) error {
	builds, err := deploy.Builds(ctx, tx)
	if err != nil {
		return err
	}
	seen := map[string]bool{} // a DAG may have a version that is ready and one being built: the older one counts
	for _, b := range builds[:min(len(builds), gaugeBuilds)] {
		org := b.OrgID.String()
		if seen[org+" "+b.DAG] {
			continue
		}
		seen[org+" "+b.DAG] = true

		jobs, err := r.views.registry.BuildJobs(ctx, tx, b.ID)
		if err != nil {
			return err
		}
		origins := make([]uuid.UUID, len(jobs))
		for i, j := range jobs {
			origins[i] = j.Origin
		}
		counts, err := countOpen(ctx, tx, b.OrgID, origins)
		if err != nil {
			return err
		}

		var sum Counts
		for _, c := range counts {
			sum.Queued += c.Queued
			sum.Running += c.Running
			sum.Retrying += c.Retrying
			sum.Dead += c.Dead
		}

		r.add(descBuildAge, r.since(b.Started), org, b.DAG)
		for state, n := range map[string]int64{
			"queued": sum.Queued, "running": sum.Running, "retrying": sum.Retrying, "dead": sum.Dead,
		} {
			r.add(descBuildTasks, float64(n), org, b.DAG, state)
		}
	}
	return nil
}
