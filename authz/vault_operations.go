package authz

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/internal/rest"
)

type (
	secretInput struct {
		Name string `path:"name" maxLength:"127"`
	}
	deleteSecretInput struct {
		Name   string `path:"name" maxLength:"127"`
		DryRun bool   `query:"dry_run" doc:"Only say whether it could be deleted: 409 names the jobs that use it"`
	}
	setSecretInput struct {
		Name string `path:"name" maxLength:"127"`
		Body SetSecretRequest
	}
	bindSecretInput struct {
		Name string `path:"name" maxLength:"127"`
		Body Binding
	}
	secretOutput  struct{ Body Secret }
	secretsInput  struct{ rest.PageInput }
	secretsOutput struct{ Body rest.List[Secret] }
)

// SetSecretRequest holds a secret's value.
type SetSecretRequest struct {
	Value          string `json:"value" minLength:"1" maxLength:"65536" doc:"It is never shown again"`
	OverlapSeconds int64  `json:"overlap_seconds,omitempty" minimum:"0" maximum:"2592000" doc:"For how long others may still sign with the value before; 0: it ends at once"`
}

// AddRoutes adds the operations on secrets.
func (v *Vault) AddRoutes(api *API) {
	Handle(api, Admin, huma.Operation{
		OperationID: "list-secrets", Method: http.MethodGet, Path: "/v1/secrets", Tags: []string{"access"},
		Summary: "List the org's secrets, without their values",
	}, func(ctx context.Context, caller Caller, in *secretsInput) (*secretsOutput, error) {
		list, err := v.ListSecrets(ctx, caller, in.PageInput)
		return &secretsOutput{list}, err
	})
	Handle(api, Admin, huma.Operation{
		OperationID: "get-secret", Method: http.MethodGet, Path: "/v1/secrets/{name}", Tags: []string{"access"},
		Summary: "Get a secret, without its value",
	}, func(ctx context.Context, caller Caller, in *secretInput) (*secretOutput, error) {
		s, err := v.GetSecret(ctx, caller, in.Name)
		return &secretOutput{s}, err
	})
	Handle(api, Admin, huma.Operation{
		OperationID: "set-secret", Method: http.MethodPut, Path: "/v1/secrets/{name}", Tags: []string{"access"},
		Summary: "Set a secret's value; its bindings stay",
		Description: "With overlap_seconds, deliveries to webhooks may still be signed with the value before for so " +
			"long. Everything else gets the new value at once. The value before that one ends.",
	}, func(ctx context.Context, caller Caller, in *setSecretInput) (*secretOutput, error) {
		s, err := v.ReplaceSecret(ctx, caller, in.Name, in.Body.Value,
			time.Duration(in.Body.OverlapSeconds)*time.Second)
		return &secretOutput{s}, err
	})

	Handle(api, Admin, huma.Operation{
		OperationID: "bind-secret", Method: http.MethodPatch, Path: "/v1/secrets/{name}", Tags: []string{"access"},
		Summary: "Change what may use a secret, and where it may be sent",
		Description: "A host is such as api.example.com, api.example.com:8443 or http://box.internal:8080; " +
			"* is any host. A program may send a secret anywhere, so it gets one only if it is among the programs. " +
			"A grant holds for one program, DAG/JOB@PROGRAM, and not for another one of the same job.",
	}, func(ctx context.Context, caller Caller, in *bindSecretInput) (*secretOutput, error) {
		s, err := v.BindSecret(ctx, caller, in.Name, in.Body)
		return &secretOutput{s}, err
	})
	Handle(api, Admin, huma.Operation{
		OperationID: "delete-secret", Method: http.MethodDelete, Path: "/v1/secrets/{name}", Tags: []string{"access"},
		Summary: "Delete a secret",
	}, func(ctx context.Context, caller Caller, in *deleteSecretInput) (*struct{}, error) {
		return nil, v.DeleteSecret(ctx, caller, in.Name, in.DryRun)
	})
}
