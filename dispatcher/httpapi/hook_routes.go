package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/internal/clock"
)

// maxDelivery bounds a delivery's body, in bytes.
const maxDelivery = 1 << 20

// addHookRoutes adds the operation that takes deliveries to webhook sources.
func (a *API) addHookRoutes(api *authz.API) {
	authz.Handle(api, authz.Hook, huma.Operation{
		OperationID: "deliver", Method: http.MethodPost, Path: "/v1/hooks/{org}/{path...}", Tags: []string{"webhooks"},
		Summary: "Deliver to a webhook source",
		Description: "Takes no token. Where the source names a secret, the delivery is signed as the Standard " +
			"Webhooks specification has it: " +
			"webhook-signature is \"v1,\" and the base64 of HMAC-SHA256 " +
			"over \"{webhook-id}.{webhook-timestamp}.{body}\". " +
			"Accepted means that the task is stored; the same webhook-id again changes nothing.",
		MaxBodyBytes: maxDelivery, DefaultStatus: http.StatusAccepted,
		// The signature is over the bytes as they come; the source checks after it that they are JSON.
		SkipValidateBody: true,
		RequestBody: &huma.RequestBody{Content: map[string]*huma.MediaType{
			"application/json": {Schema: &huma.Schema{Description: "Any JSON: the payload of the task"}},
		}},
	}, a.handleDelivery)
}

type deliveryInput struct {
	Org       string `path:"org" maxLength:"40"`
	Path      string `path:"path" maxLength:"200" doc:"As the source has it; it may hold slashes"`
	ID        string `header:"webhook-id" maxLength:"200" doc:"The same for every attempt at one delivery"`
	Key       string `header:"Idempotency-Key" maxLength:"200" doc:"The same, where the source has no secret"`
	Timestamp string `header:"webhook-timestamp" maxLength:"20" doc:"Seconds since 1970"`
	Signature string `header:"webhook-signature" maxLength:"2000"`
	RawBody   []byte `contentType:"application/json"`
}

type deliveryOutput struct{ Body sources.Accepted }

func (a *API) handleDelivery(ctx context.Context, _ authz.Caller, in *deliveryInput) (*deliveryOutput, error) {
	id := in.ID
	if id == "" {
		id = in.Key
	}
	delivery := sources.Delivery{
		Org: in.Org, Path: in.Path, ID: id, Timestamp: in.Timestamp, Signature: in.Signature, Body: in.RawBody,
	}
	accepted, err := a.sources.AcceptHook(ctx, delivery, clock.Now())
	return &deliveryOutput{accepted}, err
}
