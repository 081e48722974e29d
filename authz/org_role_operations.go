package authz

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/rest"
)

// CreateOrgRoleRequest describes an org role.
type CreateOrgRoleRequest struct {
	Slug string `json:"slug" maxLength:"40" example:"finance"`
	Name string `json:"name,omitempty" maxLength:"200" doc:"For people. Default: the slug"`
}

type (
	orgRolesInput      struct{ rest.PageInput }
	orgRolesOutput     struct{ Body rest.List[OrgRole] }
	orgRoleOutput      struct{ Body OrgRole }
	createOrgRoleInput struct{ Body CreateOrgRoleRequest }
	orgRoleInput       struct {
		Slug string `path:"slug" maxLength:"40"`
	}
)

// registerOrgRoles adds the operations on org roles.
func registerOrgRoles(api *API, requests *pgxpool.Pool) {
	Handle(api, Admin, huma.Operation{
		OperationID: "list-roles", Method: http.MethodGet, Path: "/v1/roles", Tags: []string{"access"},
		Summary: "List the org's visibility groups",
	}, func(ctx context.Context, caller Caller, in *orgRolesInput) (*orgRolesOutput, error) {
		list, err := ListOrgRoles(ctx, requests, caller, in.PageInput)
		return &orgRolesOutput{list}, err
	})

	Handle(api, Admin, huma.Operation{
		OperationID: "create-role", Method: http.MethodPost, Path: "/v1/roles", Tags: []string{"access"},
		Summary: "Create a visibility group", DefaultStatus: http.StatusCreated,
		Description: "Datasets and tokens refer to it as role:SLUG.",
	}, func(ctx context.Context, caller Caller, in *createOrgRoleInput) (*orgRoleOutput, error) {
		r, err := CreateOrgRole(ctx, requests, caller, in.Body.Slug, in.Body.Name)
		return &orgRoleOutput{r}, err
	})

	Handle(api, Admin, huma.Operation{
		OperationID: "delete-role", Method: http.MethodDelete, Path: "/v1/roles/{slug}", Tags: []string{"access"},
		Summary: "Delete a visibility group that nothing uses",
	}, func(ctx context.Context, caller Caller, in *orgRoleInput) (*struct{}, error) {
		return nil, DeleteOrgRole(ctx, requests, caller, in.Slug)
	})
}
