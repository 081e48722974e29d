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

	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "diff-dataset", Method: http.MethodGet, Path: "/v1/datasets/{name}/diff", Tags: []string{"datasets"},
		Summary: "Compare two versions of a dataset: columns, rows per partition, and some keys that differ",
	}, q.handleDiff)
}

type previewInput struct {
	registry.NameInput
	Version   string `query:"version" maxLength:"64" doc:"live (default), candidate, the number of a DAG version, or a dataset version; all but live are for writers"`
	Partition string `query:"partition" maxLength:"200" doc:"Of this partition only"`
	Limit     int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
	Offset    int    `query:"offset" minimum:"0" maximum:"100000"`
}

type diffInput struct {
	registry.NameInput
	From string `query:"from" maxLength:"64" default:"live" doc:"live, candidate, the number of a DAG version, or a dataset version"`
	To   string `query:"to" maxLength:"64" default:"candidate" doc:"As from"`
}

type diffOutput struct{ Body Diff }

func (q *Query) handleDiff(ctx context.Context, caller authz.Caller, in *diffInput) (*diffOutput, error) {
	diff, err := q.Diff(ctx, caller, in.Name, in.From, in.To)
	return &diffOutput{diff}, err
}

type previewOutput struct{ Body Rows }

func (q *Query) handlePreview(ctx context.Context, caller authz.Caller, in *previewInput) (*previewOutput, error) {
	rows, err := q.PreviewVersion(ctx, caller, in.Name, in.Version, in.Partition, in.Limit, in.Offset)
	return &previewOutput{rows}, err
}
