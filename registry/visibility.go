package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// Visibility says who may read a dataset besides admins: whoever is in one of its read roles and, unless an admin has
// opened it, may read all that it is computed from.
type Visibility struct {
	ReadRoles []string `json:"read_roles" maxItems:"100" doc:"Org roles, each as role:SLUG. Empty: every reader of the org"`
	Opened    bool     `json:"opened" required:"false" doc:"Only these read roles count: an admin says that it holds nothing of what guards its inputs"`
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

// ReadRolePattern says who may read datasets that do not exist yet.
type ReadRolePattern struct {
	Pattern   string    `json:"pattern" minLength:"1" maxLength:"200" doc:"Of the names of datasets; * stands for any text. The longest that a name fits counts"`
	ReadRoles []string  `json:"read_roles" maxItems:"100" doc:"Org roles, each as role:SLUG. Empty: every reader of the org"`
	CreatedBy string    `json:"created_by,omitempty" readOnly:"true"`
	CreatedAt time.Time `json:"created_at,omitzero" readOnly:"true"`
	// Others answers a change.
	Others []string `json:"others,omitempty" readOnly:"true" doc:"Datasets that fit the pattern, exist already and have other read roles: they keep those"`
}

// addPatternRoutes adds the operations on who may read datasets that do not exist yet.
func (r *Registry) addPatternRoutes(api *authz.API) {
	type list struct{ Body []ReadRolePattern }
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "list-visibility-patterns", Method: http.MethodGet, Path: "/v1/visibility",
		Tags: []string{"access"}, Summary: "List who may read datasets that do not exist yet, by patterns",
	}, func(ctx context.Context, caller authz.Caller, _ *struct{}) (*list, error) {
		found, err := r.ReadRolePatterns(ctx, caller)
		return &list{found}, err
	})

	type one struct{ Body ReadRolePattern }
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "set-visibility-pattern", Method: http.MethodPut, Path: "/v1/visibility",
		Tags: []string{"access"}, Summary: "Set who may read datasets that come to have names that fit a pattern",
	}, func(ctx context.Context, caller authz.Caller, in *one) (*one, error) {
		p, err := r.SetReadRolePattern(ctx, caller, in.Body)
		return &one{p}, err
	})

	type named struct {
		Pattern string `query:"pattern" required:"true" minLength:"1" maxLength:"200"`
	}
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "delete-visibility-pattern", Method: http.MethodDelete, Path: "/v1/visibility",
		Tags: []string{"access"}, Summary: "Remove a pattern: datasets that it met keep their read roles",
	}, func(ctx context.Context, caller authz.Caller, in *named) (*struct{}, error) {
		return nil, r.DeleteReadRolePattern(ctx, caller, in.Pattern)
	})
}

// ReadRolePatterns lists the org's patterns.
func (r *Registry) ReadRolePatterns(ctx context.Context, caller authz.Caller) (found []ReadRolePattern, err error) {
	err = pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT pattern, read_roles, created_by, created_at, NULL::text[]
			FROM read_role_patterns WHERE org_id = $1 ORDER BY pattern`, caller.OrgID)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ReadRolePattern])
		return err
	})
	return append([]ReadRolePattern{}, found...), fault.Wrap(err, "patterns of read roles")
}

// SetReadRolePattern sets who may read datasets that come to have names that fit a pattern, and records it.
func (r *Registry) SetReadRolePattern(
	ctx context.Context, caller authz.Caller, p ReadRolePattern,
) (_ ReadRolePattern, err error) {
	p.ReadRoles = slices.Compact(slices.Sorted(slices.Values(p.ReadRoles)))
	p.ReadRoles = append([]string{}, p.ReadRoles...)
	err = pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := authz.RequireOrgRoles(ctx, tx, caller.OrgID, p.ReadRoles); err != nil {
			return err
		}

		var before *[]string
		err := tx.QueryRow(ctx, `
			WITH old AS (SELECT read_roles FROM read_role_patterns WHERE org_id = $1 AND pattern = $2),
			put AS (
				INSERT INTO read_role_patterns (org_id, pattern, read_roles, created_by) VALUES ($1, $2, $3, $4)
				ON CONFLICT (org_id, pattern) DO UPDATE
					SET read_roles = EXCLUDED.read_roles, created_by = EXCLUDED.created_by, created_at = now()
				RETURNING created_by, created_at)
			SELECT (SELECT read_roles FROM old), created_by, created_at,
				ARRAY(SELECT d.name FROM datasets d WHERE d.org_id = $1 AND d.deleted_at IS NULL
					AND fits(d.name, $2) AND d.read_roles <> $3 ORDER BY d.name LIMIT 100)
			FROM put`, caller.OrgID, p.Pattern, p.ReadRoles, caller.Actor).
			Scan(&before, &p.CreatedBy, &p.CreatedAt, &p.Others)
		if err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "visibility.pattern", p.Pattern,
			authz.Change{Before: before, After: p.ReadRoles})
	})
	return p, fault.Wrap(err, "read roles of "+p.Pattern)
}

// DeleteReadRolePattern removes a pattern. Datasets that it met keep their read roles.
func (r *Registry) DeleteReadRolePattern(ctx context.Context, caller authz.Caller, pattern string) error {
	err := pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var before []string
		err := tx.QueryRow(ctx, `DELETE FROM read_role_patterns WHERE org_id = $1 AND pattern = $2
			RETURNING read_roles`, caller.OrgID, pattern).Scan(&before)
		if errors.Is(err, pgx.ErrNoRows) {
			return fault.New(fault.NotFound, "there is no pattern %q", pattern).
				WithHint("`dagctl datasets visibility` lists them")
		}
		if err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "visibility.pattern", pattern, authz.Change{Before: before})
	})
	return fault.Wrap(err, "remove the read roles of "+pattern)
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
