package dispatcher

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
)

const whyDoc = "A tree of reasons, each with a stable code. What the caller may not see is left out of it, and `hidden` says so."

func (d *Dispatcher) addWhyRoutes(api *authz.API) {
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "why-task", Method: http.MethodGet, Path: "/v1/tasks/{id}/why", Tags: []string{"tasks"},
		Summary: "Say why a task is where it is", Description: whyDoc,
	}, d.handleTaskWhy)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "why-job", Method: http.MethodGet, Path: "/v1/jobs/{dag}/{job}/why", Tags: []string{"dags"},
		Summary: "Say what a job does, or why it does nothing", Description: whyDoc,
	}, d.handleJobWhy)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "why-dataset", Method: http.MethodGet, Path: "/v1/datasets/{name}/why", Tags: []string{"datasets"},
		Summary: "Say why a dataset is not further than it is", Description: whyDoc,
	}, d.handleDatasetWhy)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "why-not-partition", Method: http.MethodGet, Path: "/v1/datasets/{name}/partitions/{key}/why-not", Tags: []string{"datasets"},
		Summary: "Say why readers do not see a partition, or not a newer one", Description: whyDoc,
	}, d.handlePartitionWhyNot)
}

type whyOutput struct{ Body Why }

func (d *Dispatcher) handleTaskWhy(ctx context.Context, caller authz.Caller, in *taskInput) (*whyOutput, error) {
	w, err := d.TaskWhy(ctx, caller, in.ID, time.Now())
	return &whyOutput{w}, err
}

type whyJobInput struct {
	DAG string `path:"dag" maxLength:"63"`
	Job string `path:"job" maxLength:"63"`
}

func (d *Dispatcher) handleJobWhy(ctx context.Context, caller authz.Caller, in *whyJobInput) (*whyOutput, error) {
	w, err := d.JobWhy(ctx, caller, in.DAG, in.Job, time.Now())
	return &whyOutput{w}, err
}

func (d *Dispatcher) handleDatasetWhy(ctx context.Context, caller authz.Caller, in *registry.NameInput) (*whyOutput, error) {
	w, err := d.DatasetWhy(ctx, caller, in.Name, time.Now())
	return &whyOutput{w}, err
}

type whyNotInput struct {
	registry.NameInput
	Key string `path:"key" maxLength:"200" doc:"Key of the partition"`
}

func (d *Dispatcher) handlePartitionWhyNot(ctx context.Context, caller authz.Caller, in *whyNotInput) (*whyOutput, error) {
	w, err := d.PartitionWhyNot(ctx, caller, in.Name, in.Key, time.Now())
	return &whyOutput{w}, err
}
