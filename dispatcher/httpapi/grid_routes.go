package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
)

// addGridRoute adds the operation that tells the states of partitions.
func (a *API) addGridRoute(api *authz.API) {
	type input struct {
		rest.PageInput
		registry.NameInput
	}
	type output struct{ Body rest.List[views.Cell] }
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-partition-states", Method: http.MethodGet, Path: "/v1/datasets/{name}/grid",
		Tags:        []string{"datasets"},
		Summary:     "List the states of partitions, the last key first, with those that are missing",
		Description: registry.NameDoc,
	}, func(ctx context.Context, caller authz.Caller, in *input) (*output, error) {
		var before string
		if _, err := in.After(&before); err != nil {
			return nil, err
		}

		cells, err := a.views.Grid(ctx, caller, in.Name, before, in.Limit+1, clock.Now())
		if err != nil {
			return nil, err
		}
		list, err := rest.NewList(cells, in.Limit, func(c views.Cell) any { return c.Partition })
		return &output{list}, err
	})
}
