package registry

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/pg"
)

// Visibility says who may read a dataset besides admins: whoever is in one of its read roles and, unless an admin has
// opened it, may read all that it is computed from.
type Visibility struct {
	ReadRoles []string `json:"read_roles" maxItems:"100" doc:"Org roles, each as role:SLUG. Empty: every reader of the org"`
	Opened    bool     `json:"opened" doc:"Only these read roles count: an admin says that it holds nothing of what guards its inputs"`
}

// DatasetVisibility is the visibility of a dataset with what guards it besides.
type DatasetVisibility struct {
	Visibility
	Guards  []Guard   `json:"guards" doc:"What it is computed from, at any distance, and who may read that"`
	Stopped []Stopped `json:"stopped,omitempty" doc:"After a change: jobs of the org that wait, because those on whose authority they run may not read what they read"`
}

// Stopped is a job that waits for somebody who answers for what it reads.
type Stopped struct {
	Job       string          `json:"job" doc:"DAG/JOB"`
	Version   int             `json:"version"`
	Authority authz.Authority `json:"authority" doc:"On whose authority the version runs"`
}

// Guard is a dataset with read roles that others are computed from.
type Guard struct {
	Dataset   string   `json:"dataset"`
	ReadRoles []string `json:"read_roles"`
}

// addVisibilityRoutes adds the operations on who may read a dataset.
func (r *Registry) addVisibilityRoutes(api *authz.API) {
	type output struct{ Body DatasetVisibility }
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "get-visibility", Method: http.MethodGet, Path: "/v1/datasets/{name}/visibility",
		Tags:    []string{"access"},
		Summary: "Get who may read a dataset, and why", Description: NameDoc,
	}, func(ctx context.Context, caller authz.Caller, in *NameInput) (*output, error) {
		v, err := r.DatasetVisibility(ctx, caller, in.Name)
		return &output{v}, err
	})

	type input struct {
		NameInput
		Body Visibility
	}
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "set-visibility", Method: http.MethodPut, Path: "/v1/datasets/{name}/visibility",
		Tags:    []string{"access"},
		Summary: "Set who may read a dataset, at once and over all its versions", Description: NameDoc,
	}, func(ctx context.Context, caller authz.Caller, in *input) (*output, error) {
		v, err := r.SetVisibility(ctx, caller, in.Name, in.Body)
		return &output{v}, err
	})
}

// DatasetVisibility returns who may read a dataset.
func (r *Registry) DatasetVisibility(
	ctx context.Context, caller authz.Caller, name string,
) (v DatasetVisibility, err error) {
	err = pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		d, err := r.FindDataset(ctx, tx, caller, name)
		if err != nil {
			return err
		}
		v, err = visibilityOf(ctx, tx, caller.OrgID, d.ID)
		return err
	})
	if err != nil {
		return v, fmt.Errorf("visibility of dataset %s: %w", name, err)
	}
	return v, nil
}

// SetVisibility sets who may read a dataset, and records it.
func (r *Registry) SetVisibility(
	ctx context.Context, caller authz.Caller, name string, to Visibility,
) (v DatasetVisibility, err error) {
	to.ReadRoles = slices.Compact(slices.Sorted(slices.Values(to.ReadRoles)))
	if to.ReadRoles == nil {
		to.ReadRoles = []string{}
	}

	err = pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := authz.RequireOrgRoles(ctx, tx, caller.OrgID, to.ReadRoles); err != nil {
			return err
		}
		d, err := r.FindDataset(ctx, tx, caller, name)
		if err != nil {
			return err
		}

		var before Visibility
		err = tx.QueryRow(ctx, `SELECT read_roles, opened FROM datasets WHERE org_id = $1 AND id = $2 FOR UPDATE`,
			caller.OrgID, d.ID).Scan(&before.ReadRoles, &before.Opened)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE datasets SET read_roles = $3, opened = $4, updated_at = now()
			WHERE org_id = $1 AND id = $2`, caller.OrgID, d.ID, to.ReadRoles, to.Opened)
		if err != nil {
			return err
		}
		err = authz.Audit(ctx, tx, caller, "dataset.visibility", d.Name, authz.Change{Before: before, After: to})
		if err != nil {
			return err
		}
		if v, err = visibilityOf(ctx, tx, caller.OrgID, d.ID); err != nil {
			return err
		}
		v.Stopped, err = stopped(ctx, tx, caller.OrgID)
		return err
	})
	if err != nil {
		return v, fmt.Errorf("visibility of dataset %s: %w", name, err)
	}
	return v, nil
}

// stopped lists the jobs of an org that wait for somebody who answers for what they read.
func stopped(ctx context.Context, tx pgx.Tx, org uuid.UUID) (list []Stopped, err error) {
	rows, err := tx.Query(ctx, `SELECT id FROM dag_versions
		WHERE org_id = $1 AND status IN ('Active', 'Building', 'Ready')`, org)
	if err != nil {
		return nil, fmt.Errorf("versions at work: %w", err)
	}
	versions, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("versions at work: %w", err)
	}

	lost, err := LostAuthorityIn(ctx, tx, org, versions...)
	for _, l := range lost {
		for _, job := range l.Jobs {
			list = append(list, Stopped{l.DAG + "/" + job, l.Version, l.Actors})
		}
	}
	slices.SortFunc(list, func(a, b Stopped) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Version, b.Version))
	})
	return list, err
}

// visibilityOf walks the other way round than hidden_generations: from what is served to what it is computed from. It
// does not look behind a dataset that an admin has opened.
func visibilityOf(ctx context.Context, tx pgx.Tx, org, dataset uuid.UUID) (v DatasetVisibility, err error) {
	err = tx.QueryRow(ctx, `SELECT read_roles, opened FROM datasets WHERE org_id = $1 AND id = $2`, org, dataset).
		Scan(&v.ReadRoles, &v.Opened)
	if err != nil {
		return v, err
	}
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE upstream AS (
			SELECT p.dataset_version AS id FROM dataset_pointers p WHERE p.org_id = $1 AND p.dataset_uuid = $2
			UNION
			SELECT g.id
			FROM upstream s
			JOIN dataset_versions o ON o.id = s.id
			JOIN datasets d ON d.id = o.dataset_uuid AND NOT d.opened
			JOIN generation_inputs i ON i.dataset_version = s.id
			JOIN dataset_versions g ON g.id = i.input_version
			    OR i.input_version IS NULL AND g.dataset_uuid = i.input_dataset AND g.purged_at IS NULL)
		SELECT DISTINCT d.name, d.read_roles
		FROM upstream s JOIN dataset_versions g ON g.id = s.id JOIN datasets d ON d.id = g.dataset_uuid
		WHERE d.id <> $2 AND d.read_roles <> '{}' ORDER BY d.name`, org, dataset)
	if err != nil {
		return v, err
	}
	v.Guards, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Guard])
	return v, err
}
