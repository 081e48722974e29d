package auditlog

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
)

// How long a walk along a chain, and an export to a slow reader, may take.
const (
	verifyTime = 10 * time.Minute
	exportTime = time.Hour
)

// AddRoutes adds the operations on the audit log to an API. The pool is the requests'.
func AddRoutes(api *authz.API, requests *pgxpool.Pool) {
	type listInput struct {
		rest.PageInput
		Filter
	}
	type listOutput struct {
		Body rest.List[authz.AuditEntry]
	}
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "list-audit", Method: http.MethodGet, Path: "/v1/audit", Tags: []string{"access"},
		Summary: "List who did what, latest first",
	}, func(ctx context.Context, caller authz.Caller, in *listInput) (*listOutput, error) {
		list, err := List(ctx, requests, caller, in.Filter, in.PageInput)
		return &listOutput{list}, err
	})

	type verifyInput struct {
		Head string `query:"head" maxLength:"100" doc:"SEQ:HASH of an earlier answer, which must still be in the chain"`
	}
	type verifyOutput struct{ Body ChainCheck }
	authz.Handle(api, authz.Admin, rest.WithTimeout(huma.Operation{
		OperationID: "verify-audit", Method: http.MethodGet, Path: "/v1/audit/verify", Tags: []string{"access"},
		Summary: "Find out whether sealed entries of the audit log were changed, removed, put in or moved",
		Description: "Computes the whole chain of the org again. Whoever can write the database as its owner can " +
			"write a whole chain anew: keep `head` elsewhere, and ask for it with `head` the next time.",
	}, verifyTime), func(ctx context.Context, caller authz.Caller, in *verifyInput) (_ *verifyOutput, err error) {
		var remembered Head
		if in.Head != "" {
			if remembered, err = ParseHead(in.Head); err != nil {
				return nil, err
			}
		}
		found, err := Verify(ctx, requests, caller, remembered)
		return &verifyOutput{found}, err
	})

	addExport(api, requests)
}

func addExport(api *authz.API, requests *pgxpool.Pool) {
	type input struct {
		Filter
		Format string `query:"format" enum:"ndjson,csv" default:"ndjson"`
	}
	type output struct{ Body func(huma.Context) }
	content := map[string]*huma.MediaType{}
	for _, kind := range media {
		content[kind] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
	}

	authz.Handle(api, authz.Admin, rest.WithTimeout(huma.Operation{
		OperationID: "export-audit", Method: http.MethodGet, Path: "/v1/audit/export", Tags: []string{"access"},
		Summary: "Export the sealed entries of the audit log, in the order of the chain",
		Description: "One entry a line, with its number and hash: an export without a filter can be verified " +
			"without a server, with `dagctl audit verify --file`. An answer that ends early is cut off.",
		Responses: map[string]*huma.Response{"200": {Content: content,
			Headers: map[string]*huma.Param{UnsealedHeader: {Schema: &huma.Schema{Type: huma.TypeInteger},
				Description: "How many entries are not in the export because they were not sealed yet"}}}},
	}, exportTime), func(ctx context.Context, caller authz.Caller, in *input) (*output, error) {
		x, err := newExport(ctx, requests, caller, in.Filter)
		if err != nil {
			return nil, err
		}
		return &output{func(to huma.Context) { x.send(to, in.Format) }}, nil
	})
}
