package workerapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/worker/protocol"
)

func (a *API) addTaskRoutes(api *authz.API) {
	a.addSecrets(api)
	authz.HandleTask(api, huma.Operation{
		OperationID: "heartbeat-task", Method: http.MethodPost, Path: "/v1/task/heartbeat", Tags: taskTags,
		Summary:     "Extend the lease",
		Description: "409 once the lease has run out, and how the task stands.",
	}, func(ctx context.Context, c authz.Capability, in *body[protocol.Heartbeat]) (*body[protocol.HeartbeatAnswer], error) {
		answer, err := a.dispatcher.Heartbeat(ctx, c, in.Body, time.Now())
		return &body[protocol.HeartbeatAnswer]{answer}, err
	})
}
