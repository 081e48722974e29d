package engine

import "github.com/prometheus/client_golang/prometheus"

// The reasons why engines end before their answer.
const (
	stopped       = "stopped" // the context of the question ended: cancel, timeout, a lost lease
	processorTime = "processor_time"
	memory        = "memory"
	crashed       = "crashed" // by what it was asked
	lost          = "lost"    // nobody knows why
)

// counted is what a set of engines counts. What it has now, Collect reads.
type counted struct{ starts, deaths *prometheus.CounterVec }

func newCounted() counted {
	c := counted{
		starts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dagctl_engine_starts_total",
			Help: "Engines that this process started."}, []string{"kind"}),
		deaths: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dagctl_engine_deaths_total",
			Help: "Engines that ended before they answered."}, []string{"kind", "reason"}),
	}
	for _, kind := range kinds {
		c.starts.WithLabelValues(string(kind))
		for _, reason := range []string{stopped, processorTime, memory, crashed, lost} {
			c.deaths.WithLabelValues(string(kind), reason)
		}
	}
	return c
}

// The descriptions never change; they are variables because Go has no constants of their type.
var (
	descEngines = prometheus.NewDesc("dagctl_engines", "Engines of this process: working or idle.",
		[]string{"kind", "state"}, nil)
	descWaiting = prometheus.NewDesc("dagctl_engines_waiting", "Pieces of work that wait for an engine.",
		[]string{"kind"}, nil)
)

// Working returns, for each org that engines work for, how many do in the kind where these are most.
func (e *Engines) Working() map[string]int {
	most := map[string]int{}
	for _, s := range e.slots {
		for org, n := range s.Taken() {
			most[org] = max(most[org], n)
		}
	}
	return most
}

// Describe implements prometheus.Collector.
func (e *Engines) Describe(out chan<- *prometheus.Desc) {
	e.counted.starts.Describe(out)
	e.counted.deaths.Describe(out)
	out <- descEngines
	out <- descWaiting
}

// Collect implements prometheus.Collector.
func (e *Engines) Collect(out chan<- prometheus.Metric) {
	e.counted.starts.Collect(out)
	e.counted.deaths.Collect(out)
	idle := map[Kind]int{}
	e.mu.Lock()
	for p, waiting := range e.idle {
		idle[p.Kind] += len(waiting)
	}
	e.mu.Unlock()

	gauge := func(desc *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), labels...)
	}
	for _, kind := range kinds {
		working, waiting := e.slots[kind].Counts()
		gauge(descEngines, working, string(kind), "working")
		gauge(descEngines, idle[kind], string(kind), "idle")
		gauge(descWaiting, waiting, string(kind))
	}
}
