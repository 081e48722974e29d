package authz

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/fault"
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

// RegisterOrg adds the operations on the caller's org. The owner's pool changes it, which requests may not do, once the
// requests' pool has found it.
func RegisterOrg(api *API, owner, requests *pgxpool.Pool) {
	type output struct{ Body OrgView }
	Handle(api, Reader, huma.Operation{
		OperationID: "get-org", Method: http.MethodGet, Path: "/v1/org", Tags: []string{"access"},
		Summary: "Get the caller's org",
	}, func(ctx context.Context, caller Caller, _ *struct{}) (*output, error) {
		v, err := orgView(ctx, requests, caller)
		return &output{v}, err
	})

	type input struct{ Body OrgChange }
	Handle(api, Admin, huma.Operation{
		OperationID: "change-org", Method: http.MethodPatch, Path: "/v1/org", Tags: []string{"access"},
		Summary: "Change the settings of the caller's org",
	}, func(ctx context.Context, caller Caller, in *input) (*output, error) {
		v, err := orgView(ctx, requests, caller)
		if err != nil || in.Body.DefaultReadRoles == nil {
			return &output{v}, err
		}
		if err := setDefaultReadRoles(ctx, owner, caller, *in.Body.DefaultReadRoles); err != nil {
			return nil, err
		}
		v, err = orgView(ctx, requests, caller)
		return &output{v}, err
	})
}

func orgView(ctx context.Context, requests *pgxpool.Pool, caller Caller) (v OrgView, err error) {
	var settings Settings
	err = pg.InOrgTx(ctx, requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT slug, name, settings FROM orgs WHERE id = $1`, caller.OrgID).
			Scan(&v.Slug, &v.Name, &settings)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return OrgView{}, fault.New(fault.NotFound, "there is no org %q", caller.OrgSlug)
	}
	if err != nil {
		return OrgView{}, fmt.Errorf("find org %s: %w", caller.OrgSlug, err)
	}
	v.DefaultReadRoles = append([]string{}, settings.DefaultReadRoles...)
	return v, nil
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
