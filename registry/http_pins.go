package registry

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
)

// addPinRoutes adds the operations that keep a version from gc.
func (r *Registry) addPinRoutes(api *authz.API) {
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-pins", Method: http.MethodGet, Path: "/v1/dags/{dag}/pins", Tags: []string{"upkeep"},
		Summary: "List the pinned versions of a DAG, the newest first",
	}, r.handlePins)

	authz.Handle(api, authz.To(authz.Deploy, authz.TheDAG), huma.Operation{
		OperationID: "pin-version", Method: http.MethodPut, Path: "/v1/dags/{dag}/versions/{version}/pin",
		Tags:        []string{"upkeep"},
		Summary:     "Keep a version's data from gc",
		Description: "Rolling back to it stays instant for as long as the pin lasts.",
	}, r.handlePin)

	authz.Handle(api, authz.To(authz.Deploy, authz.TheDAG), huma.Operation{
		OperationID: "unpin-version", Method: http.MethodDelete, Path: "/v1/dags/{dag}/versions/{version}/pin",
		Tags:    []string{"upkeep"},
		Summary: "Let gc remove a version's data again",
	}, func(ctx context.Context, caller authz.Caller, in *versionInput) (*struct{}, error) {
		return nil, r.Unpin(ctx, caller, in.DAG, in.Version)
	})
}

type versionInput struct {
	DAG     string `path:"dag" maxLength:"63"`
	Version int    `path:"version" minimum:"1" maximum:"2147483647"`
}

type pinsInput struct {
	DAG string `path:"dag" maxLength:"63"`
}

type pinsOutput struct{ Body rest.List[VersionPin] }

func (r *Registry) handlePins(ctx context.Context, caller authz.Caller, in *pinsInput) (*pinsOutput, error) {
	pins, err := r.Pins(ctx, caller, in.DAG)
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(pins, len(pins), func(p VersionPin) any { return p.Number })
	return &pinsOutput{list}, err
}

// PinRequest says why a version is pinned, and for how long.
type PinRequest struct {
	Reason string     `json:"reason,omitempty" maxLength:"500" doc:"For people"`
	Until  *time.Time `json:"until,omitempty" doc:"Absent: forever"`
}

type pinInput struct {
	DAG     string `path:"dag" maxLength:"63"`
	Version int    `path:"version" minimum:"1" maximum:"2147483647"`
	Body    PinRequest
}

type pinOutput struct{ Body VersionPin }

func (r *Registry) handlePin(ctx context.Context, caller authz.Caller, in *pinInput) (*pinOutput, error) {
	pin, err := r.Pin(ctx, caller, in.DAG, in.Version, in.Body.Until, in.Body.Reason)
	return &pinOutput{pin}, err
}
