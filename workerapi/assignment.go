package workerapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/worker/protocol"
)

// addAssignment adds the route by which an attempt that got a reference asks for its task.
func (a *API) addAssignment(api *authz.API) {
	authz.HandleTask(api, huma.Operation{
		OperationID: "get-task-assignment", Method: http.MethodPost, Path: "/v1/task/assignment", Tags: taskTags,
		Summary: "Read the task as it was claimed",
		Description: "For a claim with `by_reference`: an event of a Lambda function holds at most 256 KiB, and some " +
			"tasks need more.",
	}, func(ctx context.Context, c authz.Capability, in *body[protocol.Fence]) (*body[protocol.Task], error) {
		task, err := a.dispatcher.AssignedTask(ctx, c, in.Body)
		return &body[protocol.Task]{task}, err
	})
}
