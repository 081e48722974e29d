// Package metrics counts what a process does. Figures that are read from the database are in package views.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what this process does. Its label for an org is the org's id: the code that shows the figures knows
// the names, and who may see them. Everything is counted after its COMMIT.
type Metrics struct {
	Attempts    *prometheus.CounterVec // org, outcome
	Retries     *prometheus.CounterVec // org
	Dead        *prometheus.CounterVec // org
	Expiries    *prometheus.CounterVec // org
	Events      *prometheus.CounterVec // org
	batchSize   *prometheus.HistogramVec
	batchTime   *prometheus.HistogramVec
	Postponed   prometheus.Counter
	Sent        *prometheus.CounterVec // runtime
	NotSent     *prometheus.CounterVec // runtime
	Invoked     *prometheus.CounterVec // runtime, outcome
	Cutovers    prometheus.Histogram
	GaugeErrors prometheus.Counter
}

// New returns metrics that count from zero.
func New() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	byStep := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		opts := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
		return prometheus.NewHistogramVec(opts, []string{"step"})
	}

	return &Metrics{
		Attempts: counters("dagctl_attempts_total", "Attempts that ended, by outcome.", "org", "outcome"),
		Retries:  counters("dagctl_retries_total", "Attempts that failed and are followed by another.", "org"),
		Dead:     counters("dagctl_dead_tasks_total", "Tasks that failed for good and wait for a person.", "org"),
		Expiries: counters("dagctl_lease_expiries_total",
			"Leases taken back from workers that were not heard of in time.", "org"),
		Events: counters("dagctl_events_routed_total", "Events whose consumers were decided.", "org"),

		batchSize: byStep("dagctl_batch_size",
			"Tasks, or events, in one transaction of a step: claim, complete, route.",
			[]float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}),
		batchTime: byStep("dagctl_batch_seconds", "Time of one transaction of a step: claim, complete, route.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}),

		Postponed: counter("dagctl_outbox_failures_total", "Tries of outbox rows that failed."),
		Sent: counters("dagctl_messages_sent_total",
			"Messages that queues took: each announces a task to the workers of a runtime.", "runtime"),
		NotSent: counters("dagctl_message_failures_total",
			"Messages that queues did not take, and that are tried again.", "runtime"),
		Invoked: counters("dagctl_invocations_total",
			"Invocations of functions, by outcome: accepted, throttled, failed.", "runtime", "outcome"),
		Cutovers: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "dagctl_cutover_seconds",
			Help:    "Time from the first pointer that a cutover moves to its commit.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
		GaugeErrors: counter("dagctl_gauge_failures_total",
			"Times that the figures of the database could not be read."),
	}
}

// Collectors returns the metrics, to be registered.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.Attempts, m.Retries, m.Dead, m.Expiries, m.Events, m.batchSize, m.batchTime,
		m.Postponed, m.Sent, m.NotSent, m.Invoked, m.Cutovers, m.GaugeErrors,
	}
}

// Batch observes one transaction of a step. It ignores one that found nothing to do: loops look many times a second.
func (m *Metrics) Batch(step string, began time.Time, size int) {
	if size == 0 {
		return
	}
	m.batchSize.WithLabelValues(step).Observe(float64(size))
	m.batchTime.WithLabelValues(step).Observe(time.Since(began).Seconds())
}
