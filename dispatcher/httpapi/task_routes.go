package httpapi

import (
	"cmp"
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/attention"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/pressure"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// Limits of one request that enqueues.
const (
	maxEnqueueItems = 1000
	maxEnqueueBody  = 16 << 20
)

type pressureOutput struct{ Body pressure.Pressure }

type readingOutput struct{ Body sources.Reading }

// AddRoutes adds the dispatcher's operations to an API.
func (a *API) AddRoutes(api *authz.API) {
	api.FindBy(authz.TheTasks, a.views.DAGOfTask)
	api.FindBy(authz.TheJobs, a.views.DAGOfJob)
	api.FindBy(authz.TheBackfills, a.control.DAGOfBackfill)
	api.FindBy(authz.TheBulk, a.control.DAGOfBulk)
	a.addUsageRoutes(api)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-dags", Method: http.MethodGet, Path: "/v1/dags", Tags: []string{"dags"},
		Summary: "List the DAGs with their state",
	}, a.handleDAGs)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-dag", Method: http.MethodGet, Path: "/v1/dags/{dag}", Tags: []string{"dags"},
		Summary: "Get a DAG with its state, jobs and sources",
	}, a.handleDAG)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-backpressure", Method: http.MethodGet, Path: "/v1/backpressure", Tags: []string{"dags"},
		Summary: "Get whether sources, backfills and builds wait for queued tasks",
	}, func(ctx context.Context, caller authz.Caller, _ *struct{}) (*pressureOutput, error) {
		p, err := a.pressure.Pressure(ctx, caller)
		return &pressureOutput{p}, err
	})

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-attention", Method: http.MethodGet, Path: "/v1/attention", Tags: []string{"dags"},
		Summary: "List what needs a person now, the most urgent first",
	}, func(ctx context.Context, caller authz.Caller, _ *struct{}) (*attentionOutput, error) {
		found, err := a.desk.Of(ctx, caller)
		return &attentionOutput{found}, err
	})

	authz.Handle(api, authz.To(authz.Operate, authz.TheJobs), huma.Operation{
		OperationID: "enqueue-tasks", Method: http.MethodPost, Path: "/v1/jobs/{dag}/{job}/tasks",
		Tags:    []string{"tasks"},
		Summary: "Create a task of a manual job, or a batch of them",
		Description: "The body is one item, or {\"items\": [...]} for up to 1000 in one transaction. " +
			"A known idempotency key returns the task that it made the first time.",
		MaxBodyBytes: maxEnqueueBody, DefaultStatus: http.StatusCreated,
	}, a.handleEnqueue)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-tasks", Method: http.MethodGet, Path: "/v1/tasks", Tags: []string{"tasks"},
		Summary: "List tasks, the newest first",
	}, a.handleTasks)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-task", Method: http.MethodGet, Path: "/v1/tasks/{id}", Tags: []string{"tasks"},
		Summary: "Get a task with its attempts and its last events",
	}, a.handleTask)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-task-events", Method: http.MethodGet, Path: "/v1/tasks/{id}/events", Tags: []string{"tasks"},
		Summary: "List a task's audit trail, the newest first",
	}, a.handleTaskEvents)

	authz.Handle(api, authz.To(authz.Operate, authz.TheTasks), huma.Operation{
		OperationID: "retry-task", Method: http.MethodPost, Path: "/v1/tasks/{id}:retry", Tags: []string{"tasks"},
		Summary: "Retry a failed or dead task",
	}, a.handleRetry)

	authz.Handle(api, authz.To(authz.Operate, authz.TheTasks), huma.Operation{
		OperationID: "cancel-task", Method: http.MethodPost, Path: "/v1/tasks/{id}:cancel", Tags: []string{"tasks"},
		Summary: "Cancel a task; a running one stops at its next heartbeat",
	}, a.handleCancel)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-sources", Method: http.MethodGet, Path: "/v1/sources", Tags: []string{"dags"},
		Summary: "List the sources of the active versions",
	}, a.handleSources)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-source", Method: http.MethodGet, Path: "/v1/sources/{dag}/{job}", Tags: []string{"dags"},
		Summary: "Get a source with its schedule, its next times and its position",
	}, func(ctx context.Context, caller authz.Caller, in *jobPath) (*sourceOutput, error) {
		s, err := a.views.Source(ctx, caller, in.DAG, in.Job)
		return &sourceOutput{s}, err
	})

	authz.Handle(api, authz.To(authz.Operate, authz.TheJobs), huma.Operation{
		OperationID: "read-source", Method: http.MethodPost, Path: "/v1/sources/{dag}/{job}/read",
		Tags:    []string{"dags"},
		Summary: "Read a source now that is otherwise read at times",
		Description: "It is due at once, and the times of its schedule stay. What is due already is read once. A " +
			"source that is paused is not read, and neither is one of another kind than poll and cron.",
		DefaultStatus: http.StatusAccepted,
	}, func(ctx context.Context, caller authz.Caller, in *jobPath) (*readingOutput, error) {
		r, err := a.sources.ReadNow(ctx, caller, in.DAG, in.Job, clock.Now())
		return &readingOutput{r}, err
	})

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-job", Method: http.MethodGet, Path: "/v1/jobs/{dag}/{job}", Tags: []string{"dags"},
		Summary: "Get a job with its definition, limits and the state of its tasks",
	}, func(ctx context.Context, caller authz.Caller, in *jobPath) (*jobOutput, error) {
		j, err := a.views.Job(ctx, caller, in.DAG, in.Job)
		return &jobOutput{j}, err
	})

	a.addVersionRoutes(api)
	a.addDecisionRoutes(api)
	a.addUpkeepRoutes(api)
	a.addBackfillRoutes(api)
	a.addBulkRoutes(api)
	a.addWorkerRoutes(api)
	a.addPauseRoutes(api)
	a.addNotifyRoutes(api)
	a.addHookRoutes(api)
	a.addWhyRoutes(api)
	a.addCausedRoutes(api)
	a.addGridRoute(api)
	a.addPublishRoutes(api)
}

type attentionOutput struct{ Body attention.Attention }

type dagsInput struct{ rest.PageInput }

type dagsOutput struct{ Body rest.List[views.DAGStatus] }

func (a *API) handleDAGs(ctx context.Context, caller authz.Caller, in *dagsInput) (*dagsOutput, error) {
	var after string
	if _, err := in.After(&after); err != nil {
		return nil, err
	}
	dags, err := a.views.DAGs(ctx, caller, after, in.Limit+1)
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(dags, in.Limit, func(s views.DAGStatus) any { return s.Name })
	return &dagsOutput{list}, err
}

type dagInput struct {
	DAG string `path:"dag" maxLength:"63"`
}

type dagOutput struct{ Body views.DAGDetail }

func (a *API) handleDAG(ctx context.Context, caller authz.Caller, in *dagInput) (*dagOutput, error) {
	detail, err := a.views.DAG(ctx, caller, in.DAG)
	return &dagOutput{detail}, err
}

// EnqueueRequest is one item or many.
type EnqueueRequest struct {
	dispatcher.EnqueueItem
	Items []dispatcher.EnqueueItem `json:"items,omitempty" minItems:"1" maxItems:"1000"`
}

// list returns the items of the request. header is the Idempotency-Key header, which is for a single item.
func (r EnqueueRequest) list(header string) ([]dispatcher.EnqueueItem, error) {
	if r.Items == nil {
		item, err := r.single(header)
		return []dispatcher.EnqueueItem{item}, err
	}

	switch {
	case len(r.Items) > maxEnqueueItems:
		return nil, fault.New(fault.TooLarge, "a batch has at most %d items", maxEnqueueItems)
	case !r.EnqueueItem.Empty():
		return nil, fault.New(fault.Invalid, "the body is one item or has items, not both")
	case header != "":
		return nil, fault.New(fault.Invalid, "the Idempotency-Key header is for a single item").
			WithHint("give each item its own idempotency_key")
	}
	return r.Items, nil
}

// single returns the request as one item, with its key from the body or the header.
func (r EnqueueRequest) single(header string) (dispatcher.EnqueueItem, error) {
	item := r.EnqueueItem
	if header != "" && item.IdempotencyKey != "" && item.IdempotencyKey != header {
		return item, fault.New(fault.Invalid, "the Idempotency-Key header and idempotency_key differ")
	}
	item.IdempotencyKey = cmp.Or(header, item.IdempotencyKey)
	return item, nil
}

type enqueueInput struct {
	DAG   string `path:"dag" maxLength:"63"`
	Job   string `path:"job" maxLength:"63"`
	Key   string `header:"Idempotency-Key" maxLength:"200" doc:"The key of a single item"`
	Trace string `header:"traceparent" maxLength:"200" doc:"W3C trace context that the tasks continue"`
	Body  EnqueueRequest
}

type enqueueOutput struct {
	Status int
	Body   rest.List[dispatcher.Enqueued]
}

func (a *API) handleEnqueue(ctx context.Context, caller authz.Caller, in *enqueueInput) (*enqueueOutput, error) {
	items, err := in.Body.list(in.Key)
	if err != nil {
		return nil, err
	}
	made, err := a.dispatcher.Enqueue(tasks.WithParentSpan(ctx, in.Trace), caller, in.DAG, in.Job, items)
	if err != nil {
		return nil, err
	}

	out := &enqueueOutput{Status: http.StatusOK, Body: rest.List[dispatcher.Enqueued]{Items: made}}
	for _, e := range made {
		if e.Created {
			out.Status = http.StatusCreated
		}
	}
	return out, nil
}

type tasksInput struct {
	rest.PageInput
	views.TaskSelection
}

type tasksOutput struct{ Body rest.List[views.Task] }

func (a *API) handleTasks(ctx context.Context, caller authz.Caller, in *tasksInput) (*tasksOutput, error) {
	f := views.TaskFilter{TaskSelection: in.TaskSelection, Limit: in.Limit + 1}
	if _, err := in.After(&f.Before); err != nil {
		return nil, err
	}
	tasks, err := a.views.Tasks(ctx, caller, f)
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(tasks, in.Limit, func(t views.Task) any { return t.ID })
	return &tasksOutput{list}, err
}

type taskInput struct {
	ID uuid.UUID `path:"id" format:"uuid"`
}

type taskDetailOutput struct {
	ETag string `header:"ETag"`
	Body views.TaskDetail
}

func (a *API) handleTask(ctx context.Context, caller authz.Caller, in *taskInput) (*taskDetailOutput, error) {
	t, err := a.views.Task(ctx, caller, in.ID)
	return &taskDetailOutput{control.Etag(t.Version), t}, err
}

type taskEventsInput struct {
	rest.PageInput
	ID uuid.UUID `path:"id" format:"uuid"`
}

type taskEventsOutput struct{ Body rest.List[views.TaskEvent] }

func (a *API) handleTaskEvents(
	ctx context.Context, caller authz.Caller, in *taskEventsInput,
) (*taskEventsOutput, error) {
	var before uuid.UUID
	if _, err := in.After(&before); err != nil {
		return nil, err
	}
	events, err := a.views.TaskEvents(ctx, caller, in.ID, before, in.Limit+1)
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(events, in.Limit, func(e views.TaskEvent) any { return e.ID })
	return &taskEventsOutput{list}, err
}

type taskActInput struct {
	ID      uuid.UUID `path:"id" format:"uuid"`
	IfMatch string    `header:"If-Match" maxLength:"200" doc:"ETag of the task; 412 if it has changed since"`
}

type taskOutput struct {
	ETag string `header:"ETag"`
	Body views.Task
}

func (a *API) handleRetry(ctx context.Context, caller authz.Caller, in *taskActInput) (*taskOutput, error) {
	t, err := a.control.Do(ctx, caller, in.ID, control.Act{Verb: control.VerbRetry}, in.IfMatch)
	return &taskOutput{control.Etag(t.Version), t}, err
}

func (a *API) handleCancel(ctx context.Context, caller authz.Caller, in *taskActInput) (*taskOutput, error) {
	t, err := a.control.Do(ctx, caller, in.ID, control.Act{Verb: control.VerbCancel}, in.IfMatch)
	return &taskOutput{control.Etag(t.Version), t}, err
}

type (
	sourceOutput struct{ Body views.SourceDetail }
	jobOutput    struct{ Body views.JobDetail }
)

type sourcesOutput struct{ Body rest.List[views.SourceStatus] }

func (a *API) handleSources(ctx context.Context, caller authz.Caller, _ *struct{}) (*sourcesOutput, error) {
	sources, err := a.views.Sources(ctx, caller)
	return &sourcesOutput{rest.List[views.SourceStatus]{Items: sources}}, err
}
