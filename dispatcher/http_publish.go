package dispatcher

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// addPublishRoutes adds the way in of events from outside.
func (d *Dispatcher) addPublishRoutes(api *authz.API) {
	authz.Handle(api, authz.Writer, huma.Operation{
		OperationID: "publish-event", Method: http.MethodPost, Path: "/v1/datasets/{name}/events", Tags: []string{"datasets"},
		Summary: "Have the consumers of a partition run, for outputs of manual and webhook sources",
		Description: "Brings no data: the partition is to be there, and keeps its content under a new revision. " +
			"Answers 201, and 200 with what was answered before where the idempotency key is known.",
		DefaultStatus: http.StatusCreated,
	}, d.handlePublish)
}

type publishInput struct {
	registry.NameInput
	Key  string `header:"Idempotency-Key" maxLength:"200" doc:"In place of idempotency_key"`
	Body PublishRequest
}

type publishOutput struct {
	Status int
	Body   PublishedEvent
}

func (d *Dispatcher) handlePublish(ctx context.Context, caller authz.Caller, in *publishInput) (*publishOutput, error) {
	req := in.Body
	switch {
	case in.Key != "" && req.IdempotencyKey != "" && in.Key != req.IdempotencyKey:
		return nil, fault.New(fault.Invalid, "the Idempotency-Key header and idempotency_key differ")
	case in.Key != "":
		req.IdempotencyKey = in.Key
	}
	event, err := d.PublishEvent(ctx, caller, in.Name, req, time.Now())
	if err != nil {
		return nil, err
	}
	out := &publishOutput{Status: http.StatusCreated, Body: event}
	if event.Duplicate {
		out.Status = http.StatusOK
	}
	return out, nil
}
