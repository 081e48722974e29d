package workerapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/worker/protocol"
)

// addSecrets adds the route that gives secrets to tasks. They are in no claim, and so in no message, payload or log.
func (a *API) addSecrets(api *authz.API) {
	authz.HandleTask(api, huma.Operation{
		OperationID: "open-task-secrets", Method: http.MethodPost, Path: "/v1/task/secrets", Tags: taskTags,
		Summary: "Read the secrets that the task's job names",
		Description: "For trusted runtimes only: 403 for code that users upload, and where no admin has bound a " +
			"secret to the job. 409 once the attempt is over.",
	}, func(ctx context.Context, c authz.Capability, in *body[protocol.SecretsRequest]) (*body[protocol.Secrets],
		error) {
		answer, err := a.dispatcher.Secrets(ctx, c, in.Body.Fence)
		return &body[protocol.Secrets]{answer}, err
	})
}
