package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
)

// PauseRequest gives the reason for a pause.
type PauseRequest struct {
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"Shown to everybody who asks why nothing runs"`
}

type pauseInput struct {
	DAG  string `path:"dag" maxLength:"63"`
	Body *PauseRequest
}

type pauseJobInput struct {
	DAG  string `path:"dag" maxLength:"63"`
	Job  string `path:"job" maxLength:"63"`
	Body *PauseRequest
}

type pauseOrgInput struct{ Body *PauseRequest }

type jobPath struct {
	DAG string `path:"dag" maxLength:"63"`
	Job string `path:"job" maxLength:"63"`
}

type pauseOutput struct{ Body tasks.Pause }

type pausesOutput struct{ Body rest.List[tasks.Pause] }

// reason returns the reason, or "" without a body.
func (r *PauseRequest) reason() string {
	if r == nil {
		return ""
	}
	return r.Reason
}

// addPauseRoutes adds the operations that pause and resume work.
func (a *API) addPauseRoutes(api *authz.API) {
	pause := func(ctx context.Context, caller authz.Caller, dag, job string, body *PauseRequest) (*pauseOutput, error) {
		p, err := a.control.Pause(ctx, caller, dag, job, body.reason(), clock.Now())
		return &pauseOutput{p}, err
	}

	authz.Handle(api, authz.To(authz.Operate, authz.TheDAG), huma.Operation{
		OperationID: "pause-dag", Method: http.MethodPost, Path: "/v1/dags/{dag}/pause", Tags: []string{"dags"},
		Summary: "Pause a DAG: let none of its tasks begin",
		Description: "Running tasks finish, queued tasks wait, and sources do not fire. The pause outlasts deploys " +
			"and rollbacks, until it is resumed.",
	}, func(ctx context.Context, caller authz.Caller, in *pauseInput) (*pauseOutput, error) {
		return pause(ctx, caller, in.DAG, "", in.Body)
	})

	authz.Handle(api, authz.To(authz.Operate, authz.TheDAG), huma.Operation{
		OperationID: "resume-dag", Method: http.MethodDelete, Path: "/v1/dags/{dag}/pause", Tags: []string{"dags"},
		Summary: "End the pause of a DAG",
	}, func(ctx context.Context, caller authz.Caller, in *dagInput) (*struct{}, error) {
		return nil, a.control.Resume(ctx, caller, in.DAG, "", clock.Now())
	})

	authz.Handle(api, authz.To(authz.Operate, authz.TheJobs), huma.Operation{
		OperationID: "pause-job", Method: http.MethodPost, Path: "/v1/jobs/{dag}/{job}/pause", Tags: []string{"dags"},
		Summary: "Pause a job: let none of its tasks begin; a source does not fire",
	}, func(ctx context.Context, caller authz.Caller, in *pauseJobInput) (*pauseOutput, error) {
		return pause(ctx, caller, in.DAG, in.Job, in.Body)
	})

	authz.Handle(api, authz.To(authz.Operate, authz.TheJobs), huma.Operation{
		OperationID: "resume-job", Method: http.MethodDelete,
		Path: "/v1/jobs/{dag}/{job}/pause", Tags: []string{"dags"},
		Summary: "End the pause of a job",
	}, func(ctx context.Context, caller authz.Caller, in *jobPath) (*struct{}, error) {
		return nil, a.control.Resume(ctx, caller, in.DAG, in.Job, clock.Now())
	})

	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "pause-org", Method: http.MethodPost, Path: "/v1/org/pause", Tags: []string{"upkeep"},
		Summary: "Pause the org: let none of its tasks begin",
	}, func(ctx context.Context, caller authz.Caller, in *pauseOrgInput) (*pauseOutput, error) {
		return pause(ctx, caller, "", "", in.Body)
	})

	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "resume-org", Method: http.MethodDelete, Path: "/v1/org/pause", Tags: []string{"upkeep"},
		Summary: "End the pause of the org",
	}, func(ctx context.Context, caller authz.Caller, _ *struct{}) (*struct{}, error) {
		return nil, a.control.Resume(ctx, caller, "", "", clock.Now())
	})

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-pauses", Method: http.MethodGet, Path: "/v1/pauses", Tags: []string{"dags"},
		Summary: "List what is paused, by whom and why",
	}, func(ctx context.Context, caller authz.Caller, _ *struct{}) (*pausesOutput, error) {
		found, err := a.control.Pauses(ctx, caller)
		return &pausesOutput{rest.List[tasks.Pause]{Items: found}}, err
	})
}
