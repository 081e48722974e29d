package main

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

// newMetrics gathers everybody's figures. HTTP adds its own when the API is built.
func (a *app) newMetrics() (*prometheus.Registry, error) {
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		pg.Metrics("owner", a.pool), pg.Metrics("requests", a.requests), a.dispatcher.Metrics(),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return registry, nil
}

// serveMetrics is the route on the address of the API. Whoever asks there belongs to an org and sees its figures alone,
// and those of the process.
func (a *app) serveMetrics(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	a.writeMetrics(w, r, caller.OrgID)
	return nil
}

// metricsHandler serves the figures of all orgs to whoever reaches it: it is for an address of its own.
func (a *app) metricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) { a.writeMetrics(w, r, uuid.Nil) })
	return mux
}

func (a *app) writeMetrics(w http.ResponseWriter, r *http.Request, only uuid.UUID) {
	gather := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := a.metrics.Gather()
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		slugs, err := authz.OrgSlugs(ctx, a.pool)
		if err != nil {
			a.log.Warn("orgs are named by their ids in metrics", "error", err)
		}
		return nameOrgs(families, slugs, only), nil
	})
	promhttp.HandlerFor(gather, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// nameOrgs replaces the ids of orgs by their slugs, and leaves out the figures of all orgs but one where it is given.
// It changes copies: what is gathered may be shared.
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

func nameOrg(m *dto.Metric, slugs map[uuid.UUID]string, only uuid.UUID) *dto.Metric {
	i := slices.IndexFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "org" })
	if i < 0 {
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
