package deploy

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
)

func (dp *Deployer) addRematerializeRoute(api *authz.API) {
	authz.Handle(api, authz.To(authz.Deploy, authz.TheDatasets), huma.Operation{
		OperationID: "rematerialize", Method: http.MethodPost, Path: "/v1/datasets/{name}/rematerialize",
		Tags:    []string{"upkeep"},
		Summary: "Compute a whole dataset anew",
		Description: "The active document is built as a new version, with new dataset versions of this dataset and " +
			"everything downstream of it, beside what serves. Deploying the same file afterwards changes nothing. " +
			registry.NameDoc,
	}, dp.handleRematerialize)
}

// RematerializeRequest says how far a dataset is rebuilt, and what the caller agrees to.
type RematerializeRequest struct {
	Downstream bool `json:"downstream,omitempty" doc:"Also rebuild DAGs that read it; otherwise they follow in place"`
	DryRun     bool `json:"dry_run,omitempty" doc:"Only say what would be rebuilt"`

	Base *int `json:"base_version,omitempty" minimum:"0" maximum:"2147483647" doc:"The active version of the dataset's DAG that it was planned against; refused with 409 if another is active now"`

	Supersede     bool `json:"supersede,omitempty" doc:"Abandon running builds of these DAGs, and keep what they built"`
	CancelTasks   bool `json:"cancel_tasks,omitempty" doc:"As for a deploy"`
	AllowBreaking bool `json:"allow_breaking,omitempty" doc:"Let columns go or change that jobs of other DAGs may read; without it, a rebuild that would is refused with 409 or fails"`
	AllowRemovals bool `json:"allow_removals,omitempty" doc:"Let partitions go that are served and cannot be computed again; without it, a rebuild that would lose some is refused with 409 or fails"`
}

type rematerializeInput struct {
	registry.NameInput
	Body *RematerializeRequest
}

type rematerializeOutput struct{ Body rest.List[Rematerialized] }

func (dp *Deployer) handleRematerialize(ctx context.Context, caller authz.Caller,
	in *rematerializeInput) (*rematerializeOutput, error) {
	var request RematerializeRequest
	if in.Body != nil {
		request = *in.Body
	}
	made, err := dp.Rematerialize(ctx, caller, in.Name, request)
	if err != nil {
		return nil, err
	}
	return &rematerializeOutput{rest.List[Rematerialized]{Items: made}}, nil
}
