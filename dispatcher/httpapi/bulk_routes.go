package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
)

// addBulkRoutes adds the verbs over many tasks.
func (a *API) addBulkRoutes(api *authz.API) {
	const how = " The answer is an object that the server works off at the rate, whether or not anybody waits. " +
		"Its tasks are fixed when it begins, and the first of them are done before the answer."

	for _, v := range []struct{ verb, summary, description string }{
		{control.VerbRetry, "Retry failed tasks", "Retries the failed tasks that match the filter, with all their " +
			"attempts, and the dead tasks downstream of them if the request asks for these."},
		{control.VerbCancel, "Cancel tasks",
			"Cancels the open tasks that match the filter; a running one stops at its next heartbeat."},
		{control.VerbSkip, "Give up failed tasks, with a reason", "Gives up the failed tasks that match the filter, " +
			"except checks; builds that wait for them go on without them."},
	} {
		authz.Handle(api, authz.To(authz.Operate, authz.InBody), huma.Operation{
			OperationID: v.verb + "-tasks", Method: http.MethodPost,
			Path: "/v1/tasks:" + v.verb, Tags: []string{"tasks"},
			Summary: v.summary, Description: v.description + how, DefaultStatus: http.StatusAccepted,
		}, func(ctx context.Context, caller authz.Caller, in *bulkRequestInput) (*bulkOutput, error) {
			b, err := a.control.StartBulk(ctx, caller, v.verb, in.Body, clock.Now())
			return &bulkOutput{b}, err
		})
	}

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "group-tasks-by-error", Method: http.MethodGet, Path: "/v1/tasks/errors", Tags: []string{"tasks"},
		Summary: "Group failed tasks by what went wrong, the most frequent first",
		Description: "Errors that differ only in ids, dates and numbers are one group. With dead=true only tasks " +
			"out of attempts.",
	}, a.handleErrorGroups)

	authz.Handle(api, authz.To(authz.Operate, authz.InBody), huma.Operation{
		OperationID: "list-bulk-actions", Method: http.MethodGet, Path: "/v1/bulk-actions", Tags: []string{"tasks"},
		Summary: "List the bulk actions on tasks, the newest first",
	}, a.handleBulks)

	authz.Handle(api, authz.To(authz.Operate, authz.TheBulk), huma.Operation{
		OperationID: "get-bulk-action", Method: http.MethodGet, Path: "/v1/bulk-actions/{id}", Tags: []string{"tasks"},
		Summary: "Get a bulk action with its progress",
	}, func(ctx context.Context, caller authz.Caller, in *bulkInput) (*bulkOutput, error) {
		b, err := a.control.Bulk(ctx, caller, in.ID)
		return &bulkOutput{b}, err
	})

	authz.Handle(api, authz.To(authz.Operate, authz.TheBulk), huma.Operation{
		OperationID: "cancel-bulk-action", Method: http.MethodPost,
		Path: "/v1/bulk-actions/{id}/cancel", Tags: []string{"tasks"},
		Summary: "Stop a bulk action before its next tasks",
	}, func(ctx context.Context, caller authz.Caller, in *bulkInput) (*bulkOutput, error) {
		b, err := a.control.CancelBulk(ctx, caller, in.ID, clock.Now())
		return &bulkOutput{b}, err
	})
}

type bulkRequestInput struct{ Body control.BulkRequest }

type bulkInput struct {
	ID uuid.UUID `path:"id" format:"uuid"`
}

type bulkOutput struct{ Body control.BulkAction }

type bulksInput struct{ rest.PageInput }

type bulksOutput struct{ Body rest.List[control.BulkAction] }

func (a *API) handleBulks(ctx context.Context, caller authz.Caller, in *bulksInput) (*bulksOutput, error) {
	var before uuid.UUID
	if _, err := in.After(&before); err != nil {
		return nil, err
	}
	found, err := a.control.Bulks(ctx, caller, before, in.Limit+1)
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(found, in.Limit, func(b control.BulkAction) any { return b.ID })
	return &bulksOutput{list}, err
}

type errorGroupsInput struct{ views.TaskSelection }

type errorGroupsOutput struct{ Body rest.List[views.ErrorGroup] }

func (a *API) handleErrorGroups(
	ctx context.Context, caller authz.Caller, in *errorGroupsInput,
) (*errorGroupsOutput, error) {
	groups, err := a.views.ErrorGroups(ctx, caller, in.TaskSelection)
	return &errorGroupsOutput{rest.List[views.ErrorGroup]{Items: groups}}, err
}
