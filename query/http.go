package query

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
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

	authz.Handle(api, authz.Reader, rest.WithTimeout(huma.Operation{
		OperationID: "query", Method: http.MethodPost, Path: "/v1/query", Tags: []string{"datasets"},
		Summary: "Answer one SELECT over the datasets you may read",
		Description: "DuckDB's SQL. Datasets are read by their names, all as they are at one moment; an unpublished one is \"dag/job/output\", in quotation marks. " +
			"Values are written as in the rows of a dataset. A server that is busy with others' queries answers 429 with Retry-After.",
	}, q.RequestTime()), q.handleQuery)
}

// RequestTime is what a request with a statement may take: more than the statement, so that it is told to be slow, and
// what was read is still written down.
func (q *Query) RequestTime() time.Duration { return q.Limits.Timeout + 15*time.Second }

type queryInput struct {
	Body struct {
		SQL   string `json:"sql" minLength:"1" maxLength:"100000" doc:"One SELECT"`
		At    string `json:"at,omitempty" maxLength:"64" doc:"live (default), candidate, or the number of a version of the DAG; all but live are for writers"`
		DAG   string `json:"dag,omitempty" maxLength:"200" doc:"Whose version at means; the datasets of other DAGs are read live. Of candidates, all without it"`
		Limit int    `json:"limit,omitempty" minimum:"1" maximum:"1000000" doc:"The most rows to answer with; 1000 without it, and the server's settings bound it"`
	}
}

type queryOutput struct{ Body Answer }

func (q *Query) handleQuery(ctx context.Context, caller authz.Caller, in *queryInput) (*queryOutput, error) {
	answer, err := q.Run(ctx, caller, Statement{SQL: in.Body.SQL, At: registry.Moment{Which: in.Body.At, DAG: in.Body.DAG}, Limit: in.Body.Limit})
	return &queryOutput{answer}, err
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
