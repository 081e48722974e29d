package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/registry"
)

// addDecisionRoutes adds the operations by which people decide what the platform cannot: to go on without a task, and
// to publish or reject what checks withhold.
func (a *API) addDecisionRoutes(api *authz.API) {
	authz.Handle(api, authz.To(authz.Operate, authz.TheTasks), huma.Operation{
		OperationID: "skip-task", Method: http.MethodPost, Path: "/v1/tasks/{id}:skip", Tags: []string{"tasks"},
		Summary: "Give up a failed or dead task, with a reason",
		Description: "A build that waits for its partition goes on without it. The same work is not wanted " +
			"again; new input makes a task of its own.",
	}, a.handleSkip)

	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "accept-partition", Method: http.MethodPost,
		Path: "/v1/datasets/{name}/accept", Tags: []string{"datasets"},
		Summary: "Publish a partition although its checks failed",
		Description: "Its newest revision, which is held or was rejected, becomes what readers see, and its " +
			"consumers run.",
	}, a.handleAccept)

	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "reject-partition", Method: http.MethodPost,
		Path: "/v1/datasets/{name}/reject", Tags: []string{"datasets"},
		Summary: "Reject a held revision of a partition, so that readers never see it",
	}, a.handleReject)
}

// SkipRequest gives the reason for giving up a task.
type SkipRequest struct {
	Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"Kept in the audit log, and shown with the task"`
}

type skipInput struct {
	ID      uuid.UUID `path:"id" format:"uuid"`
	IfMatch string    `header:"If-Match" maxLength:"200" doc:"ETag of the task; 412 if it has changed since"`
	Body    SkipRequest
}

func (a *API) handleSkip(ctx context.Context, caller authz.Caller, in *skipInput) (*taskOutput, error) {
	t, err := a.control.Do(ctx, caller, in.ID, control.Act{Verb: control.VerbSkip, Reason: in.Body.Reason}, in.IfMatch)
	return &taskOutput{control.Etag(t.Version), t}, err
}

type decideInput struct {
	registry.NameInput
	Body control.DecideRequest
}

type decideOutput struct{ Body control.Decided }

func (a *API) handleAccept(ctx context.Context, caller authz.Caller, in *decideInput) (*decideOutput, error) {
	decided, err := a.control.Accept(ctx, caller, in.Name, in.Body)
	return &decideOutput{decided}, err
}

func (a *API) handleReject(ctx context.Context, caller authz.Caller, in *decideInput) (*decideOutput, error) {
	decided, err := a.control.Reject(ctx, caller, in.Name, in.Body)
	return &decideOutput{decided}, err
}
