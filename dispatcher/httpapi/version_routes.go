package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/registry/deploy"
)

// addVersionRoutes adds the operations that move a DAG from one version to another.
func (a *API) addVersionRoutes(api *authz.API) {
	authz.Handle(api, authz.To(authz.Inspect, authz.TheDAG), huma.Operation{
		OperationID: "get-version", Method: http.MethodGet,
		Path: "/v1/dags/{dag}/versions/{version}", Tags: []string{"dags"},
		Summary: "Get a version with its document and, while it is being built, the progress of the build",
	}, a.handleVersion)

	authz.Handle(api, authz.To(authz.Plan, authz.TheDAG), huma.Operation{
		OperationID: "plan", Method: http.MethodPost, Path: "/v1/dags/{dag}/plan", Tags: []string{"dags"},
		Summary: "Show what a deploy of a DAG file would do",
		Description: "Per dataset: create, rebuild, forward-only, reuse, swap-only or remove, and why; how many " +
			"partitions are to be computed. Nothing is changed.",
		MaxBodyBytes: deploy.MaxDeployBody,
	}, a.handlePlan)

	authz.Handle(api, authz.To(authz.Deploy, authz.TheDAG), huma.Operation{
		OperationID: "activate-version", Method: http.MethodPut, Path: "/v1/dags/{dag}/active", Tags: []string{"dags"},
		Summary: "Cut over to a version",
		Description: "A version that is ready is caught up and cut over to; one that is still being built, as " +
			"soon as it is ready. 409 for any other.",
	}, a.handleActivate)

	authz.Handle(api, authz.To(authz.Deploy, authz.TheDAG), rest.WithTimeout(huma.Operation{
		OperationID: "rollback", Method: http.MethodPost, Path: "/v1/dags/{dag}/rollback", Tags: []string{"dags"},
		Summary: "Cut over to a version that served before",
		Description: "Definition, triggers and data together, in one transaction; nothing is computed before the " +
			"swap. It waits up to 30 seconds for readers of a view that loses columns; 503 names who still reads it. " +
			"409 if an object that somebody defined over such a view uses one of them.",
	}, rollbackTime), a.handleRollback)

	authz.Handle(api, authz.To(authz.Deploy, authz.TheDAG), huma.Operation{
		OperationID: "abandon", Method: http.MethodPost, Path: "/v1/dags/{dag}/abandon", Tags: []string{"dags"},
		Summary: "Stop the build of a DAG, and keep what it built",
	}, a.handleAbandon)
}

// rollbackTime is how long a rollback may take: it waits for readers of views for half of it.
const rollbackTime = time.Minute

type versionInput struct {
	DAG     string `path:"dag" maxLength:"63"`
	Version int    `path:"version" minimum:"1" maximum:"2147483647"`
}

type versionOutput struct{ Body views.VersionDetail }

func (a *API) handleVersion(ctx context.Context, caller authz.Caller, in *versionInput) (*versionOutput, error) {
	v, err := a.views.VersionDetail(ctx, caller, in.DAG, in.Version, clock.Now())
	return &versionOutput{v}, err
}

type planInput struct {
	DAG  string `path:"dag" maxLength:"63"`
	Body registry.DeployRequest
}

type planOutput struct{ Body registry.Plan }

func (a *API) handlePlan(ctx context.Context, caller authz.Caller, in *planInput) (*planOutput, error) {
	p, err := a.views.Plan(ctx, caller, in.DAG, in.Body)
	return &planOutput{p}, err
}

// ActivateRequest names the version to cut over to.
type ActivateRequest struct {
	Version int `json:"version" minimum:"1" maximum:"2147483647"`
	// Each is the consent of that name to what others would miss.
	AllowRemovals bool `json:"allow_removals,omitempty" doc:"Let partitions go that are served and that the version does not have"`
	AllowMoves    bool `json:"allow_moves,omitempty" doc:"Let published names move to other datasets"`
	AllowBreaking bool `json:"allow_breaking,omitempty" doc:"Let columns go or change that jobs of other DAGs may read"`
}

// consents returns what the person who promotes agrees to, beside what was agreed to at the deploy.
func (r ActivateRequest) consents() []registry.Consent {
	return contract.Agreed{AllowRemovals: r.AllowRemovals, AllowMoves: r.AllowMoves,
		AllowBreaking: r.AllowBreaking}.Consents()
}

type activateInput struct {
	DAG  string `path:"dag" maxLength:"63"`
	Body ActivateRequest
}

type movedOutput struct{ Body registry.Version }

func (a *API) handleActivate(ctx context.Context, caller authz.Caller, in *activateInput) (*movedOutput, error) {
	v, err := a.builds.Promote(ctx, caller, in.DAG, in.Body.Version, in.Body.consents()...)
	return &movedOutput{v}, err
}

type rollbackInput struct {
	DAG  string `path:"dag" maxLength:"63"`
	Body *builds.RollbackRequest
}

func (a *API) handleRollback(ctx context.Context, caller authz.Caller, in *rollbackInput) (*movedOutput, error) {
	var req builds.RollbackRequest
	if in.Body != nil {
		req = *in.Body
	}
	v, err := a.builds.Rollback(ctx, caller, in.DAG, req)
	return &movedOutput{v}, err
}

func (a *API) handleAbandon(ctx context.Context, caller authz.Caller, in *dagInput) (*movedOutput, error) {
	v, err := a.builds.Abandon(ctx, caller, in.DAG)
	return &movedOutput{v}, err
}
