package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// OrgRole is a visibility group: datasets name the org roles that may read them, and tokens and users are members.
type OrgRole struct {
	Slug      string    `json:"slug" example:"finance" doc:"Written role:SLUG wherever it is used"`
	Name      string    `json:"name"`
	Tokens    int       `json:"tokens" doc:"How many tokens that work are members"`
	Users     int       `json:"users" doc:"How many users are members"`
	CreatedAt time.Time `json:"created_at"`
}

// goodOrgRole matches an org role as it is written: role:SLUG.
var goodOrgRole = late.Pattern(`^role:[a-z0-9][a-z0-9_-]{0,39}$`)

// orgRoleOf returns how the org role with a slug is written.
func orgRoleOf(slug string) string { return "role:" + slug }

// CreateOrgRole creates an org role.
func CreateOrgRole(ctx context.Context, pool *pgxpool.Pool, caller Caller, slug, name string) (r OrgRole, err error) {
	if !goodOrgRole.MatchString(orgRoleOf(slug)) {
		return OrgRole{}, fault.New(fault.Invalid, "%q is not the slug of an org role", slug).
			WithHint("use up to 40 of a-z, 0-9, _ and -, beginning with a letter or digit")
	}
	if name == "" {
		name = slug
	}

	err = pg.InOrgTx(ctx, pool, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO org_roles (org_id, slug, name) VALUES ($1, $2, $3)`,
			caller.OrgID, slug, name)
		if violates(err, "org_roles_org_id_slug_key") {
			return fault.New(fault.Conflict, "role:%s already exists", slug)
		}
		if err != nil {
			return err
		}
		if r, err = findOrgRole(ctx, tx, caller, slug); err != nil {
			return err
		}
		return Audit(ctx, tx, caller, "role.create", orgRoleOf(slug), Change{After: map[string]any{"name": name}})
	})
	if err != nil {
		return OrgRole{}, fmt.Errorf("create org role %s: %w", slug, err)
	}
	return r, nil
}

// DeleteOrgRole deletes an org role that nothing uses: what named it would have other readers, unseen.
func DeleteOrgRole(ctx context.Context, pool *pgxpool.Pool, caller Caller, slug string) error {
	return pg.InOrgTx(ctx, pool, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		r, err := findOrgRole(ctx, tx, caller, slug)
		if err != nil {
			return err
		}

		// Whoever begins to use the role has locked it (RequireOrgRoles), so that a use is seen here or refused there.
		_, err = tx.Exec(ctx, `SELECT FROM org_roles WHERE org_id = $1 AND slug = $2 FOR UPDATE`, caller.OrgID, slug)
		if err != nil {
			return fmt.Errorf("lock org role %s: %w", slug, err)
		}
		if err := refuseUsedRole(ctx, tx, caller, slug); err != nil {
			return err
		}

		_, err = tx.Exec(ctx, `DELETE FROM org_roles WHERE org_id = $1 AND slug = $2`, caller.OrgID, slug)
		if err != nil {
			return fmt.Errorf("delete org role %s: %w", slug, err)
		}
		return Audit(ctx, tx, caller, "role.delete", orgRoleOf(slug),
			Change{Before: map[string]any{"name": r.Name}})
	})
}

// refuseUsedRole refuses to delete an org role that something uses, and names that.
func refuseUsedRole(ctx context.Context, tx pgx.Tx, caller Caller, slug string) error {
	r, err := findOrgRole(ctx, tx, caller, slug)
	if err != nil {
		return err
	}
	var datasets int
	var rules, patterns []string
	err = tx.QueryRow(ctx, `
		SELECT datasets_with_read_role($1, $2), rules_with_org_role($1, $2), patterns_with_read_role($1, $2)`,
		caller.OrgID, orgRoleOf(slug)).Scan(&datasets, &rules, &patterns)
	if err != nil {
		return fmt.Errorf("uses of org role %s: %w", slug, err)
	}
	settings, err := OrgSettings(ctx, tx, caller.OrgID)
	if err != nil {
		return err
	}

	var uses []string
	for _, use := range []struct {
		n    int
		what string
	}{{r.Tokens, "tokens"}, {r.Users, "users"}, {datasets, "datasets"}} {
		if use.n > 0 {
			uses = append(uses, fmt.Sprintf("%d %s", use.n, use.what))
		}
	}
	if len(patterns) > 0 {
		uses = append(uses, "the patterns of datasets to come "+strings.Join(patterns, ", "))
	}
	if len(rules) > 0 {
		uses = append(uses, "trust rules "+strings.Join(rules, ", "))
	}
	if slices.Contains(settings.DefaultReadRoles, orgRoleOf(slug)) {
		uses = append(uses, "the org's default for new datasets")
	}
	if len(uses) == 0 {
		return nil
	}
	return fault.New(fault.Conflict, "role:%s is in use: %s", slug, strings.Join(uses, "; ")).
		WithHint("revoke the tokens, and take the role from what else has it: `dagctl users set`, `dagctl datasets " +
			"visibility`, `dagctl trust remove`, `dagctl org set`")
}

// orgRoleColumns is what scanOrgRole scans, over org_roles r.
const orgRoleColumns = `
	r.slug, r.name,
	(SELECT count(*) FROM service_tokens t WHERE t.org_id = r.org_id AND 'role:' || r.slug = ANY(t.org_roles)
		AND t.revoked_at IS NULL AND t.expires_at > now()),
	(SELECT count(*) FROM org_role_memberships m WHERE m.role_id = r.id), r.created_at`

func scanOrgRole(row pgx.CollectableRow) (r OrgRole, err error) {
	err = row.Scan(&r.Slug, &r.Name, &r.Tokens, &r.Users, &r.CreatedAt)
	return r, err
}

func findOrgRole(ctx context.Context, tx pgx.Tx, caller Caller, slug string) (OrgRole, error) {
	rows, err := tx.Query(ctx, `
		SELECT `+orgRoleColumns+` FROM org_roles r WHERE r.org_id = $1 AND r.slug = $2`, caller.OrgID, slug)
	if err != nil {
		return OrgRole{}, fmt.Errorf("find org role %s: %w", slug, err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanOrgRole)
	if errors.Is(err, pgx.ErrNoRows) {
		return OrgRole{}, noOrgRole(slug)
	}
	return r, err
}

// ListOrgRoles returns the org's visibility groups by slug.
func ListOrgRoles(
	ctx context.Context, pool *pgxpool.Pool, caller Caller, page rest.PageInput,
) (list rest.List[OrgRole], err error) {
	var after string
	if _, err := page.After(&after); err != nil {
		return list, err
	}

	err = pg.InOrgTx(ctx, pool, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT `+orgRoleColumns+` FROM org_roles r
			WHERE r.org_id = $1 AND r.slug > $2 ORDER BY r.slug LIMIT $3`, caller.OrgID, after, page.Limit+1)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, scanOrgRole)
		if err != nil {
			return err
		}
		list, err = rest.NewList(found, page.Limit, func(r OrgRole) any { return r.Slug })
		return err
	})
	if err != nil {
		return list, fmt.Errorf("list org roles: %w", err)
	}
	return list, nil
}

// RequireOrgRoles refuses roles that the org does not have: a mistyped one would open nothing, and hide much.
// Those that it has stay until the transaction has ended.
func RequireOrgRoles(ctx context.Context, tx pgx.Tx, org uuid.UUID, roles []string) error {
	if len(roles) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, `
		SELECT 'role:' || slug FROM org_roles WHERE org_id = $1 AND 'role:' || slug = ANY($2) ORDER BY slug FOR KEY SHARE`,
		org, roles)
	if err != nil {
		return fmt.Errorf("org roles: %w", err)
	}
	have, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("org roles: %w", err)
	}

	for _, role := range roles {
		if !slices.Contains(have, role) {
			return noOrgRole(role)
		}
	}
	return nil
}

func noOrgRole(role string) error {
	return fault.New(fault.NotFound, "there is no org role %q", role).
		WithHint("`dagctl roles list` lists them, `dagctl roles create SLUG` makes one")
}
