package registry

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/rest"
)

// addBundleRoutes adds the operations on users' own code.
func (r *Registry) addBundleRoutes(api *authz.API) {
	authz.Handle(api, authz.To(authz.Plan, authz.InBody), huma.Operation{
		OperationID: "push-udf-bundle", Method: http.MethodPost, Path: "/v1/udf-bundles", Tags: []string{"dags"},
		Summary:      "Upload code, to be named in udf.bundle",
		Description:  "The body is a zip archive. The same content is the same bundle.",
		MaxBodyBytes: dag.MaxUDFBytes + 1<<20,
	}, r.handlePushBundle)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-udf-bundles", Method: http.MethodGet, Path: "/v1/udf-bundles", Tags: []string{"dags"},
		Summary: "List the bundles of code",
	}, r.handleBundles)
}

type bundleInput struct {
	RawBody []byte `contentType:"application/zip"`
}

type bundleOutput struct{ Body Bundle }

func (r *Registry) handlePushBundle(ctx context.Context, caller authz.Caller, in *bundleInput) (*bundleOutput, error) {
	b, err := r.PushBundle(ctx, caller, in.RawBody)
	return &bundleOutput{b}, err
}

type bundlesInput struct{ rest.PageInput }

type bundlesOutput struct{ Body rest.List[Bundle] }

func (r *Registry) handleBundles(ctx context.Context, caller authz.Caller, in *bundlesInput) (*bundlesOutput, error) {
	var after string
	if _, err := in.After(&after); err != nil {
		return nil, err
	}
	bundles, err := r.Bundles(ctx, caller, after, in.Limit+1)
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(bundles, in.Limit, func(b Bundle) any { return b.Bundle })
	return &bundlesOutput{list}, err
}
