package workerapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/worker/protocol"
)

// What a commit may take: sealing reads all that was uploaded, and column lineage has a row for each column.
const (
	longestCommit = 10 * time.Minute
	maxCommit     = 16 << 20 // bytes

	// What ends or extends many tasks is small for each of them.
	maxMany = 2 << 20 // bytes
)

func (a *API) addTaskRoutes(api *authz.API) {
	a.addSecrets(api)
	a.addAssignment(api)
	authz.HandleTask(api, huma.Operation{
		OperationID: "heartbeat-task", Method: http.MethodPost, Path: "/v1/task/heartbeat", Tags: taskTags,
		Summary:     "Extend the lease",
		Description: "409, with the state of the task, once the lease has expired.",
	}, a.heartbeat)

	authz.HandleTask(api, rest.WithTimeout(huma.Operation{
		OperationID: "commit-task-events", Method: http.MethodPost, Path: "/v1/task/events", Tags: taskTags,
		MaxBodyBytes: maxCommit,
		Summary:      "Commit outputs, events and operator state while the task goes on",
		Description: "Commits all or nothing, in the transaction that checks the fence. Sources that are always_on " +
			"commit like this. Files are named, and must be uploads of this attempt. The last call, when repeated, " +
			"gets the same answer. 409 once the lease has expired.",
	}, longestCommit), a.events)

	authz.HandleTask(api, rest.WithTimeout(huma.Operation{
		OperationID: "complete-task", Method: http.MethodPost, Path: "/v1/task/complete", Tags: taskTags,
		MaxBodyBytes: maxCommit,
		Summary:      "End the attempt",
		Description: "Answers with the state of the task: the attempt has failed if its uploads cannot be published. " +
			"Repeating the call changes nothing; a different completion is a conflict. The server accepts a " +
			"completion after the lease has expired, as long as no newer attempt has begun.",
	}, longestCommit), a.complete)

	authz.HandleTasks(api, rest.WithTimeout(huma.Operation{
		OperationID: "complete-tasks", Method: http.MethodPost, Path: "/v1/tasks/complete", Tags: workerTags,
		MaxBodyBytes: maxMany,
		Summary:      "End many attempts",
		Description: "Each call is that of POST /v1/task/complete, with the capability token of its attempt, and is " +
			"answered as by itself: with its status, and with the state of the task or a problem. No call suffers " +
			"from another that is refused. The answer comes when the last of them is made, so a completion whose " +
			"uploads take long to seal is better made by itself.",
	}, longestCommit), func(
		ctx context.Context, c authz.Capability, in protocol.Completion,
	) (protocol.TaskState, error) {
		return a.dispatcher.Complete(ctx, c, in, clock.Now())
	})

	authz.HandleTasks(api, huma.Operation{
		OperationID: "heartbeat-tasks", Method: http.MethodPost, Path: "/v1/tasks/heartbeat", Tags: workerTags,
		Summary: "Extend many leases",
		Description: "Each call is that of POST /v1/task/heartbeat, with the capability token of its attempt, and is " +
			"answered as by itself: with its status, and with the new lease or a problem. No call suffers from " +
			"another that is refused.",
	}, func(
		ctx context.Context, c authz.Capability, in protocol.Heartbeat,
	) (protocol.HeartbeatAnswer, error) {
		return a.dispatcher.HeartbeatBeside(ctx, c, in, clock.Now())
	})
}

func (a *API) heartbeat(
	ctx context.Context, c authz.Capability, in *body[protocol.Heartbeat],
) (*body[protocol.HeartbeatAnswer], error) {
	answer, err := a.dispatcher.Heartbeat(ctx, c, in.Body, clock.Now())
	return &body[protocol.HeartbeatAnswer]{answer}, err
}

func (a *API) events(
	ctx context.Context, c authz.Capability, in *body[protocol.Events],
) (*body[protocol.EventsAnswer], error) {
	answer, err := a.dispatcher.CommitEvents(ctx, c, in.Body, clock.Now())
	return &body[protocol.EventsAnswer]{answer}, err
}

func (a *API) complete(
	ctx context.Context, c authz.Capability, in *body[protocol.Completion],
) (*body[protocol.TaskState], error) {
	state, err := a.dispatcher.Complete(ctx, c, in.Body, clock.Now())
	return &body[protocol.TaskState]{state}, err
}
