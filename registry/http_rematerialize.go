package registry

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
)

func (r *Registry) addRematerializeRoute(api *authz.API) {
	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "rematerialize", Method: http.MethodPost, Path: "/v1/datasets/{name}/rematerialize", Tags: []string{"upkeep"},
		Summary: "Compute a dataset anew as a whole",
		Description: "The active document is built as a new version, with new dataset versions of this dataset and of what is downstream of it, " +
			"beside what serves. Deploying the same file afterwards changes nothing. " + nameDoc,
	}, r.handleRematerialize)
}

// RematerializeRequest says how far.
type RematerializeRequest struct {
	Downstream bool `json:"downstream,omitempty" doc:"Rebuild the DAGs that read it likewise; otherwise they follow in place"`
	DryRun     bool `json:"dry_run,omitempty" doc:"Only say what would be rebuilt"`
}

type rematerializeInput struct {
	NameInput
	Body *RematerializeRequest
}

type rematerializeOutput struct{ Body rest.List[Rematerialized] }

func (r *Registry) handleRematerialize(ctx context.Context, caller authz.Caller, in *rematerializeInput) (*rematerializeOutput, error) {
	var request RematerializeRequest
	if in.Body != nil {
		request = *in.Body
	}
	made, err := r.Rematerialize(ctx, caller, in.Name, request.Downstream, request.DryRun)
	if err != nil {
		return nil, err
	}
	return &rematerializeOutput{rest.List[Rematerialized]{Items: made}}, nil
}
