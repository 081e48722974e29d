// Package backends hands tasks to workers elsewhere: it announces them in SQS queues and invokes Lambda functions.
// Which runtime goes where is in the runtime map of the server's config.
package backends

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/metrics"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/registry"
)

// Backends hands tasks to queues and functions.
type Backends struct {
	dispatcher *dispatcher.Dispatcher
	pool       *pgxpool.Pool
	registry   *registry.Registry
	tasks      *tasks.Store
	metrics    *metrics.Metrics
	wake       *wakeup.Hub
	log        *slog.Logger
	runtimes   RuntimeMap
	clients    backendClients
	functions  []*Function
}

// New returns the backends of a checked runtime map, and registers them with the dispatcher, which wakes them.
func New(d *dispatcher.Dispatcher, runtimes RuntimeMap, credentials aws.Config) (*Backends, error) {
	clients, err := newBackendClients(runtimes, credentials)
	if err != nil {
		return nil, fmt.Errorf("backends: %w", err)
	}
	be := &Backends{
		dispatcher: d, pool: d.Pool, registry: d.Registry, tasks: d.Tasks, metrics: d.Metrics, wake: d.Wakeups,
		log: d.Log, runtimes: runtimes, clients: clients, functions: functionsOf(runtimes),
	}
	for _, f := range be.functions {
		d.Wakeups.Invoke = append(d.Wakeups.Invoke, f.wake)
	}
	d.OnEnded(be.roomInFunctions)
	return be, nil
}

// Functions returns the functions that this process invokes, one for each entry of the runtime map.
func (be *Backends) Functions() []*Function { return be.functions }

// Loops returns the loops that announce tasks and invoke functions.
func (be *Backends) Loops() []dispatcher.Loop {
	var loops []dispatcher.Loop
	if len(be.runtimes.Of(SQS)) > 0 {
		loops = append(loops,
			dispatcher.Loop{Name: "announce", Woken: be.wake.Announce, Body: be.SendTasks},
			dispatcher.Loop{Name: "review messages", Body: be.ReviewMessages},
			dispatcher.Loop{Name: "adopt tasks", Body: dispatcher.AtMostEach(time.Minute, be.AnnounceUnannounced)})
	}

	for _, f := range be.functions {
		loops = append(loops, dispatcher.Loop{Name: "invoke", Woken: f.wake, End: f.Wait,
			Body: func(ctx context.Context, now time.Time) (bool, error) { return be.InvokeTasks(ctx, f, now) }})
	}
	return loops
}
