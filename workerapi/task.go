package workerapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/worker/protocol"
)

func (a *API) addTaskRoutes(api *authz.API) {
	a.addSecrets(api)
	a.addAssignment(api)
	authz.HandleTask(api, huma.Operation{
		OperationID: "heartbeat-task", Method: http.MethodPost, Path: "/v1/task/heartbeat", Tags: taskTags,
		Summary:     "Extend the lease",
		Description: "409 once the lease has run out, and how the task stands.",
	}, func(ctx context.Context, c authz.Capability, in *body[protocol.Heartbeat]) (*body[protocol.HeartbeatAnswer], error) {
		answer, err := a.dispatcher.Heartbeat(ctx, c, in.Body, time.Now())
		return &body[protocol.HeartbeatAnswer]{answer}, err
	})

	events := rest.WithTimeout(huma.Operation{
		OperationID: "commit-task-events", Method: http.MethodPost, Path: "/v1/task/events", Tags: taskTags, MaxBodyBytes: maxCommit,
		Summary: "Commit outputs, events and operator state while the task goes on",
		Description: "All of it or nothing, in the transaction that checks the fence; an always_on source commits like this. The last call again " +
			"is answered as it was. 409 once the lease has run out. Files are named, and are those that this attempt has uploaded.",
	}, longestCommit)
	authz.HandleTask(api, events, func(ctx context.Context, c authz.Capability, in *body[protocol.Events]) (*body[protocol.EventsAnswer], error) {
		answer, err := a.dispatcher.CommitEvents(ctx, c, in.Body, time.Now())
		return &body[protocol.EventsAnswer]{answer}, err
	})

	complete := rest.WithTimeout(huma.Operation{
		OperationID: "complete-task", Method: http.MethodPost, Path: "/v1/task/complete", Tags: taskTags, MaxBodyBytes: maxCommit,
		Summary: "End the attempt",
		Description: "The answer is the task as it stands then: where what was uploaded cannot be published, the attempt has failed. The same call " +
			"again changes nothing; one that says something else is a conflict. After the lease ran out it is still heard, while no newer attempt has begun.",
	}, longestCommit)
	authz.HandleTask(api, complete, func(ctx context.Context, c authz.Capability, in *body[protocol.Completion]) (*body[protocol.TaskState], error) {
		state, err := a.dispatcher.Complete(ctx, c, in.Body, time.Now())
		return &body[protocol.TaskState]{state}, err
	})
}

// What a commit may take: sealing what was uploaded reads all of it, and column lineage has a row for each column.
const (
	longestCommit = 10 * time.Minute
	maxCommit     = 16 << 20
)
