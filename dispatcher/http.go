package dispatcher

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// Limits of one enqueue.
const (
	maxEnqueueItems = 1000
	maxEnqueueBody  = 16 << 20
)

type pressureOutput struct{ Body Pressure }

// AddRoutes adds the dispatcher's operations to an API: what is to be done, what was done, and DAGs as they stand.
func (d *Dispatcher) AddRoutes(api *authz.API) {
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-dags", Method: http.MethodGet, Path: "/v1/dags", Tags: []string{"dags"},
		Summary: "List the DAGs as they stand",
	}, d.handleDAGs)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-dag", Method: http.MethodGet, Path: "/v1/dags/{dag}", Tags: []string{"dags"},
		Summary: "Get a DAG as it stands, with its jobs and sources",
	}, d.handleDAG)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-backpressure", Method: http.MethodGet, Path: "/v1/backpressure", Tags: []string{"dags"},
		Summary: "Say whether sources, backfills and builds wait because too much is queued",
	}, func(ctx context.Context, caller authz.Caller, _ *struct{}) (*pressureOutput, error) {
		p, err := d.Pressure(ctx, caller)
		return &pressureOutput{p}, err
	})

	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "enqueue-tasks", Method: http.MethodPost, Path: "/v1/jobs/{dag}/{job}/tasks", Tags: []string{"tasks"},
		Summary: "Make tasks of a manual job, one or a batch",
		Description: "The body is one item, or {\"items\": [...]} for up to 1000 in one transaction. " +
			"A known idempotency key answers the task that it made the first time.",
		MaxBodyBytes: maxEnqueueBody, DefaultStatus: http.StatusCreated,
	}, d.handleEnqueue)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-tasks", Method: http.MethodGet, Path: "/v1/tasks", Tags: []string{"tasks"},
		Summary: "List tasks, the newest first",
	}, d.handleTasks)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-task", Method: http.MethodGet, Path: "/v1/tasks/{id}", Tags: []string{"tasks"},
		Summary: "Get a task with its attempts and its last events",
	}, d.handleTask)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-task-events", Method: http.MethodGet, Path: "/v1/tasks/{id}/events", Tags: []string{"tasks"},
		Summary: "List a task's audit trail, the newest first",
	}, d.handleTaskEvents)

	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "retry-task", Method: http.MethodPost, Path: "/v1/tasks/{id}:retry", Tags: []string{"tasks"},
		Summary: "Take a failed or dead task up again",
	}, d.handleRetry)

	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "cancel-task", Method: http.MethodPost, Path: "/v1/tasks/{id}:cancel", Tags: []string{"tasks"},
		Summary: "Cancel a task; a running one hears of it at its next heartbeat",
	}, d.handleCancel)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-sources", Method: http.MethodGet, Path: "/v1/sources", Tags: []string{"dags"},
		Summary: "List the sources of the active versions",
	}, d.handleSources)

	d.addVersionRoutes(api)
	d.addDecisionRoutes(api)
	d.addUpkeepRoutes(api)
	d.addBackfillRoutes(api)
	d.addBulkRoutes(api)
	d.addWorkerRoutes(api)
	d.addPauseRoutes(api)
	d.addHookRoutes(api)
	d.addWhyRoutes(api)
	d.addPublishRoutes(api)
}

type dagsInput struct{ rest.PageInput }

type dagsOutput struct{ Body rest.List[DAGStatus] }

func (d *Dispatcher) handleDAGs(ctx context.Context, caller authz.Caller, in *dagsInput) (*dagsOutput, error) {
	var after string
	if _, err := in.After(&after); err != nil {
		return nil, err
	}
	dags, err := d.DAGs(ctx, caller, after, in.Limit+1)
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(dags, in.Limit, func(s DAGStatus) any { return s.Name })
	return &dagsOutput{list}, err
}

type dagInput struct {
	DAG string `path:"dag" maxLength:"63"`
}

type dagOutput struct{ Body DAGDetail }

func (d *Dispatcher) handleDAG(ctx context.Context, caller authz.Caller, in *dagInput) (*dagOutput, error) {
	detail, err := d.DAG(ctx, caller, in.DAG)
	return &dagOutput{detail}, err
}

// EnqueueRequest is one item, or many.
type EnqueueRequest struct {
	EnqueueItem
	Items []EnqueueItem `json:"items,omitempty" minItems:"1" maxItems:"1000"`
}

// list is the items of the request. The header is the key of a single item.
func (r EnqueueRequest) list(key string) ([]EnqueueItem, error) {
	item := r.EnqueueItem
	single := item.IdempotencyKey != "" || item.Payload != nil || item.Partition != "" || item.Priority != nil ||
		item.RunAt != nil || item.MaxAttempts != 0 || item.Metadata != nil
	switch {
	case len(r.Items) > maxEnqueueItems:
		return nil, fault.New(fault.TooLarge, "a batch has at most %d items", maxEnqueueItems)
	case r.Items == nil && key == "":
		return []EnqueueItem{item}, nil
	case r.Items == nil && item.IdempotencyKey != "" && item.IdempotencyKey != key:
		return nil, fault.New(fault.Invalid, "the Idempotency-Key header and idempotency_key differ")
	case r.Items == nil:
		item.IdempotencyKey = key
		return []EnqueueItem{item}, nil
	case single:
		return nil, fault.New(fault.Invalid, "the body is one item or has items, not both")
	case key != "":
		return nil, fault.New(fault.Invalid, "the Idempotency-Key header is for a single item").WithHint("give each item its own idempotency_key")
	}
	return r.Items, nil
}

type enqueueInput struct {
	DAG   string `path:"dag" maxLength:"63"`
	Job   string `path:"job" maxLength:"63"`
	Key   string `header:"Idempotency-Key" maxLength:"200" doc:"The key of a single item"`
	Trace string `header:"traceparent" maxLength:"200" doc:"W3C trace context that the tasks are to go on in"`
	Body  EnqueueRequest
}

type enqueueOutput struct {
	Status int
	Body   rest.List[Enqueued]
}

func (d *Dispatcher) handleEnqueue(ctx context.Context, caller authz.Caller, in *enqueueInput) (*enqueueOutput, error) {
	items, err := in.Body.list(in.Key)
	if err != nil {
		return nil, err
	}
	made, err := d.Enqueue(under(ctx, in.Trace), caller, in.DAG, in.Job, items)
	if err != nil {
		return nil, err
	}
	out := &enqueueOutput{Status: http.StatusOK, Body: rest.List[Enqueued]{Items: made}}
	for _, e := range made {
		if e.Created {
			out.Status = http.StatusCreated
		}
	}
	return out, nil
}

type tasksInput struct {
	rest.PageInput
	TaskSelection
}

type tasksOutput struct{ Body rest.List[Task] }

func (d *Dispatcher) handleTasks(ctx context.Context, caller authz.Caller, in *tasksInput) (*tasksOutput, error) {
	f := TaskFilter{TaskSelection: in.TaskSelection, Limit: in.Limit + 1}
	if _, err := in.After(&f.Before); err != nil {
		return nil, err
	}
	tasks, err := d.Tasks(ctx, caller, f)
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(tasks, in.Limit, func(t Task) any { return t.ID })
	return &tasksOutput{list}, err
}

type taskInput struct {
	ID uuid.UUID `path:"id" format:"uuid"`
}

type taskDetailOutput struct {
	ETag string `header:"ETag"`
	Body TaskDetail
}

func (d *Dispatcher) handleTask(ctx context.Context, caller authz.Caller, in *taskInput) (*taskDetailOutput, error) {
	t, err := d.Task(ctx, caller, in.ID)
	return &taskDetailOutput{etag(t.Version), t}, err
}

type taskEventsInput struct {
	rest.PageInput
	ID uuid.UUID `path:"id" format:"uuid"`
}

type taskEventsOutput struct{ Body rest.List[TaskEvent] }

func (d *Dispatcher) handleTaskEvents(ctx context.Context, caller authz.Caller, in *taskEventsInput) (*taskEventsOutput, error) {
	var before uuid.UUID
	if _, err := in.After(&before); err != nil {
		return nil, err
	}
	events, err := d.TaskEvents(ctx, caller, in.ID, before, in.Limit+1)
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(events, in.Limit, func(e TaskEvent) any { return e.ID })
	return &taskEventsOutput{list}, err
}

type taskActInput struct {
	ID      uuid.UUID `path:"id" format:"uuid"`
	IfMatch string    `header:"If-Match" maxLength:"200" doc:"ETag of the task as it was looked at; 412 where it has moved on since"`
}

type taskOutput struct {
	ETag string `header:"ETag"`
	Body Task
}

func (d *Dispatcher) handleRetry(ctx context.Context, caller authz.Caller, in *taskActInput) (*taskOutput, error) {
	t, err := d.do(ctx, caller, in.ID, act{verb: verbRetry}, in.IfMatch)
	return &taskOutput{etag(t.Version), t}, err
}

func (d *Dispatcher) handleCancel(ctx context.Context, caller authz.Caller, in *taskActInput) (*taskOutput, error) {
	t, err := d.do(ctx, caller, in.ID, act{verb: verbCancel}, in.IfMatch)
	return &taskOutput{etag(t.Version), t}, err
}

type sourcesOutput struct{ Body rest.List[SourceStatus] }

func (d *Dispatcher) handleSources(ctx context.Context, caller authz.Caller, _ *struct{}) (*sourcesOutput, error) {
	sources, err := d.Sources(ctx, caller)
	return &sourcesOutput{rest.List[SourceStatus]{Items: sources}}, err
}
