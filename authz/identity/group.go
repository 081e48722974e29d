package identity

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// Group is a group of users that an identity provider keeps. Rules of kind group give its members roles.
type Group struct {
	ID         uuid.UUID
	Name       string // unique at the issuer, whatever its case
	ExternalID string
	Members    []Member
	Version    int64
	CreatedAt  time.Time
	UpdatedAt  time.Time
}

// Member is a user in a group.
type Member struct {
	User     uuid.UUID
	UserName string
}

// ETag returns what changes with every change of the group.
func (g Group) ETag() string { return fmt.Sprintf(`W/"%d"`, g.Version) }

// GroupChange says what to change of a group; what is nil stays. The changes of members are made one after the other.
type GroupChange struct {
	Name       *string
	ExternalID *string
	Members    []MemberChange
}

// MemberChange adds users to a group, or removes them. All of its members are removed before, if Clear says so.
type MemberChange struct {
	Clear  bool
	Remove bool
	Users  []uuid.UUID
}

// maxMembers is how many members a group may have.
const maxMembers = 20_000

// maxAudited is how many members an entry of the audit log names; it counts all.
const maxAudited = 1000

const groupColumns = `
	g.id, g.display_name, coalesce(g.external_id, ''), g.version, g.created_at, g.updated_at`

func scanGroup(row pgx.CollectableRow) (g Group, err error) {
	err = row.Scan(&g.ID, &g.Name, &g.ExternalID, &g.Version, &g.CreatedAt, &g.UpdatedAt)
	return g, err
}

// addMembers fills in the members of groups.
func addMembers(ctx context.Context, tx pgx.Tx, p authz.Provisioner, groups []Group) error {
	places, ids := map[uuid.UUID]int{}, make([]uuid.UUID, len(groups))
	for i, g := range groups {
		places[g.ID], ids[i] = i, g.ID
	}
	rows, err := tx.Query(ctx, `
		SELECT m.group_id, s.user_id, s.user_name
		FROM scim_group_members m JOIN scim_users s ON s.org_id = m.org_id AND s.user_id = m.user_id
		WHERE m.org_id = $1 AND m.group_id = ANY($2) ORDER BY s.user_name`, p.OrgID, ids)
	if err != nil {
		return fmt.Errorf("members of groups: %w", err)
	}

	var group uuid.UUID
	var m Member
	_, err = pgx.ForEachRow(rows, []any{&group, &m.User, &m.UserName}, func() error {
		g := &groups[places[group]]
		g.Members = append(g.Members, m)
		return nil
	})
	return fault.Wrap(err, "members of groups")
}

// findGroup returns a group that the provisioner keeps without its members, and locks it.
func findGroup(ctx context.Context, tx pgx.Tx, p authz.Provisioner, id uuid.UUID) (Group, error) {
	rows, err := tx.Query(ctx, `
		SELECT `+groupColumns+` FROM scim_groups g
		WHERE g.org_id = $1 AND g.issuer = $2 AND g.id = $3 FOR UPDATE`, p.OrgID, p.Issuer, id)
	if err != nil {
		return Group{}, fmt.Errorf("find group: %w", err)
	}
	g, err := pgx.CollectExactlyOneRow(rows, scanGroup)
	if errNoRows(err) {
		return Group{}, fault.New(fault.NotFound, "there is no group %s", id)
	}
	return g, fault.Wrap(err, "find group")
}

// GetGroup returns a group that the provisioner keeps.
func (id *Identity) GetGroup(ctx context.Context, p authz.Provisioner, group uuid.UUID, withMembers bool) (Group,
	error) {
	one, _, err := id.ListGroups(ctx, p, GroupFilter{ID: &group}, Window{Count: 1}, withMembers)
	if err == nil && len(one) == 0 {
		return Group{}, fault.New(fault.NotFound, "there is no group %s", group)
	}
	if err != nil {
		return Group{}, err
	}
	return one[0], nil
}

// CreateGroup makes a group with members, which the provisioner must keep.
func (id *Identity) CreateGroup(ctx context.Context, p authz.Provisioner, name, externalID string,
	users []uuid.UUID) (g Group, err error) {
	key, err := uuid.NewV7()
	if err != nil {
		return Group{}, err
	}

	err = pg.InOrgTx(ctx, id.Requests, p.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO scim_groups (id, org_id, issuer, display_name, external_id)
			VALUES ($1, $2, $3, $4, NULLIF($5, ''))`, key, p.OrgID, p.Issuer, name, externalID)
		if err != nil {
			return err
		}
		if err := changeMembers(ctx, tx, p, key, MemberChange{Users: users}); err != nil {
			return err
		}
		members, err := memberIDs(ctx, tx, p, key)
		if err != nil {
			return err
		}
		g, err = completeGroup(ctx, tx, p, key)
		if err != nil {
			return err
		}
		return authz.Audit(ctx, tx, p.Author(), "group.create", groupOf(key), map[string]any{
			"after": groupFacts(g), "added": audited(members), "members": len(members)})
	})
	return g, taken(err, "create group")
}

// completeGroup returns a group with its members.
func completeGroup(ctx context.Context, tx pgx.Tx, p authz.Provisioner, id uuid.UUID) (Group, error) {
	g, err := findGroup(ctx, tx, p, id)
	if err != nil {
		return Group{}, err
	}
	groups := []Group{g}
	err = addMembers(ctx, tx, p, groups)
	return groups[0], err
}

// ChangeGroup changes a group that the provisioner keeps. Who is a member no more has lost what the group gave at once.
// ifMatch is the header of that name.
func (id *Identity) ChangeGroup(ctx context.Context, p authz.Provisioner, group uuid.UUID, ifMatch string,
	c GroupChange) (g Group, err error) {
	err = pg.InOrgTx(ctx, id.Requests, p.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		before, err := findGroup(ctx, tx, p, group)
		if err != nil {
			return err
		}
		if err := rest.CheckIfMatch(ifMatch, before.ETag()); err != nil {
			return err
		}
		had, err := memberIDs(ctx, tx, p, group)
		if err != nil {
			return err
		}
		for _, m := range c.Members {
			if err := changeMembers(ctx, tx, p, group, m); err != nil {
				return err
			}
		}
		has, err := memberIDs(ctx, tx, p, group)
		if err != nil {
			return err
		}
		g, err = c.write(ctx, tx, p, before, had, has)
		return err
	})
	return g, taken(err, "change group")
}

// write writes down what has changed of a group, whose members had changed before. Nothing is written if nothing has.
func (c GroupChange) write(ctx context.Context, tx pgx.Tx, p authz.Provisioner, before Group, had, has []uuid.UUID) (
	Group, error) {
	after := before
	if c.Name != nil {
		after.Name = *c.Name
	}
	if c.ExternalID != nil {
		after.ExternalID = *c.ExternalID
	}
	added, removed := without(has, had), without(had, has)
	if after.Name == before.Name && after.ExternalID == before.ExternalID && len(added)+len(removed) == 0 {
		return completeGroup(ctx, tx, p, before.ID)
	}

	_, err := tx.Exec(ctx, `
		UPDATE scim_groups SET display_name = $3, external_id = NULLIF($4, ''), version = version + 1,
			updated_at = now()
		WHERE org_id = $1 AND id = $2`, p.OrgID, before.ID, after.Name, after.ExternalID)
	if err != nil {
		return Group{}, err
	}
	err = authz.Audit(ctx, tx, p.Author(), "group.change", groupOf(before.ID), map[string]any{
		"before": groupFacts(before), "after": groupFacts(after), "added": audited(added), "removed": audited(removed),
		"members_before": len(had), "members": len(has)})
	if err != nil {
		return Group{}, err
	}
	return completeGroup(ctx, tx, p, before.ID)
}

// changeMembers makes one change of members. Users whom the provisioner does not keep cannot be added.
func changeMembers(ctx context.Context, tx pgx.Tx, p authz.Provisioner, group uuid.UUID, c MemberChange) error {
	if c.Clear {
		_, err := tx.Exec(ctx, `DELETE FROM scim_group_members WHERE org_id = $1 AND group_id = $2`, p.OrgID, group)
		if err != nil {
			return fmt.Errorf("remove members: %w", err)
		}
	}
	if c.Remove {
		_, err := tx.Exec(ctx, `
			DELETE FROM scim_group_members WHERE org_id = $1 AND group_id = $2 AND user_id = ANY($3)`,
			p.OrgID, group, c.Users)
		return fault.Wrap(err, "remove members")
	}

	// The lock keeps the users until the group has them.
	rows, err := tx.Query(ctx, `
		SELECT user_id FROM scim_users
		WHERE org_id = $1 AND issuer = $2 AND user_id = ANY($3) ORDER BY user_id FOR KEY SHARE`,
		p.OrgID, p.Issuer, c.Users)
	if err != nil {
		return fmt.Errorf("add members: %w", err)
	}
	known, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("add members: %w", err)
	}
	if unknown := without(c.Users, known); len(unknown) > 0 {
		return fault.New(fault.Invalid, "there is no user %s to be a member", unknown[0]).
			WithHint("provision the user first; groups cannot be members")
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO scim_group_members (org_id, group_id, user_id) SELECT $1, $2, unnest($3::uuid[])
		ON CONFLICT DO NOTHING`, p.OrgID, group, known)
	return fault.Wrap(err, "add members")
}

// memberIDs returns the members of a group, or an error if there are too many.
func memberIDs(ctx context.Context, tx pgx.Tx, p authz.Provisioner, group uuid.UUID) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		SELECT user_id FROM scim_group_members WHERE org_id = $1 AND group_id = $2 ORDER BY user_id`, p.OrgID, group)
	if err != nil {
		return nil, fmt.Errorf("members of a group: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err == nil && len(ids) > maxMembers {
		return nil, fault.New(fault.TooLarge, "a group has at most %d members", maxMembers).
			WithHint("provision several groups; a rule may name them all")
	}
	return ids, fault.Wrap(err, "members of a group")
}

// DeleteGroup deletes a group that the provisioner keeps. Its members have lost what it gave at once.
func (id *Identity) DeleteGroup(ctx context.Context, p authz.Provisioner, group uuid.UUID, ifMatch string) error {
	err := pg.InOrgTx(ctx, id.Requests, p.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		before, err := findGroup(ctx, tx, p, group)
		if err != nil {
			return err
		}
		if err := rest.CheckIfMatch(ifMatch, before.ETag()); err != nil {
			return err
		}
		had, err := memberIDs(ctx, tx, p, group)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `DELETE FROM scim_groups WHERE org_id = $1 AND id = $2`, p.OrgID, group)
		if err != nil {
			return err
		}
		return authz.Audit(ctx, tx, p.Author(), "group.delete", groupOf(group), map[string]any{
			"before": groupFacts(before), "removed": audited(had), "members_before": len(had)})
	})
	return fault.Wrap(err, "delete group")
}

// groupOf returns how a group is written as an object of the audit log.
func groupOf(id uuid.UUID) string { return "group:" + id.String() }

// groupFacts is a group without its members, for the audit log.
func groupFacts(g Group) map[string]any {
	return map[string]any{"name": g.Name, "external_id": g.ExternalID}
}

// audited returns as many members as an entry of the audit log names.
func audited(users []uuid.UUID) []uuid.UUID { return users[:min(len(users), maxAudited)] }

// without returns the ids that are not among others.
func without(ids, others []uuid.UUID) []uuid.UUID {
	there := map[uuid.UUID]bool{}
	for _, id := range others {
		there[id] = true
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id uuid.UUID) bool { return there[id] })
}
