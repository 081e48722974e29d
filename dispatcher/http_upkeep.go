package dispatcher

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
)

// addUpkeepRoutes adds the operations that remove what is not wanted any more.
func (d *Dispatcher) addUpkeepRoutes(api *authz.API) {
	authz.Handle(api, authz.Admin, rest.WithTimeout(huma.Operation{
		OperationID: "collect-garbage", Method: http.MethodPost, Path: "/v1/gc", Tags: []string{"upkeep"},
		Summary: "Remove what nothing can reach any more",
		Description: "Dataset versions that no active, building or pinned DAG version, rollback window, task or query reaches; replaced and " +
			"rejected revisions; what attempts left that came to nothing. It runs every hour by itself.",
	}, longOperation), d.handleGC)

	authz.Handle(api, authz.Admin, rest.WithTimeout(huma.Operation{
		OperationID: "purge-dataset", Method: http.MethodPost, Path: "/v1/datasets/{name}/purge", Tags: []string{"upkeep"},
		Summary: "Delete data of a dataset for good",
		Description: "Rows and files in all dataset versions, with the payloads, results and errors of the tasks that made them. What is purged is " +
			"made again only once its inputs have changed; nobody can roll back to what is gone.",
	}, longOperation), d.handlePurge)

	authz.Handle(api, authz.Admin, rest.WithTimeout(huma.Operation{
		OperationID: "purge-tasks", Method: http.MethodPost, Path: "/v1/tasks:purge", Tags: []string{"upkeep"},
		Summary: "Delete for good what tasks were given, returned and failed with",
		Description: "Payloads, metadata, results, errors, audit trails, idempotency keys and staging. Open tasks are refused: cancel them first. " +
			"What they made stays; purge the datasets for that.",
	}, longOperation), func(ctx context.Context, caller authz.Caller, in *purgeTasksInput) (*purgeTasksOutput, error) {
		purged, err := d.PurgeTasks(ctx, caller, in.Body, time.Now())
		return &purgeTasksOutput{purged}, err
	})

	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "invalidate-dataset", Method: http.MethodPost, Path: "/v1/datasets/{name}/invalidate", Tags: []string{"upkeep"},
		Summary: "Have everything computed again that was made from some partitions",
	}, d.handleInvalidate)

	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "plan-deletion", Method: http.MethodGet, Path: "/v1/dags/{dag}/deletion", Tags: []string{"dags"},
		Summary: "Say what deleting a DAG would take away, and who reads it",
	}, func(ctx context.Context, caller authz.Caller, in *dagInput) (*deletionOutput, error) {
		plan, err := d.PlanDeletion(ctx, caller, in.DAG, time.Now())
		return &deletionOutput{plan}, err
	})

	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "delete-dag", Method: http.MethodDelete, Path: "/v1/dags/{dag}", Tags: []string{"dags"},
		Summary: "Delete a DAG with its datasets",
		Description: "Refused while another DAG reads one of them. Until the window has passed, a rollback to a version brings it back; " +
			"then gc has its data.",
		DefaultStatus: http.StatusOK,
	}, func(ctx context.Context, caller authz.Caller, in *dagInput) (*deletionOutput, error) {
		deleted, err := d.DeleteDAG(ctx, caller, in.DAG, time.Now())
		return &deletionOutput{deleted}, err
	})
}

type deletionOutput struct{ Body registry.Deletion }

// longOperation is how long an operation may take that removes many files.
const longOperation = 15 * time.Minute

// GCRequest asks for a collection.
type GCRequest struct {
	DryRun bool `json:"dry_run,omitempty" doc:"Only say what would be removed"`
}

type gcInput struct{ Body *GCRequest }

type gcOutput struct{ Body Garbage }

func (d *Dispatcher) handleGC(ctx context.Context, caller authz.Caller, in *gcInput) (*gcOutput, error) {
	dry := in.Body != nil && in.Body.DryRun
	found, err := d.CollectGarbage(ctx, caller, dry, time.Now())
	return &gcOutput{found}, err
}

type purgeInput struct {
	registry.NameInput
	Body PurgeRequest
}

type purgeOutput struct{ Body Purged }

func (d *Dispatcher) handlePurge(ctx context.Context, caller authz.Caller, in *purgeInput) (*purgeOutput, error) {
	purged, err := d.Purge(ctx, caller, in.Name, in.Body, time.Now())
	return &purgeOutput{purged}, err
}

type purgeTasksInput struct{ Body PurgeTasksRequest }

type purgeTasksOutput struct{ Body PurgedTasks }

type invalidateInput struct {
	registry.NameInput
	Body InvalidateRequest
}

type invalidateOutput struct{ Body rest.List[Invalidated] }

func (d *Dispatcher) handleInvalidate(ctx context.Context, caller authz.Caller, in *invalidateInput) (*invalidateOutput, error) {
	made, err := d.Invalidate(ctx, caller, in.Name, in.Body, time.Now())
	if err != nil {
		return nil, err
	}
	return &invalidateOutput{rest.List[Invalidated]{Items: made}}, nil
}
