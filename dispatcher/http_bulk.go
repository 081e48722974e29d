package dispatcher

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
)

// addBulkRoutes adds the verbs over many tasks.
func (d *Dispatcher) addBulkRoutes(api *authz.API) {
	const how = " The answer is an object that the server works off at the rate, whether or not anybody waits; its tasks are " +
		"fixed when it begins. What fits into the first moment is done already."
	for _, v := range []struct{ verb, summary, description string }{
		{verbRetry, "Take failed tasks up again", "Those of the filter that failed, with all their attempts anew, and the dead ones downstream of them where that is asked for."},
		{verbCancel, "Cancel tasks", "Those of the filter that are open; running ones hear of it at their next heartbeat."},
		{verbSkip, "Give failed tasks up, with a reason", "Those of the filter that failed, but for checks; builds that wait for them go on without them."},
	} {
		authz.Handle(api, authz.Writer, huma.Operation{
			OperationID: v.verb + "-tasks", Method: http.MethodPost, Path: "/v1/tasks:" + v.verb, Tags: []string{"tasks"},
			Summary: v.summary, Description: v.description + how, DefaultStatus: http.StatusAccepted,
		}, func(ctx context.Context, caller authz.Caller, in *bulkRequestInput) (*bulkOutput, error) {
			b, err := d.StartBulk(ctx, caller, v.verb, in.Body, time.Now())
			return &bulkOutput{b}, err
		})
	}

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "group-tasks-by-error", Method: http.MethodGet, Path: "/v1/tasks/errors", Tags: []string{"tasks"},
		Summary:     "Group failed tasks by what went wrong, the most frequent first",
		Description: "Errors that differ only in ids, dates and numbers are one group. With dead=true only tasks out of attempts.",
	}, d.handleErrorGroups)

	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "list-bulk-actions", Method: http.MethodGet, Path: "/v1/bulk-actions", Tags: []string{"tasks"},
		Summary: "List what was asked to be done to many tasks, the newest first",
	}, d.handleBulks)

	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "get-bulk-action", Method: http.MethodGet, Path: "/v1/bulk-actions/{id}", Tags: []string{"tasks"},
		Summary: "Get how far it is",
	}, func(ctx context.Context, caller authz.Caller, in *bulkInput) (*bulkOutput, error) {
		b, err := d.Bulk(ctx, caller, in.ID)
		return &bulkOutput{b}, err
	})

	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "cancel-bulk-action", Method: http.MethodPost, Path: "/v1/bulk-actions/{id}/cancel", Tags: []string{"tasks"},
		Summary: "Do it to no more tasks",
	}, func(ctx context.Context, caller authz.Caller, in *bulkInput) (*bulkOutput, error) {
		b, err := d.CancelBulk(ctx, caller, in.ID, time.Now())
		return &bulkOutput{b}, err
	})
}

type bulkRequestInput struct{ Body BulkRequest }

type bulkInput struct {
	ID uuid.UUID `path:"id" format:"uuid"`
}

type bulkOutput struct{ Body BulkAction }

type bulksInput struct{ rest.PageInput }

type bulksOutput struct{ Body rest.List[BulkAction] }

func (d *Dispatcher) handleBulks(ctx context.Context, caller authz.Caller, in *bulksInput) (*bulksOutput, error) {
	var before uuid.UUID
	if _, err := in.After(&before); err != nil {
		return nil, err
	}
	found, err := d.Bulks(ctx, caller, before, in.Limit+1)
	if err != nil {
		return nil, err
	}
	list, err := rest.NewList(found, in.Limit, func(b BulkAction) any { return b.ID })
	return &bulksOutput{list}, err
}

type errorGroupsInput struct{ TaskSelection }

type errorGroupsOutput struct{ Body rest.List[ErrorGroup] }

func (d *Dispatcher) handleErrorGroups(ctx context.Context, caller authz.Caller, in *errorGroupsInput) (*errorGroupsOutput, error) {
	groups, err := d.ErrorGroups(ctx, caller, in.TaskSelection)
	return &errorGroupsOutput{rest.List[ErrorGroup]{Items: groups}}, err
}
