package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
)

// addBackfillRoutes adds the operations on backfills.
func (a *API) addBackfillRoutes(api *authz.API) {
	authz.Handle(api, authz.To(authz.Operate, authz.TheDAG), rest.WithTimeout(huma.Operation{
		OperationID: "start-backfill", Method: http.MethodPost,
		Path: "/v1/dags/{dag}/backfills", Tags: []string{"upkeep"},
		Summary:       "Compute partitions of a job, a few at a time, after live work and builds",
		DefaultStatus: http.StatusCreated,
	}, longOperation), a.handleStartBackfill)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-backfills", Method: http.MethodGet,
		Path: "/v1/dags/{dag}/backfills", Tags: []string{"upkeep"},
		Summary: "List a DAG's backfills, the newest first",
	}, a.handleBackfills)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-backfill", Method: http.MethodGet,
		Path: "/v1/dags/{dag}/backfills/{id}", Tags: []string{"upkeep"},
		Summary: "Get a backfill with its progress",
	}, a.handleBackfill)

	authz.Handle(api, authz.To(authz.Operate, authz.TheBackfills), huma.Operation{
		OperationID: "cancel-backfill", Method: http.MethodPost,
		Path: "/v1/dags/{dag}/backfills/{id}/cancel", Tags: []string{"upkeep"},
		Summary: "Stop a backfill from creating tasks",
	}, a.handleCancelBackfill)
}

type startBackfillInput struct {
	DAG  string `path:"dag" maxLength:"63"`
	Body control.BackfillRequest
}

type backfillOutput struct{ Body control.Backfill }

func (a *API) handleStartBackfill(
	ctx context.Context, caller authz.Caller, in *startBackfillInput,
) (*backfillOutput, error) {
	b, err := a.control.StartBackfill(ctx, caller, in.DAG, in.Body, clock.Now())
	return &backfillOutput{b}, err
}

type backfillsInput struct {
	rest.PageInput
	DAG string `path:"dag" maxLength:"63"`
}

type backfillsOutput struct{ Body rest.List[control.Backfill] }

func (a *API) handleBackfills(
	ctx context.Context, caller authz.Caller, in *backfillsInput,
) (*backfillsOutput, error) {
	var before uuid.UUID
	if _, err := in.After(&before); err != nil {
		return nil, err
	}
	found, err := a.control.Backfills(ctx, caller, in.DAG, before, in.Limit+1)
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(found, in.Limit, func(b control.Backfill) any { return b.ID })
	return &backfillsOutput{list}, err
}

type backfillInput struct {
	DAG string    `path:"dag" maxLength:"63"`
	ID  uuid.UUID `path:"id" format:"uuid"`
}

func (a *API) handleBackfill(
	ctx context.Context, caller authz.Caller, in *backfillInput,
) (*backfillOutput, error) {
	b, err := a.control.Backfill(ctx, caller, in.DAG, in.ID)
	return &backfillOutput{b}, err
}

func (a *API) handleCancelBackfill(
	ctx context.Context, caller authz.Caller, in *backfillInput,
) (*backfillOutput, error) {
	b, err := a.control.CancelBackfill(ctx, caller, in.DAG, in.ID, clock.Now())
	return &backfillOutput{b}, err
}
