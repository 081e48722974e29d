package query

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
)

// AddRoutes adds the operations to an API.
func (q *Query) AddRoutes(api *authz.API) {
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "preview-dataset", Method: http.MethodGet, Path: "/v1/datasets/{name}/rows", Tags: []string{"datasets"},
		Summary: "Read some rows of a dataset",
		Description: "Numbers that JSON cannot carry exactly, instants and bytes are text. " +
			"An unpublished dataset is named dag/job/output; write the slashes as %2F, or use the dataset's id.",
	}, q.handlePreview)
}

type previewInput struct {
	registry.NameInput
	Partition string `query:"partition" maxLength:"200" doc:"Of this partition only"`
	Limit     int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
	Offset    int    `query:"offset" minimum:"0" maximum:"100000"`
}

type previewOutput struct{ Body Rows }

func (q *Query) handlePreview(ctx context.Context, caller authz.Caller, in *previewInput) (*previewOutput, error) {
	rows, err := q.Preview(ctx, caller, in.Name, in.Partition, in.Limit, in.Offset)
	return &previewOutput{rows}, err
}
