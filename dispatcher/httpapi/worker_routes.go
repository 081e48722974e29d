package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
)

// addWorkerRoutes adds the operations on workers. Workers belong to the platform and not to an org, so only admins may
// use them.
func (a *API) addWorkerRoutes(api *authz.API) {
	type listInput struct{ rest.PageInput }
	type listOutput struct{ Body rest.List[dispatcher.Worker] }
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "list-workers", Method: http.MethodGet, Path: "/v1/workers", Tags: []string{"workers"},
		Summary: "List the processes that run tasks",
	}, func(ctx context.Context, caller authz.Caller, in *listInput) (*listOutput, error) {
		var after [2]string // id and token
		if _, err := in.After(&after); err != nil {
			return nil, err
		}
		from := dispatcher.WorkerKey{ID: after[0], Token: after[1]}
		workers, err := a.dispatcher.Workers(ctx, caller, from, in.Limit+1, clock.Now())
		if err != nil {
			return nil, err
		}
		list, err := rest.NewList(workers, in.Limit, func(w dispatcher.Worker) any { return [2]string{w.ID, w.Token} })
		return &listOutput{list}, err
	})

	type queuesOutput struct{ Body rest.List[views.Queue] }
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "list-queues", Method: http.MethodGet, Path: "/v1/queues", Tags: []string{"workers"},
		Summary: "List the runtimes with what is ready for each, and who serves it",
	}, func(ctx context.Context, caller authz.Caller, _ *struct{}) (*queuesOutput, error) {
		queues, err := a.views.Queues(ctx, caller, clock.Now())
		return &queuesOutput{rest.List[views.Queue]{Items: queues}}, err
	})

	type drainInput struct {
		ID    string `path:"id" maxLength:"200"`
		Token string `query:"token" maxLength:"63" doc:"Name of its worker token, if several processes have the id"`
	}
	type drainOutput struct{ Body dispatcher.Worker }
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "drain-worker", Method: http.MethodPost, Path: "/v1/workers/{id}:drain", Tags: []string{"workers"},
		Summary: "Stop a process from claiming tasks",
		Description: "The process learns of it within a second, finishes its running tasks, and continues with " +
			"everything else that a server does.",
	}, func(ctx context.Context, caller authz.Caller, in *drainInput) (*drainOutput, error) {
		w, err := a.dispatcher.Drain(ctx, caller, in.ID, in.Token, clock.Now())
		return &drainOutput{w}, err
	})
}
