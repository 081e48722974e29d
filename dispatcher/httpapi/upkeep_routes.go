package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/registry/deploy"
)

// addUpkeepRoutes adds the operations that remove data, and invalidate it.
func (a *API) addUpkeepRoutes(api *authz.API) {
	authz.Handle(api, authz.Admin, rest.WithTimeout(huma.Operation{
		OperationID: "collect-garbage", Method: http.MethodPost, Path: "/v1/gc", Tags: []string{"upkeep"},
		Summary: "Remove what nothing can reach any more",
		Description: "Dataset versions that no active, building or pinned DAG version, rollback window, task or " +
			"query reaches; replaced and " +
			"rejected revisions; what attempts left that came to nothing. It runs every hour by itself.",
	}, longOperation), a.handleGC)

	authz.Handle(api, authz.Admin, rest.WithTimeout(huma.Operation{
		OperationID: "purge-dataset", Method: http.MethodPost,
		Path: "/v1/datasets/{name}/purge", Tags: []string{"upkeep"},
		Summary: "Delete data of a dataset for good",
		Description: "Rows and files in all dataset versions, with the payloads, results and errors of the tasks " +
			"that made them. What is purged is made again only once its inputs have changed; a rollback goes " +
			"without what is gone, and there is none to a dataset that was purged as a whole.",
	}, longOperation), a.handlePurge)

	authz.Handle(api, authz.Admin, rest.WithTimeout(huma.Operation{
		OperationID: "purge-tasks", Method: http.MethodPost, Path: "/v1/tasks:purge", Tags: []string{"upkeep"},
		Summary: "Delete the contents of tasks for good",
		Description: "Payloads, metadata, results, errors, audit trails, idempotency keys and staging. Open " +
			"tasks are refused: cancel them first. " +
			"Their outputs stay; to delete these, purge the datasets.",
	}, longOperation), func(ctx context.Context, caller authz.Caller, in *purgeTasksInput) (*purgeTasksOutput, error) {
		purged, err := a.upkeep.PurgeTasks(ctx, caller, in.Body, clock.Now())
		return &purgeTasksOutput{purged}, err
	})

	authz.Handle(api, authz.To(authz.Operate, authz.TheDatasets), huma.Operation{
		OperationID: "invalidate-dataset", Method: http.MethodPost,
		Path: "/v1/datasets/{name}/invalidate", Tags: []string{"upkeep"},
		Summary: "Compute everything again that was made from some partitions",
	}, a.handleInvalidate)

	authz.Handle(api, authz.To(authz.Plan, authz.TheDAG), huma.Operation{
		OperationID: "plan-deletion", Method: http.MethodGet, Path: "/v1/dags/{dag}/deletion", Tags: []string{"dags"},
		Summary: "Show what deleting a DAG would remove, and who reads it",
	}, func(ctx context.Context, caller authz.Caller, in *dagInput) (*deletionOutput, error) {
		plan, err := a.upkeep.PlanDeletion(ctx, caller, in.DAG, clock.Now())
		return &deletionOutput{plan}, err
	})

	authz.Handle(api, authz.To(authz.Deploy, authz.TheDAG), huma.Operation{
		OperationID: "delete-dag", Method: http.MethodDelete, Path: "/v1/dags/{dag}", Tags: []string{"dags"},
		Summary: "Delete a DAG with its datasets",
		Description: "Refused while another DAG reads one of them. Until the window has passed, a rollback to a " +
			"version brings it back; " +
			"then gc has its data.",
		DefaultStatus: http.StatusOK,
	}, func(ctx context.Context, caller authz.Caller, in *deleteDAGInput) (*deletionOutput, error) {
		given := contract.Agreed{AllowMoves: in.AllowMoves}.Consents()
		deleted, err := a.upkeep.DeleteDAG(ctx, caller, in.DAG, given, clock.Now())
		return &deletionOutput{deleted}, err
	})
}

type deleteDAGInput struct {
	DAG        string `path:"dag" maxLength:"63"`
	AllowMoves bool   `query:"allow_moves" doc:"Let names go back to the DAGs that they were taken over from; refused with 409 where there are any and this is not said"`
}

type deletionOutput struct{ Body deploy.Deletion }

// longOperation bounds operations that may remove or list many files.
const longOperation = 15 * time.Minute

// GCRequest is a request to collect garbage.
type GCRequest struct {
	DryRun bool `json:"dry_run,omitempty" doc:"Only say what would be removed"`
}

type gcInput struct{ Body *GCRequest }

type gcOutput struct{ Body upkeep.Garbage }

func (a *API) handleGC(ctx context.Context, caller authz.Caller, in *gcInput) (*gcOutput, error) {
	dry := in.Body != nil && in.Body.DryRun
	found, err := a.upkeep.CollectGarbage(ctx, caller, dry, clock.Now())
	return &gcOutput{found}, err
}

type purgeInput struct {
	registry.NameInput
	Body upkeep.PurgeRequest
}

type purgeOutput struct{ Body upkeep.Purged }

func (a *API) handlePurge(ctx context.Context, caller authz.Caller, in *purgeInput) (*purgeOutput, error) {
	purged, err := a.upkeep.Purge(ctx, caller, in.Name, in.Body, clock.Now())
	return &purgeOutput{purged}, err
}

type purgeTasksInput struct{ Body upkeep.PurgeTasksRequest }

type purgeTasksOutput struct{ Body upkeep.PurgedTasks }

type invalidateInput struct {
	registry.NameInput
	Body dispatcher.InvalidateRequest
}

type invalidateOutput struct {
	Body rest.List[dispatcher.Invalidated]
}

func (a *API) handleInvalidate(
	ctx context.Context, caller authz.Caller, in *invalidateInput,
) (*invalidateOutput, error) {
	made, err := a.dispatcher.Invalidate(ctx, caller, in.Name, in.Body, clock.Now())
	if err != nil {
		return nil, err
	}
	return &invalidateOutput{rest.List[dispatcher.Invalidated]{Items: made}}, nil
}
