package dispatcher

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
)

// addVersionRoutes adds the operations that move a DAG from one version to another.
func (d *Dispatcher) addVersionRoutes(api *authz.API) {
	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "get-version", Method: http.MethodGet, Path: "/v1/dags/{dag}/versions/{version}", Tags: []string{"dags"},
		Summary: "Get a version with its document and, while it is being built, how far that is",
	}, d.handleVersion)

	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "plan", Method: http.MethodPost, Path: "/v1/dags/{dag}/plan", Tags: []string{"dags"},
		Summary:      "Say what a deploy of a DAG file would do",
		Description:  "Per dataset: create, rebuild, forward-only, reuse, swap-only or remove, and why; how many partitions are to be computed. Nothing is changed.",
		MaxBodyBytes: registry.MaxDeployBody,
	}, d.handlePlan)

	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "activate-version", Method: http.MethodPut, Path: "/v1/dags/{dag}/active", Tags: []string{"dags"},
		Summary:     "Cut over to a version",
		Description: "A version that is ready is caught up and cut over to; one that is still being built, as soon as it is ready. 409 for any other.",
	}, d.handleActivate)

	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "rollback", Method: http.MethodPost, Path: "/v1/dags/{dag}/rollback", Tags: []string{"dags"},
		Summary:     "Cut over to a version that served before",
		Description: "Definition, triggers and data together, in one transaction; nothing is computed before the swap.",
	}, d.handleRollback)

	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "abandon", Method: http.MethodPost, Path: "/v1/dags/{dag}/abandon", Tags: []string{"dags"},
		Summary: "Stop the build of a DAG, and keep what it built",
	}, d.handleAbandon)
}

type versionInput struct {
	DAG     string `path:"dag" maxLength:"63"`
	Version int    `path:"version" minimum:"1" maximum:"2147483647"`
}

type versionOutput struct{ Body VersionDetail }

func (d *Dispatcher) handleVersion(ctx context.Context, caller authz.Caller, in *versionInput) (*versionOutput, error) {
	v, err := d.VersionDetail(ctx, caller, in.DAG, in.Version, time.Now())
	return &versionOutput{v}, err
}

type planInput struct {
	DAG  string `path:"dag" maxLength:"63"`
	Body registry.DeployRequest
}

type planOutput struct{ Body registry.Plan }

func (d *Dispatcher) handlePlan(ctx context.Context, caller authz.Caller, in *planInput) (*planOutput, error) {
	p, err := d.Plan(ctx, caller, in.DAG, in.Body)
	return &planOutput{p}, err
}

// ActivateRequest names the version to cut over to.
type ActivateRequest struct {
	Version int `json:"version" minimum:"1" maximum:"2147483647"`
}

type activateInput struct {
	DAG  string `path:"dag" maxLength:"63"`
	Body ActivateRequest
}

type movedOutput struct{ Body registry.Version }

func (d *Dispatcher) handleActivate(ctx context.Context, caller authz.Caller, in *activateInput) (*movedOutput, error) {
	v, err := d.Promote(ctx, caller, in.DAG, in.Body.Version)
	return &movedOutput{v}, err
}

// RollbackRequest names the version to go back to.
type RollbackRequest struct {
	To          *int `json:"to,omitempty" minimum:"1" maximum:"2147483647" doc:"The one before the active version, where it is left out"`
	CancelTasks bool `json:"cancel_tasks,omitempty" doc:"Cancel the open tasks of manual, timer and webhook jobs that this version does not have; refused with 409 where there are any and this is not said"`
}

type rollbackInput struct {
	DAG  string `path:"dag" maxLength:"63"`
	Body *RollbackRequest
}

func (d *Dispatcher) handleRollback(ctx context.Context, caller authz.Caller, in *rollbackInput) (*movedOutput, error) {
	var req RollbackRequest
	if in.Body != nil {
		req = *in.Body
	}
	v, err := d.Rollback(ctx, caller, in.DAG, req)
	return &movedOutput{v}, err
}

func (d *Dispatcher) handleAbandon(ctx context.Context, caller authz.Caller, in *dagInput) (*movedOutput, error) {
	v, err := d.Abandon(ctx, caller, in.DAG)
	return &movedOutput{v}, err
}
