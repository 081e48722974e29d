package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/registry"
)

const whyDoc = "A tree of reasons, each with a stable code. " +
	"It leaves out what the caller may not see, and then `hidden` is true."

// addWhyRoutes adds the operations that explain tasks, jobs, datasets and partitions.
func (a *API) addWhyRoutes(api *authz.API) {
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "why-task", Method: http.MethodGet, Path: "/v1/tasks/{id}/why", Tags: []string{"tasks"},
		Summary: "Explain why a task makes no progress", Description: whyDoc,
	}, a.handleTaskWhy)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "why-job", Method: http.MethodGet, Path: "/v1/jobs/{dag}/{job}/why", Tags: []string{"dags"},
		Summary: "Explain what a job does, or why it does nothing", Description: whyDoc,
	}, a.handleJobWhy)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "why-version", Method: http.MethodGet, Path: "/v1/dags/{dag}/versions/{version}/why",
		Tags:    []string{"dags"},
		Summary: "Explain what the build of a version waits for", Description: whyDoc,
	}, func(ctx context.Context, caller authz.Caller, in *versionInput) (*whyOutput, error) {
		w, err := a.why.VersionWhy(ctx, caller, in.DAG, in.Version, clock.Now())
		return &whyOutput{w}, err
	})

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "why-dataset", Method: http.MethodGet, Path: "/v1/datasets/{name}/why", Tags: []string{"datasets"},
		Summary: "Explain why a dataset makes no progress", Description: whyDoc,
	}, a.handleDatasetWhy)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "why-not-partition", Method: http.MethodGet,
		Path: "/v1/datasets/{name}/partitions/{key}/why-not", Tags: []string{"datasets"},
		Summary: "Explain why readers do not see a partition, or not a newer revision of it", Description: whyDoc,
	}, a.handlePartitionWhyNot)
}

type whyOutput struct{ Body why.Why }

func (a *API) handleTaskWhy(ctx context.Context, caller authz.Caller, in *taskInput) (*whyOutput, error) {
	w, err := a.why.TaskWhy(ctx, caller, in.ID, clock.Now())
	return &whyOutput{w}, err
}

type whyJobInput struct {
	DAG string `path:"dag" maxLength:"63"`
	Job string `path:"job" maxLength:"63"`
}

func (a *API) handleJobWhy(ctx context.Context, caller authz.Caller, in *whyJobInput) (*whyOutput, error) {
	w, err := a.why.JobWhy(ctx, caller, in.DAG, in.Job, clock.Now())
	return &whyOutput{w}, err
}

func (a *API) handleDatasetWhy(
	ctx context.Context, caller authz.Caller, in *registry.NameInput,
) (*whyOutput, error) {
	w, err := a.why.DatasetWhy(ctx, caller, in.Name, clock.Now())
	return &whyOutput{w}, err
}

type whyNotInput struct {
	registry.NameInput
	Key string `path:"key" maxLength:"200" doc:"Key of the partition"`
}

func (a *API) handlePartitionWhyNot(
	ctx context.Context, caller authz.Caller, in *whyNotInput,
) (*whyOutput, error) {
	w, err := a.why.PartitionWhyNot(ctx, caller, in.Name, in.Key, clock.Now())
	return &whyOutput{w}, err
}
