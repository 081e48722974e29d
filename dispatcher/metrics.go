package dispatcher

import (
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts what this process does; what stands in the database is in gauges.go. An org is labelled by its id: who
// shows the figures knows the names, and who may see them. Everything is counted after its COMMIT.
type metrics struct {
	attempts    *prometheus.CounterVec // org, outcome
	retries     *prometheus.CounterVec // org
	dead        *prometheus.CounterVec // org
	expiries    *prometheus.CounterVec // org
	events      *prometheus.CounterVec // org
	batchSize   *prometheus.HistogramVec
	batchTime   *prometheus.HistogramVec
	postponed   prometheus.Counter
	sent        *prometheus.CounterVec // runtime
	notSent     *prometheus.CounterVec // runtime
	invoked     *prometheus.CounterVec // runtime, outcome
	cutovers    prometheus.Histogram
	gaugeErrors prometheus.Counter
}

func newMetrics() *metrics {
	byOrg := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"org"}, labels...))
	}
	byStep := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"step"})
	}
	return &metrics{
		attempts: byOrg("dagctl_attempts_total", "Attempts that ended, by outcome.", "outcome"),
		retries:  byOrg("dagctl_retries_total", "Attempts that failed and are followed by another."),
		dead:     byOrg("dagctl_dead_tasks_total", "Tasks that failed for good and wait for a person."),
		expiries: byOrg("dagctl_lease_expiries_total", "Leases taken back from workers that were not heard of in time."),
		events:   byOrg("dagctl_events_routed_total", "Events whose consumers were decided."),
		batchSize: byStep("dagctl_batch_size", "Tasks, or events, in one transaction of a step: claim, complete, route.",
			[]float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}),
		batchTime: byStep("dagctl_batch_seconds", "Time of one transaction of a step: claim, complete, route.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}),
		postponed: prometheus.NewCounter(prometheus.CounterOpts{Name: "dagctl_outbox_failures_total", Help: "Tries of outbox rows that failed."}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dagctl_messages_sent_total",
			Help: "Messages that queues took: each announces a task to the workers of a runtime."}, []string{"runtime"}),
		notSent: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dagctl_message_failures_total",
			Help: "Messages that queues did not take, and that are tried again."}, []string{"runtime"}),
		invoked: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dagctl_invocations_total",
			Help: "Invocations of functions, by outcome: accepted, throttled, failed."}, []string{"runtime", "outcome"}),
		cutovers: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "dagctl_cutover_seconds",
			Help: "Time from the first pointer that a cutover moves to its commit.", Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}}),
		gaugeErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "dagctl_gauge_failures_total",
			Help: "Times that the figures of the database could not be read."}),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.attempts, m.retries, m.dead, m.expiries, m.events, m.batchSize, m.batchTime, m.postponed, m.sent, m.notSent, m.invoked, m.cutovers, m.gaugeErrors}
}

// Metrics is what this dispatcher can tell of itself and of its database, for a registry of metrics.
func (d *Dispatcher) Metrics() prometheus.Collector {
	return &figures{counted: d.metrics.collectors(), gauges: &gauges{d: d}}
}

// figures is everything together.
type figures struct {
	counted []prometheus.Collector
	gauges  *gauges
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
	f.gauges.collect(out, time.Now())
	for _, c := range f.counted {
		c.Collect(out)
	}
}

// ended counts how attempts ended. What ended without having run, or late after its lease, was no attempt or was counted.
func (m *metrics) ended(tasks []ended) {
	for _, t := range tasks {
		if t.taskRow.status != "Running" && t.ending.status != "Completed" {
			continue
		}
		org := t.org.String()
		outcome := t.ending.status
		if t.ending.reason == reasonLeaseExpired || t.ending.reason == reasonTimeout || t.ending.reason == reasonHandedBack {
			outcome = t.ending.reason
		}
		m.attempts.WithLabelValues(org, outcome).Inc()
		if outcome == reasonLeaseExpired {
			m.expiries.WithLabelValues(org).Inc()
		}
		switch {
		case t.ending.status != "Failed" || outcome == reasonHandedBack:
		case t.retryAt != nil:
			m.retries.WithLabelValues(org).Inc()
		default:
			m.dead.WithLabelValues(org).Inc()
		}
	}
}

// batch observes one transaction of a step. One that found nothing to do is not counted: loops look many times a second.
func (m *metrics) batch(step string, began time.Time, size int) {
	if size == 0 {
		return
	}
	m.batchSize.WithLabelValues(step).Observe(float64(size))
	m.batchTime.WithLabelValues(step).Observe(time.Since(began).Seconds())
}

func (m *metrics) routed(events []Event, began time.Time) {
	m.batch("route", began, len(events))
	by := map[uuid.UUID]int{}
	for _, e := range events {
		by[e.OrgID]++
	}
	for org, n := range by {
		m.events.WithLabelValues(org.String()).Add(float64(n))
	}
}
