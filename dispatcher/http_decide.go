package dispatcher

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
)

// addDecisionRoutes adds the operations by which people decide what the platform cannot: to go on without a task, to
// publish or to throw away what checks withhold.
func (d *Dispatcher) addDecisionRoutes(api *authz.API) {
	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "skip-task", Method: http.MethodPost, Path: "/v1/tasks/{id}:skip", Tags: []string{"tasks"},
		Summary:     "Give a failed or dead task up, with a reason",
		Description: "A build that waits for its partition goes on without it. The same work is not wanted again; new input makes a task of its own.",
	}, d.handleSkip)

	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "accept-partition", Method: http.MethodPost, Path: "/v1/datasets/{name}/accept", Tags: []string{"datasets"},
		Summary:     "Publish a partition although its checks failed",
		Description: "Its newest revision, which is held or was rejected, becomes what readers see, and its consumers run.",
	}, d.handleAccept)

	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "reject-partition", Method: http.MethodPost, Path: "/v1/datasets/{name}/reject", Tags: []string{"datasets"},
		Summary: "Keep a held revision of a partition from ever being seen",
	}, d.handleReject)
}

// SkipRequest says why a task is given up.
type SkipRequest struct {
	Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"Kept in the audit log, and shown with the task"`
}

type skipInput struct {
	ID      uuid.UUID `path:"id" format:"uuid"`
	IfMatch string    `header:"If-Match" maxLength:"200" doc:"ETag of the task as it was looked at; 412 where it has moved on since"`
	Body    SkipRequest
}

func (d *Dispatcher) handleSkip(ctx context.Context, caller authz.Caller, in *skipInput) (*taskOutput, error) {
	t, err := d.do(ctx, caller, in.ID, act{verb: verbSkip, reason: in.Body.Reason}, in.IfMatch)
	return &taskOutput{etag(t.Version), t}, err
}

type decideInput struct {
	registry.NameInput
	Body DecideRequest
}

type decideOutput struct{ Body Decided }

func (d *Dispatcher) handleAccept(ctx context.Context, caller authz.Caller, in *decideInput) (*decideOutput, error) {
	decided, err := d.Accept(ctx, caller, in.Name, in.Body)
	return &decideOutput{decided}, err
}

func (d *Dispatcher) handleReject(ctx context.Context, caller authz.Caller, in *decideInput) (*decideOutput, error) {
	decided, err := d.Reject(ctx, caller, in.Name, in.Body)
	return &decideOutput{decided}, err
}
