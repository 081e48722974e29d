package identity

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// Window is a part of a list: at most Count items after the first Skip ones.
type Window struct{ Skip, Count int }

// AccountFilter selects users that a provisioner keeps. What is nil selects all.
type AccountFilter struct {
	ID          *uuid.UUID
	UserName    *string // whatever its case
	ExternalID  *string
	DisplayName *string
	Email       *string // any of the user's, whatever its case
	EmailType   *string // of that address
	Active      *bool
}

// ListProvisioned returns users that the provisioner keeps, the oldest first, and how many there are in all.
func (id *Identity) ListProvisioned(ctx context.Context, p authz.Provisioner, f AccountFilter, w Window) (
	users []Provisioned, total int, err error) {
	err = pg.InOrgSnapshot(ctx, id.Requests, p.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		const selected = `
			FROM scim_users s JOIN users u ON u.org_id = s.org_id AND u.id = s.user_id
			WHERE s.org_id = $1 AND s.issuer = $2
			  AND ($3::uuid IS NULL OR s.user_id = $3)
			  AND ($4::text IS NULL OR lower(s.user_name) = lower($4))
			  AND ($5::text IS NULL OR s.external_id = $5)
			  AND ($6::text IS NULL OR s.profile ->> 'display_name' = $6)
			  AND ($7::boolean IS NULL OR (u.disabled_at IS NULL) = $7)
			  AND ($8::text IS NULL OR EXISTS (
				SELECT FROM jsonb_array_elements(s.profile -> 'emails') AS e
				WHERE lower(e ->> 'value') = lower($8) AND ($9::text IS NULL OR lower(e ->> 'type') = lower($9))))`
		args := []any{p.OrgID, p.Issuer, f.ID, f.UserName, f.ExternalID, f.DisplayName, f.Active, f.Email, f.EmailType}
		if err := tx.QueryRow(ctx, `SELECT count(*)`+selected, args...).Scan(&total); err != nil || w.Count == 0 {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT `+provisionedColumns+selected+`
			ORDER BY s.created_at, s.user_id OFFSET $10 LIMIT $11`, append(args, w.Skip, w.Count)...)
		if err != nil {
			return err
		}
		users, err = pgx.CollectRows(rows, scanProvisioned)
		return err
	})
	return users, total, fault.Wrap(err, "list provisioned users")
}

// GroupFilter selects groups that a provisioner keeps. What is nil selects all.
type GroupFilter struct {
	ID         *uuid.UUID
	Name       *string // whatever its case
	ExternalID *string
	Member     *uuid.UUID
}

// ListGroups returns groups that the provisioner keeps, the oldest first, and how many there are in all.
func (id *Identity) ListGroups(ctx context.Context, p authz.Provisioner, f GroupFilter, w Window, withMembers bool) (
	groups []Group, total int, err error) {
	err = pg.InOrgSnapshot(ctx, id.Requests, p.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		const selected = `
			FROM scim_groups g
			WHERE g.org_id = $1 AND g.issuer = $2
			  AND ($3::uuid IS NULL OR g.id = $3)
			  AND ($4::text IS NULL OR lower(g.display_name) = lower($4))
			  AND ($5::text IS NULL OR g.external_id = $5)
			  AND ($6::uuid IS NULL OR EXISTS (SELECT FROM scim_group_members m WHERE m.group_id = g.id AND m.user_id = $6))`
		args := []any{p.OrgID, p.Issuer, f.ID, f.Name, f.ExternalID, f.Member}
		if err := tx.QueryRow(ctx, `SELECT count(*)`+selected, args...).Scan(&total); err != nil || w.Count == 0 {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT `+groupColumns+selected+`
			ORDER BY g.created_at, g.id OFFSET $7 LIMIT $8`, append(args, w.Skip, w.Count)...)
		if err != nil {
			return err
		}
		if groups, err = pgx.CollectRows(rows, scanGroup); err != nil || !withMembers {
			return err
		}
		return addMembers(ctx, tx, p, groups)
	})
	return groups, total, fault.Wrap(err, "list groups")
}
