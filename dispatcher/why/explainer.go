// Package why explains how things stand: why a task does not run, a version does not serve, a partition is not there.
// It reads what the others wrote and asks them for their own rules; it decides nothing.
package why

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
)

// Config is what an Explainer needs.
type Config struct {
	Dispatcher *dispatcher.Dispatcher
	Sources    *sources.Sources
	Builds     *builds.Builds
	Views      *views.Views
	Runtimes   backends.RuntimeMap
	// WorkerToken is a shell command that prints a token for workers; empty: tokens have to be created.
	WorkerToken string
}

// Explainer answers why.
type Explainer struct {
	requests    *pgxpool.Pool
	registry    *registry.Registry
	stale       *stale.Examiner
	sources     *sources.Sources
	builds      *builds.Builds
	views       *views.Views
	backends    backends.RuntimeMap
	dispatcher  *dispatcher.Dispatcher // knows the health of the storage
	baseURL     string
	workerToken string
}

// New returns an Explainer.
func New(c Config) *Explainer {
	d := c.Dispatcher
	return &Explainer{requests: d.Requests, registry: d.Registry, stale: d.Stale, sources: c.Sources,
		builds: c.Builds, views: c.Views, dispatcher: d,
		backends: c.Runtimes, baseURL: d.BaseURL, workerToken: c.WorkerToken}
}
