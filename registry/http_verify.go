package registry

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
)

func (r *Registry) addVerifyRoute(api *authz.API) {
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "verify-files", Method: http.MethodGet, Path: "/v1/lost-revisions", Tags: []string{"upkeep"},
		Summary: "Compare a page of revisions with the files that the storage has",
		Description: "Lists the revisions with a file that is missing or has another size. " +
			"An empty page is not the last one: continue while there is a next_cursor.",
	}, r.handleVerify)
}

// VerifiedPage is the result for one page of revisions.
type VerifiedPage struct {
	rest.List[LostRevision]
	Checked int `json:"checked" doc:"How many revisions were checked"`
}

type verifyOutput struct{ Body VerifiedPage }

func (r *Registry) handleVerify(ctx context.Context, caller authz.Caller,
	in *struct{ rest.PageInput }) (*verifyOutput, error) {
	var after RevisionPosition
	if _, err := in.After(&after); err != nil {
		return nil, err
	}

	lost, checked, next, err := r.VerifyFiles(ctx, caller, after, in.Limit)
	if err != nil {
		return nil, err
	}

	out := &verifyOutput{VerifiedPage{List: rest.List[LostRevision]{Items: lost}, Checked: checked}}
	if out.Body.Items == nil {
		out.Body.Items = []LostRevision{}
	}

	if next != nil {
		position, err := json.Marshal(next)
		if err != nil {
			return nil, err
		}
		out.Body.NextCursor = base64.RawURLEncoding.EncodeToString(position)
	}
	return out, nil
}
