// Package workerapi is the HTTP side of the worker protocol: what workers ask with their tokens, and what running attempts
// say with their capabilities. docs/workers.md describes the conversation, package worker/protocol has its words, and
// package dispatcher decides.
//
// Vocabulary: a worker claims; an attempt, once claimed, speaks for itself and shows its fence (task, attempt, lease token)
// with each call. It owns no tables.
package workerapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Config is what the routes need.
type Config struct {
	Dispatcher *dispatcher.Dispatcher
	Registry   *registry.Registry
	Storage    *storage.Storage
	Runner     *operators.Runner // reads inputs; its scratch folder is used
	Queries    *query.Query
}

// API has the routes.
type API struct {
	dispatcher *dispatcher.Dispatcher
	registry   *registry.Registry
	storage    *storage.Storage
	runner     *operators.Runner
	queries    *query.Query
}

// New checks the config.
func New(c Config) (*API, error) {
	if c.Dispatcher == nil || c.Registry == nil || c.Storage == nil || c.Runner == nil || c.Queries == nil {
		return nil, errors.New("workerapi: a dispatcher, a registry, storage, a runner and queries are needed")
	}
	return &API{c.Dispatcher, c.Registry, c.Storage, c.Runner, c.Queries}, nil
}

// The tags of the operations in the OpenAPI document.
var (
	workerTags = []string{"worker protocol"}
	taskTags   = []string{"task protocol"}
)

// AddRoutes adds the routes of workers and of running attempts.
func (a *API) AddRoutes(api *authz.API) {
	a.addWorkerRoutes(api)
	a.addTaskRoutes(api)
	a.addDataRoutes(api)
}

// longestPoll bounds a poll, with what its claim takes.
const longestPoll = 90 * time.Second

type body[T any] struct{ Body T }

func (a *API) addWorkerRoutes(api *authz.API) {
	authz.HandleWorker(api, rest.WithTimeout(huma.Operation{
		OperationID: "poll-tasks", Method: http.MethodPost, Path: "/internal/task-poll", Tags: workerTags,
		Summary:     "Claim tasks, and wait for the first",
		Description: "Of the runtime, and of what the worker says it runs, as far as its token allows. With neither operators nor handlers that is everything.",
	}, longestPoll), func(ctx context.Context, w authz.Worker, in *body[protocol.PollRequest]) (*body[protocol.PollResponse], error) {
		c := dispatcher.Claimant{WorkerID: in.Body.WorkerID, Worker: w, Runtimes: []string{in.Body.Runtime},
			Operators: in.Body.Operators, Handlers: in.Body.Handlers}
		answer, err := a.dispatcher.PollTasks(ctx, c, in.Body.Max, time.Duration(in.Body.WaitSeconds)*time.Second)
		return &body[protocol.PollResponse]{answer}, err
	})

	authz.HandleWorker(api, huma.Operation{
		OperationID: "claim-task", Method: http.MethodPost, Path: "/internal/task-claim", Tags: workerTags,
		Summary:     "Claim one task",
		Description: "Two that claim at once get it once. A task that the token does not allow, or that the worker does not run, is NotFound.",
	}, func(ctx context.Context, w authz.Worker, in *body[protocol.ClaimRequest]) (*body[protocol.Claim], error) {
		c := dispatcher.Claimant{WorkerID: in.Body.WorkerID, Worker: w, Operators: in.Body.Operators, Handlers: in.Body.Handlers}
		if in.Body.Runtime != "" {
			c.Runtimes = []string{in.Body.Runtime}
		}
		claim, err := a.dispatcher.ClaimByID(ctx, c, in.Body.TaskID, time.Now())
		return &body[protocol.Claim]{claim}, err
	})

	type fetchInput struct {
		TaskID uuid.UUID `query:"task_id" required:"true"`
	}
	authz.HandleWorker(api, huma.Operation{
		OperationID: "fetch-task", Method: http.MethodGet, Path: "/internal/task-fetch", Tags: workerTags,
		Summary: "Read a task as it stands",
	}, func(ctx context.Context, w authz.Worker, in *fetchInput) (*body[protocol.TaskState], error) {
		state, err := a.dispatcher.FetchTask(ctx, w, in.TaskID)
		return &body[protocol.TaskState]{state}, err
	})

	authz.HandleWorker(api, huma.Operation{
		OperationID: "heartbeat-worker", Method: http.MethodPost, Path: "/internal/worker-heartbeat", Tags: workerTags,
		Summary: "Say that a worker lives",
		Description: "A registered worker that is silent for ten seconds is taken for dead, and what it runs goes to others. " +
			"One that says `stopping` hands back what it runs at once.",
	}, func(ctx context.Context, w authz.Worker, in *body[protocol.WorkerHeartbeat]) (*body[protocol.WorkerOrders], error) {
		orders, err := a.dispatcher.WorkerHeartbeat(ctx, w, in.Body, time.Now())
		return &body[protocol.WorkerOrders]{orders}, err
	})
}
