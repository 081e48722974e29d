package query

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
)

// AddRoutes adds the operations to an API.
func (q *Query) AddRoutes(api *authz.API) {
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "preview-dataset", Method: http.MethodGet, Path: "/v1/datasets/{name}/rows",
		Tags:    []string{"datasets"},
		Summary: "Read some rows of a dataset",
		Description: "Numbers that JSON cannot carry exactly, instants and bytes are text. " +
			"An unpublished dataset is named dag/job/output; write the slashes as %2F, or use the dataset's id. " +
			"`version` is live (the default), candidate, the number of a DAG version, or a dataset version; all but " +
			"live are for writers.",
	}, q.handlePreview)

	authz.Handle(api, authz.To(authz.Inspect, authz.TheDatasets), huma.Operation{
		OperationID: "diff-dataset", Method: http.MethodGet, Path: "/v1/datasets/{name}/diff",
		Tags:    []string{"datasets"},
		Summary: "Compare two versions of a dataset: columns, rows per partition, and some keys that differ",
	}, q.handleDiff)

	authz.Handle(api, authz.Reader, rest.WithTimeout(huma.Operation{
		OperationID: "query", Method: http.MethodPost, Path: "/v1/query", Tags: []string{"datasets"},
		Summary: "Run one SELECT over the datasets that you may read",
		Description: "The SQL is DuckDB's. Name datasets by their names; an unpublished one is \"dag/job/output\", " +
			"in quotation marks. All are read as of one moment. Values have the same form as in the rows of a " +
			"dataset. `at` is live (the default), candidate, or the number of a version of the DAG in `dag`; or an " +
			"instant such as 2026-01-31T12:00:00Z: datasets as they were served then, as long as their rows are " +
			"kept. All but live are for writers, and the datasets of other DAGs are read live. Without `dag`, " +
			"candidate means the candidates of all DAGs, and an instant is one of all DAGs. With `explain`, the " +
			"answer has the `plan` and no rows. The server's settings bound `limit`. " +
			"A server that is busy with other queries answers 429 with Retry-After. With " + MediaArrow + ", " +
			MediaParquet + " or " + MediaCSV + " in Accept, the rows are a file, whose length is known before " +
			"its first byte, and " + TruncatedHeader + " says whether there are more.",
		Responses: map[string]*huma.Response{"200": {
			Content: map[string]*huma.MediaType{
				"application/json": {Schema: api.Schema(reflect.TypeFor[Answer]())},
				MediaArrow:         {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
				MediaParquet:       {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
				MediaCSV:           {Schema: &huma.Schema{Type: huma.TypeString}}},
			Headers: map[string]*huma.Param{TruncatedHeader: {Schema: &huma.Schema{Type: huma.TypeBoolean},
				Description: "Of files: there are more rows, or more bytes than allowed"}},
		}},
	}, q.RequestTime()), q.handleQuery)
	q.addExport(api)
}

// RequestTime is the time limit of a request with a statement. It is longer than that of the statement, so that there
// is time to report a slow statement and to audit what was read.
func (q *Query) RequestTime() time.Duration { return q.Limits.Timeout + 15*time.Second }

type queryInput struct {
	Accept string `header:"Accept" hidden:"true"`
	Body   struct {
		SQL   string `json:"sql" minLength:"1" maxLength:"100000" doc:"One SELECT"`
		At    string `json:"at,omitempty" maxLength:"64" doc:"live, candidate, a version number or an instant"`
		DAG   string `json:"dag,omitempty" maxLength:"200" doc:"DAG to which at applies; default: all"`
		Limit int    `json:"limit,omitempty" minimum:"1" maximum:"1000000" doc:"The most rows. Default: 1000"`

		Explain bool `json:"explain,omitempty" doc:"Answer with the plan of the statement, which is not run"`
	}
}

// queryOutput writes one of two kinds of answers.
type queryOutput struct{ Body func(huma.Context) }

func (q *Query) handleQuery(ctx context.Context, caller authz.Caller, in *queryInput) (*queryOutput, error) {
	statement := Statement{SQL: in.Body.SQL, At: registry.Moment{Which: in.Body.At, DAG: in.Body.DAG},
		Limit: in.Body.Limit, Explain: in.Body.Explain}
	if format := accepted(in.Accept); format != "" && !in.Body.Explain {
		stream, err := q.Download(ctx, caller, statement, format)
		if err != nil {
			return nil, err
		}
		return &queryOutput{stream.send}, nil
	}

	answer, err := q.Run(ctx, caller, statement)
	if err != nil {
		return nil, err
	}
	return &queryOutput{func(to huma.Context) {
		to.SetHeader("Content-Type", "application/json")
		to.SetStatus(http.StatusOK)
		_ = huma.DefaultJSONFormat.Marshal(to.BodyWriter(), answer) // nobody is there to be told
	}}, nil
}

type previewInput struct {
	registry.NameInput
	Version   string `query:"version" maxLength:"64" doc:"live, candidate, a DAG or dataset version"`
	Partition string `query:"partition" maxLength:"200" doc:"Only of this partition"`
	Limit     int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
	Offset    int    `query:"offset" minimum:"0" maximum:"100000"`
}

type diffInput struct {
	registry.NameInput
	From string `query:"from" maxLength:"64" default:"live" doc:"live, candidate, a DAG or dataset version"`
	To   string `query:"to" maxLength:"64" default:"candidate" doc:"Like from"`
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
