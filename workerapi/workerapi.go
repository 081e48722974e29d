// Package workerapi serves the worker protocol over HTTP: the calls of workers, with their tokens, and those of running
// attempts, with their capabilities. docs/workers.md describes the conversation, package worker/protocol defines the
// messages, and package dispatcher decides.
//
// Vocabulary: a worker claims; a claimed attempt speaks for itself and shows its fence (task, attempt, lease token)
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
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Config has the slices that the routes call.
type Config struct {
	Dispatcher *dispatcher.Dispatcher
	Registry   *registry.Registry
	Storage    *storage.Storage
	Runner     *operators.Runner // reads inputs; its scratch folder is used
	Queries    *query.Query
}

// API serves the routes.
type API struct {
	dispatcher *dispatcher.Dispatcher
	registry   *registry.Registry
	storage    *storage.Storage
	runner     *operators.Runner
	queries    *query.Query
}

// New returns an API with a complete config.
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

// longestPoll bounds a poll, including its claim.
const longestPoll = 90 * time.Second

type body[T any] struct{ Body T }

func (a *API) addWorkerRoutes(api *authz.API) {
	authz.HandleWorker(api, rest.WithTimeout(huma.Operation{
		OperationID: "poll-tasks", Method: http.MethodPost, Path: "/internal/task-poll", Tags: workerTags,
		Summary: "Claim tasks, waiting for the first",
		Description: "Claims tasks of the runtime with operators and handlers that the worker names and its token " +
			"allows. A worker that names neither gets tasks of any operator.",
	}, longestPoll), a.poll)

	authz.HandleWorker(api, huma.Operation{
		OperationID: "claim-task", Method: http.MethodPost, Path: "/internal/task-claim", Tags: workerTags,
		Summary: "Claim one task",
		Description: "If two workers claim a task at once, one gets it. A task that the token does not allow, " +
			"or that the worker does not run, is NotFound.",
	}, a.claim)

	authz.HandleWorker(api, huma.Operation{
		OperationID: "fetch-task", Method: http.MethodGet, Path: "/internal/task-fetch", Tags: workerTags,
		Summary: "Read the state of a task",
	}, a.fetch)

	authz.HandleWorker(api, huma.Operation{
		OperationID: "heartbeat-worker", Method: http.MethodPost, Path: "/internal/worker-heartbeat", Tags: workerTags,
		Summary: "Report that a worker is alive",
		Description: "A registered worker that is silent for ten seconds is taken for dead, and its tasks go to " +
			"others. A worker that sends `stopping` hands back its tasks at once. A worker that registers with " +
			"the token and the id of an earlier one, and another incarnation, replaces it: the earlier one gets 409.",
	}, a.heartbeatWorker)
}

func (a *API) poll(
	ctx context.Context, w authz.Worker, in *body[protocol.PollRequest],
) (*body[protocol.PollResponse], error) {
	c := dispatcher.Claimant{WorkerID: in.Body.WorkerID, Incarnation: in.Body.Incarnation, Worker: w,
		Runtimes:  []string{in.Body.Runtime},
		Operators: in.Body.Operators, Handlers: in.Body.Handlers}
	answer, err := a.dispatcher.PollTasks(ctx, c, in.Body.Max, time.Duration(in.Body.WaitSeconds)*time.Second)
	return &body[protocol.PollResponse]{answer}, err
}

func (a *API) claim(
	ctx context.Context, w authz.Worker, in *body[protocol.ClaimRequest],
) (*body[protocol.Claim], error) {
	c := dispatcher.Claimant{WorkerID: in.Body.WorkerID, Incarnation: in.Body.Incarnation, Worker: w,
		Operators: in.Body.Operators,
		Handlers:  in.Body.Handlers}
	if in.Body.Runtime != "" {
		c.Runtimes = []string{in.Body.Runtime}
	}
	claim, err := a.dispatcher.ClaimByID(ctx, c, in.Body.TaskID, clock.Now())
	return &body[protocol.Claim]{claim}, err
}

type fetchInput struct {
	TaskID uuid.UUID `query:"task_id" required:"true"`
}

func (a *API) fetch(ctx context.Context, w authz.Worker, in *fetchInput) (*body[protocol.TaskState], error) {
	state, err := a.dispatcher.FetchTask(ctx, w, in.TaskID)
	return &body[protocol.TaskState]{state}, err
}

func (a *API) heartbeatWorker(
	ctx context.Context, w authz.Worker, in *body[protocol.WorkerHeartbeat],
) (*body[protocol.WorkerOrders], error) {
	orders, err := a.dispatcher.WorkerHeartbeat(ctx, w, in.Body, clock.Now())
	return &body[protocol.WorkerOrders]{orders}, err
}
