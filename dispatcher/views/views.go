// Package views answers what people ask about tasks, DAGs, builds and plans. It changes nothing.
package views

import (
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/metrics"
	"github.com/dagctl/dagctl/dispatcher/pressure"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// Views reads what a dispatcher has stored.
type Views struct {
	pool, requests *pgxpool.Pool
	registry       *registry.Registry
	deployer       *deploy.Deployer
	pressure       *pressure.Gauge
	metrics        *metrics.Metrics
	log            *slog.Logger
	workerID       string
	poolSize       int      // tasks run at once in this process
	functions      []string // runtimes of Lambda functions
	queued         []string // runtimes of queues
}

// New returns the views of a dispatcher.
func New(d *dispatcher.Dispatcher) *Views {
	return &Views{
		pool: d.Pool, requests: d.Requests, registry: d.Registry, deployer: deploy.New(d.Registry),
		pressure: d.Pressure, metrics: d.Metrics, log: d.Log,
		workerID: d.WorkerID, poolSize: d.PoolSize, functions: d.Functions, queued: d.Queued,
	}
}
