package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// addPublishRoutes adds the operation that takes events from outside.
func (a *API) addPublishRoutes(api *authz.API) {
	authz.Handle(api, authz.To(authz.Operate, authz.TheDatasets), huma.Operation{
		OperationID: "publish-event", Method: http.MethodPost,
		Path: "/v1/datasets/{name}/events", Tags: []string{"datasets"},
		Summary: "Run the consumers of a partition, for outputs of manual and webhook sources",
		Description: "Brings no data: the partition must exist, and keeps its content under a new revision. " +
			"Answers 201, or 200 with the earlier answer if the idempotency key is known.",
		DefaultStatus: http.StatusCreated,
	}, a.handlePublish)
}

type publishInput struct {
	registry.NameInput
	Key  string `header:"Idempotency-Key" maxLength:"200" doc:"In place of idempotency_key"`
	Body control.PublishRequest
}

type publishOutput struct {
	Status int
	Body   control.PublishedEvent
}

func (a *API) handlePublish(ctx context.Context, caller authz.Caller, in *publishInput) (*publishOutput, error) {
	req := in.Body
	switch {
	case in.Key != "" && req.IdempotencyKey != "" && in.Key != req.IdempotencyKey:
		return nil, fault.New(fault.Invalid, "the Idempotency-Key header and idempotency_key differ")
	case in.Key != "":
		req.IdempotencyKey = in.Key
	}

	event, err := a.control.PublishEvent(ctx, caller, in.Name, req, clock.Now())
	if err != nil {
		return nil, err
	}
	out := &publishOutput{Status: http.StatusCreated, Body: event}
	if event.Duplicate {
		out.Status = http.StatusOK
	}
	return out, nil
}
