package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/pg"
)

// newMetrics returns a registry with the metrics of all slices. The API adds those of HTTP when it is built.
func (a *App) newMetrics() (*prometheus.Registry, error) {
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		pg.Metrics("owner", a.pool), pg.Metrics("requests", a.requests), a.Dispatcher.Views.Metrics(), a.engines,
		a.quotas, a.health, a.turns,
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return registry, nil
}

// serveMetrics serves the metrics of the caller's org and those of the process, on the address of the API.
func (a *App) serveMetrics(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	a.writeMetrics(w, r, caller.OrgID)
	return nil
}

// MetricsHandler serves the metrics of all orgs to every caller. It is for a private address.
func (a *App) MetricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) { a.writeMetrics(w, r, uuid.Nil) })
	return mux
}

// writeMetrics writes the metrics of one org, or of all orgs for uuid.Nil.
func (a *App) writeMetrics(w http.ResponseWriter, r *http.Request, only uuid.UUID) {
	gather := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := a.Metrics.Gather()
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		slugs, err := authz.OrgSlugs(ctx, a.pool)
		if err != nil {
			a.log.Warn("metrics name orgs by their ids", "error", err)
		}
		return nameOrgs(families, slugs, only), nil
	})
	promhttp.HandlerFor(gather, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// nameOrgs replaces the ids of orgs by their slugs and, unless only is uuid.Nil, leaves out the metrics of other orgs.
// It replaces the labels and does not change them, because other gatherings may share them.
func nameOrgs(families []*dto.MetricFamily, slugs map[uuid.UUID]string, only uuid.UUID) []*dto.MetricFamily {
	var shown []*dto.MetricFamily
	for _, family := range families {
		var metrics []*dto.Metric
		for _, m := range family.GetMetric() {
			if m = nameOrg(m, slugs, only); m != nil {
				metrics = append(metrics, m)
			}
		}
		if len(metrics) > 0 {
			family.Metric = metrics
			shown = append(shown, family)
		}
	}

	return shown
}

// nameOrg does so for one metric, and returns nil to leave it out.
func nameOrg(m *dto.Metric, slugs map[uuid.UUID]string, only uuid.UUID) *dto.Metric {
	i := slices.IndexFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "org" })
	if i < 0 || m.GetLabel()[i].GetValue() == "" { // an empty one is as none: it is of the servers
		return m
	}
	id, err := uuid.Parse(m.GetLabel()[i].GetValue())
	if only != uuid.Nil && (err != nil || id != only) {
		return nil
	}

	slug, known := slugs[id]
	if !known {
		return m
	}
	labels := slices.Clone(m.GetLabel())
	labels[i] = &dto.LabelPair{Name: new("org"), Value: &slug}
	m.Label = labels
	return m
}
