package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
)

const causedDoc = "Its own tasks, the tasks that consumers made of their events, and so on, over all DAGs, until " +
	"nothing of it is open. What the caller may not look into is left out, with what only that set off."

// addCausedRoutes adds the operations that follow what something set off.
func (a *API) addCausedRoutes(api *authz.API) {
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-caused-by-task", Method: http.MethodGet, Path: "/v1/tasks/{id}/caused",
		Tags:    []string{"tasks"},
		Summary: "Get a task and all that it set off", Description: causedDoc,
	}, func(ctx context.Context, caller authz.Caller, in *taskInput) (*causedOutput, error) {
		c, err := a.views.CausedByTask(ctx, caller, in.ID)
		return &causedOutput{c}, err
	})

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-caused-by-backfill", Method: http.MethodGet, Path: "/v1/dags/{dag}/backfills/{id}/caused",
		Tags:    []string{"upkeep"},
		Summary: "Get the tasks of a backfill and all that they set off", Description: causedDoc,
	}, func(ctx context.Context, caller authz.Caller, in *backfillInput) (*causedOutput, error) {
		b, err := a.control.Backfill(ctx, caller, in.DAG, in.ID)
		if err != nil {
			return nil, err
		}
		c, err := a.views.CausedByBackfill(ctx, caller, b.ID)
		return &causedOutput{c}, err
	})

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-caused-by-source", Method: http.MethodGet, Path: "/v1/sources/{dag}/{job}/caused",
		Tags:    []string{"dags"},
		Summary: "Get the tasks that a source made and all that they set off", Description: causedDoc,
	}, func(ctx context.Context, caller authz.Caller, in *causedBySourceInput) (*causedOutput, error) {
		if !in.Until.IsZero() && in.Until.Before(in.Since) {
			return nil, fault.New(fault.Invalid, "until is before since").WithHint("give the earlier time as since")
		}
		c, err := a.views.CausedBySource(ctx, caller, in.DAG, in.Job, in.Since, in.Until, clock.Now())
		return &causedOutput{c}, err
	})
}

type causedOutput struct{ Body views.Caused }

type causedBySourceInput struct {
	DAG   string    `path:"dag" maxLength:"63"`
	Job   string    `path:"job" maxLength:"63"`
	Since time.Time `query:"since" required:"true" doc:"When the source was due: due_at of the answer to its reading"`
	Until time.Time `query:"until" doc:"Leave out tasks that it made later than this"`
}
