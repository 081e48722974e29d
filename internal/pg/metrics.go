package pg

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// poolMetrics collects metrics of a pool's use.
type poolMetrics struct {
	pool                                    *pgxpool.Pool
	conns, most, acquires, waits, acquiring *prometheus.Desc
}

// Metrics returns a collector of a pool's metrics, labelled with the pool's name.
func Metrics(name string, pool *pgxpool.Pool) prometheus.Collector {
	labelled := prometheus.Labels{"pool": name}
	return &poolMetrics{
		pool: pool,
		conns: prometheus.NewDesc("dagctl_db_connections", "Connections of a pool, by state: idle, used, opening.",
			[]string{"state"}, labelled),
		most: prometheus.NewDesc("dagctl_db_connections_max", "Connections that a pool may have.", nil, labelled),
		acquires: prometheus.NewDesc("dagctl_db_acquires_total", "Times that a connection was taken from a pool.",
			nil, labelled),
		waits: prometheus.NewDesc("dagctl_db_waits_total",
			"Times that none was free and somebody had to wait for one.", nil, labelled),
		acquiring: prometheus.NewDesc("dagctl_db_acquire_seconds_total", "Time spent taking connections from a pool.",
			nil, labelled),
	}
}

// Describe implements prometheus.Collector.
func (m *poolMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.conns, m.most, m.acquires, m.waits, m.acquiring} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *poolMetrics) Collect(out chan<- prometheus.Metric) {
	s := m.pool.Stat()
	gauge := func(d *prometheus.Desc, v int32, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	total := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v)
	}
	gauge(m.conns, s.IdleConns(), "idle")
	gauge(m.conns, s.AcquiredConns(), "used")
	gauge(m.conns, s.ConstructingConns(), "opening")
	gauge(m.most, s.MaxConns())
	total(m.acquires, float64(s.AcquireCount()))
	total(m.waits, float64(s.EmptyAcquireCount()+s.CanceledAcquireCount())) // those who waited in vain, too
	total(m.acquiring, s.AcquireDuration().Seconds())
}
