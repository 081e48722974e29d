package authz

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/pg"
)

// OrgView is the caller's org as the API shows it.
type OrgView struct {
	Slug             string   `json:"slug"`
	Name             string   `json:"name"`
	DefaultReadRoles []string `json:"default_read_roles" doc:"Read roles of new datasets, each as role:SLUG. None: every reader may read them"`
}

// OrgChange says what to change of an org; what is nil stays.
type OrgChange struct {
	DefaultReadRoles *[]string `json:"default_read_roles,omitempty" maxItems:"100" doc:"Read roles of new datasets: those there are keep theirs"`
}

// RegisterOrg adds the operations on the caller's org. The owner's pool changes it: requests may not.
func RegisterOrg(api *API, owner *pgxpool.Pool) {
	type output struct{ Body OrgView }
	Handle(api, Reader, huma.Operation{
		OperationID: "get-org", Method: http.MethodGet, Path: "/v1/org", Tags: []string{"access"},
		Summary: "Get the caller's org",
	}, func(ctx context.Context, caller Caller, _ *struct{}) (*output, error) {
		v, err := orgView(ctx, owner, caller)
		return &output{v}, err
	})

	type input struct{ Body OrgChange }
	Handle(api, Admin, huma.Operation{
		OperationID: "change-org", Method: http.MethodPatch, Path: "/v1/org", Tags: []string{"access"},
		Summary: "Change the settings of the caller's org",
	}, func(ctx context.Context, caller Caller, in *input) (*output, error) {
		if in.Body.DefaultReadRoles != nil {
			if err := setDefaultReadRoles(ctx, owner, caller, *in.Body.DefaultReadRoles); err != nil {
				return nil, err
			}
		}
		v, err := orgView(ctx, owner, caller)
		return &output{v}, err
	})
}

func orgView(ctx context.Context, owner *pgxpool.Pool, caller Caller) (OrgView, error) {
	org, err := OrgBySlug(ctx, owner, caller.OrgSlug)
	if err != nil {
		return OrgView{}, err
	}
	return OrgView{Slug: org.Slug, Name: org.Name, DefaultReadRoles: append([]string{},
			org.Settings.DefaultReadRoles...)},
		nil
}

// setDefaultReadRoles sets the read roles of the org's new datasets, which the org must have.
func setDefaultReadRoles(ctx context.Context, owner *pgxpool.Pool, caller Caller, roles []string) error {
	return pg.InTx(ctx, owner, func(ctx context.Context, tx pgx.Tx) error {
		if err := RequireOrgRoles(ctx, tx, caller.OrgID, roles); err != nil {
			return err
		}
		before, err := changeSettings(ctx, tx, caller, func(now *Settings) { now.DefaultReadRoles = roles })
		if err != nil {
			return err
		}
		return Audit(ctx, tx, caller, "org.settings", caller.OrgSlug, Change{
			Before: map[string]any{"default_read_roles": before.DefaultReadRoles},
			After:  map[string]any{"default_read_roles": roles}})
	})
}
