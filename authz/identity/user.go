package identity

import (
	"context"
	"errors"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// Local is the issuer of users whom no provider knows: an admin's one-time links sign them in.
const Local = "local"

// User is a person in the caller's org.
type User struct {
	ID           uuid.UUID     `json:"id" format:"uuid"`
	Issuer       string        `json:"issuer" doc:"The provider that vouches for the user; local: one-time links of admins do"`
	Subject      string        `json:"subject,omitempty" doc:"Who the user is at the issuer; empty until the first sign-in of one who is invited"`
	Email        string        `json:"email,omitempty"`
	Name         string        `json:"name,omitempty"`
	Role         authz.Role    `json:"role,omitempty" enum:"reader,proposer,writer,admin" doc:"Empty: what the rules give that matched the sign-in"`
	Grants       []authz.Grant `json:"grants,omitempty" doc:"Roles on some DAGs besides"`
	OrgRoles     []string      `json:"org_roles,omitempty" doc:"Visibility groups, each as role:SLUG"`
	CreatedBy    string        `json:"created_by"`
	CreatedAt    time.Time     `json:"created_at"`
	InvitedUntil *time.Time    `json:"invited_until,omitempty"`
	LastSeenAt   *time.Time    `json:"last_seen_at,omitempty"`
	DisabledAt   *time.Time    `json:"disabled_at,omitempty"`
	Sessions     int           `json:"sessions" doc:"How many have not ended"`
}

// State says in a word how things are with a user.
func (u User) State(now time.Time) string {
	switch {
	case u.DisabledAt != nil:
		return "disabled"
	case u.Subject != "":
		return "active"
	case u.InvitedUntil != nil && u.InvitedUntil.Before(now):
		return "lapsed"
	}
	return "invited"
}

// NewUser describes a user to invite: whoever signs in at the issuer with the verified e-mail address is it.
type NewUser struct {
	Email    string        `json:"email" maxLength:"254" example:"ana@example.com"`
	Name     string        `json:"name,omitempty" maxLength:"200"`
	Issuer   string        `json:"issuer,omitempty" maxLength:"500" doc:"Of a provider of the server; local: no provider, but one-time links. Default: the server's only provider, or else local"`
	Role     authz.Role    `json:"role" enum:"reader,proposer,writer,admin"`
	Grants   []authz.Grant `json:"grants,omitempty" maxItems:"100" doc:"Roles on some DAGs besides"`
	OrgRoles []string      `json:"org_roles,omitempty" maxItems:"100" doc:"Visibility groups, each as role:SLUG"`
	Days     int           `json:"days,omitempty" minimum:"1" maximum:"365" doc:"How long the invitation holds. Default: 14"`
}

const defaultInvitation = 14 // days

// invite completes a NewUser, or returns an error that lists everything that is wrong.
func (id *Identity) invite(n NewUser, org string) (NewUser, error) {
	var problems []fault.Problem
	add := func(field, format string, args ...any) {
		problems = append(problems, fault.Problem{Location: field, Message: fmt.Sprintf(format, args...)})
	}
	if !IsEmail(n.Email) {
		add("email", "%q is not an e-mail address", n.Email)
	}
	names := id.Issuers(org)
	switch {
	case n.Issuer == "" && len(names) == 1:
		n.Issuer = names[0]
	case n.Issuer == "" && len(names) == 0:
		n.Issuer = Local
	case n.Issuer == "":
		add("issuer", "the server has several providers: name the issuer")
	case n.Issuer != Local && !slices.Contains(names, n.Issuer):
		add("issuer", "%q is no provider of this server at which people of %s sign in", n.Issuer, org)
	}

	if n.Days == 0 {
		n.Days = defaultInvitation
	}
	n.Email = lowerASCII(n.Email)
	problems = append(problems, authz.CheckRoles(n.Role, n.Grants, n.OrgRoles)...)
	if len(problems) == 0 {
		return n, nil
	}
	return n, &fault.Error{Kind: fault.Invalid, Message: "the user cannot be invited: " + problems[0].Message,
		Problems: problems}
}

// IsEmail reports whether a text is an e-mail address, and nothing beside one.
func IsEmail(text string) bool {
	address, err := mail.ParseAddress(text)
	return err == nil && address.Address == text && strings.Contains(text, "@")
}

// Issuers returns the issuers of the providers at which the people of an org sign in, sorted.
func (id *Identity) Issuers(org string) (issuers []string) {
	for _, p := range id.providers {
		if len(p.Orgs) == 0 || slices.Contains(p.Orgs, org) {
			issuers = append(issuers, p.Issuer)
		}
	}
	slices.Sort(issuers)
	return issuers
}

// serves reports whether an issuer is that of a provider at which the people of an org sign in.
func (id *Identity) serves(issuer, org string) bool { return slices.Contains(id.Issuers(org), issuer) }

// userColumns is what scanUser scans, over users u.
const userColumns = `
	u.id, u.issuer, coalesce(u.external_id, ''), coalesce(u.email, ''), coalesce(u.display_name, ''), coalesce(u.role,
		''),
	u.grants, ARRAY(SELECT 'role:' || r.slug FROM org_role_memberships m JOIN org_roles r ON r.id = m.role_id
		WHERE m.user_id = u.id ORDER BY r.slug),
	u.created_by, u.created_at, u.invited_until, u.last_seen_at, u.disabled_at,
	(SELECT count(*) FROM sessions s WHERE s.user_id = u.id AND s.revoked_at IS NULL AND s.expires_at > now())`

func scanUser(row pgx.CollectableRow) (u User, err error) {
	var grants []string
	err = row.Scan(&u.ID, &u.Issuer, &u.Subject, &u.Email, &u.Name, &u.Role, &grants, &u.OrgRoles, &u.CreatedBy,
		&u.CreatedAt, &u.InvitedUntil, &u.LastSeenAt, &u.DisabledAt, &u.Sessions)
	u.Grants = authz.ParseGrants(grants)
	return u, err
}

// Invite makes a user of the caller's org, who becomes active with the first sign-in.
func (id *Identity) Invite(ctx context.Context, caller authz.Caller, n NewUser) (u User, err error) {
	if n, err = id.invite(n, caller.OrgSlug); err != nil {
		return User{}, err
	}
	err = pg.InOrgTx(ctx, id.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		u, err = inviteIn(ctx, tx, caller, n)
		return err
	})
	return u, fault.Wrap(err, "invite "+n.Email)
}

func inviteIn(ctx context.Context, tx pgx.Tx, caller authz.Caller, n NewUser) (u User, err error) {
	_, err = tx.Exec(ctx, `
		DELETE FROM users
		WHERE org_id = $1 AND issuer = $2 AND lower(email COLLATE "C") = $3 AND external_id IS NULL AND invited_until < now()`,
		caller.OrgID, n.Issuer, n.Email)
	if err != nil {
		return User{}, err
	}
	var there bool
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM users WHERE org_id = $1 AND issuer = $2 AND lower(email COLLATE "C") = $3)`,
		caller.OrgID, n.Issuer, n.Email).Scan(&there)
	if err != nil {
		return User{}, err
	}

	// Whom links sign in needs no provider to say who it is.
	var subject, until any
	if n.Issuer == Local {
		subject = n.Email
	} else {
		until = time.Duration(n.Days) * 24 * time.Hour
	}
	var user uuid.UUID
	if !there {
		err = tx.QueryRow(ctx, `
			INSERT INTO users (org_id, issuer, external_id, email, display_name, role, grants, created_by,
				invited_until)
			VALUES ($1, $2, $3, $4, NULLIF($5, ''), $6, $7, $8, now() + $9::interval) RETURNING id`,
			caller.OrgID, n.Issuer, subject, n.Email, short(n.Name), n.Role, authz.GrantTexts(n.Grants), caller.Actor,
			until).Scan(&user)
	}
	if there || isDuplicate(err) {
		return User{}, fault.New(fault.Conflict, "the org has a user %s at that issuer already", n.Email).
			WithHint("`dagctl users set %s` changes what the user may do, `dagctl users remove %[1]s` ends it",
				n.Email)
	}
	if err != nil {
		return User{}, err
	}

	if err := setOrgRoles(ctx, tx, caller.OrgID, user, n.OrgRoles); err != nil {
		return User{}, err
	}
	if u, err = findUser(ctx, tx, caller.OrgID, user.String()); err != nil {
		return User{}, err
	}
	return u, authz.Audit(ctx, tx, caller, "user.invite", userOf(user), map[string]any{"after": u})
}

// isDuplicate reports whether a statement failed because of a unique key.
func isDuplicate(err error) bool {
	var said *pgconn.PgError
	return errors.As(err, &said) && said.Code == "23505"
}

// setOrgRoles makes a user a member of just these org roles.
func setOrgRoles(ctx context.Context, tx pgx.Tx, org, user uuid.UUID, roles []string) error {
	if err := authz.RequireOrgRoles(ctx, tx, org, roles); err != nil {
		return err
	}
	if roles == nil {
		roles = []string{}
	}
	_, err := tx.Exec(ctx, `
		WITH wanted AS (SELECT id FROM org_roles WHERE org_id = $1 AND 'role:' || slug = ANY($3)),
		gone AS (DELETE FROM org_role_memberships
			WHERE org_id = $1 AND user_id = $2 AND role_id NOT IN (SELECT id FROM wanted))
		INSERT INTO org_role_memberships (org_id, role_id, user_id) SELECT $1, id, $2 FROM wanted
		ON CONFLICT DO NOTHING`, org, user, roles)
	if err != nil {
		return fmt.Errorf("set org roles of a user: %w", err)
	}
	return nil
}

// findUser returns the user with an id, or with an e-mail address that only one has.
func findUser(ctx context.Context, tx pgx.Tx, org uuid.UUID, name string) (User, error) {
	key, err := uuid.Parse(name)
	if err != nil {
		key = uuid.Nil
	}

	rows, err := tx.Query(ctx, `
		SELECT `+userColumns+` FROM users u WHERE u.org_id = $1 AND (u.id = $2 OR lower(u.email COLLATE "C") = lower($3 COLLATE "C")) LIMIT 2`,
		org, key, name)
	if err != nil {
		return User{}, fmt.Errorf("find user: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanUser)
	switch {
	case err != nil:
		return User{}, fmt.Errorf("find user: %w", err)
	case len(found) == 0:
		return User{}, fault.New(fault.NotFound, "there is no user %q", name).WithHint("`dagctl users list` lists them")
	case len(found) > 1:
		return User{}, fault.New(fault.Conflict, "several users have the address %s", name).
			WithHint("name the user by its id: `dagctl users list -o json` shows them")
	}
	return found[0], nil
}

// GetUser returns a user of the caller's org, by id or e-mail address.
func (id *Identity) GetUser(ctx context.Context, caller authz.Caller, name string) (u User, err error) {
	err = pg.InOrgTx(ctx, id.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		u, err = findUser(ctx, tx, caller.OrgID, name)
		return err
	})
	return u, err
}

// userPosition is where a page of users ends.
type userPosition struct {
	Email string    `json:"email"`
	ID    uuid.UUID `json:"id"`
}

// ListUsers returns the users of the caller's org by e-mail address.
func (id *Identity) ListUsers(ctx context.Context, caller authz.Caller, page rest.PageInput) (list rest.List[User],
	err error) {
	var after userPosition
	if _, err := page.After(&after); err != nil {
		return list, err
	}

	err = pg.InOrgTx(ctx, id.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT `+userColumns+` FROM users u
			WHERE u.org_id = $1 AND (coalesce(u.email, ''), u.id) > ($2, $3)
			ORDER BY coalesce(u.email, ''), u.id LIMIT $4`, caller.OrgID, after.Email, after.ID, page.Limit+1)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, scanUser)
		if err != nil {
			return err
		}
		list, err = rest.NewList(found, page.Limit, func(u User) any { return userPosition{u.Email, u.ID} })
		return err
	})
	return list, fault.Wrap(err, "list users")
}

// UserChange says what to change of a user; what is nil stays.
type UserChange struct {
	Role     *authz.Role    `json:"role,omitempty" enum:"reader,proposer,writer,admin"`
	Grants   *[]authz.Grant `json:"grants,omitempty" maxItems:"100" doc:"All of them: those left out are taken away"`
	OrgRoles *[]string      `json:"org_roles,omitempty" maxItems:"100" doc:"All of them: those left out are taken away"`
	Disabled *bool          `json:"disabled,omitempty" doc:"true: the user is out everywhere at once"`
}

// ChangeUser changes what a user of the caller's org may do. Nobody disables themselves.
func (id *Identity) ChangeUser(ctx context.Context, caller authz.Caller, name string, c UserChange) (u User,
	err error) {
	err = pg.InOrgTx(ctx, id.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var before User
		err := authz.ChangeAdmins(ctx, tx, caller, func() (err error) {
			if before, err = findUser(ctx, tx, caller.OrgID, name); err != nil {
				return err
			}
			return c.apply(ctx, tx, caller, before)
		})
		if err != nil {
			return err
		}
		if u, err = findUser(ctx, tx, caller.OrgID, before.ID.String()); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "user.change", userOf(u.ID), map[string]any{"before": before, "after": u})
	})
	return u, fault.Wrap(err, "change user")
}

func (c UserChange) apply(ctx context.Context, tx pgx.Tx, caller authz.Caller, u User) error {
	role, grants := u.Role, u.Grants
	if c.Role != nil {
		role = *c.Role
	}
	if c.Grants != nil {
		grants = *c.Grants
	}
	checked := role
	if checked == "" {
		checked = authz.RoleReader // the user has what rules give
	}
	if problems := authz.CheckRoles(checked, grants, nil); len(problems) > 0 {
		return &fault.Error{Kind: fault.Invalid, Message: problems[0].Message, Problems: problems}
	}
	if c.Disabled != nil && *c.Disabled && caller.Actor == userOf(u.ID) {
		return fault.New(fault.Conflict, "you cannot disable yourself").WithHint("ask another admin")
	}

	if c.OrgRoles != nil {
		if err := setOrgRoles(ctx, tx, caller.OrgID, u.ID, *c.OrgRoles); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, `
		UPDATE users SET role = NULLIF($3, ''), grants = $4,
			disabled_at = CASE WHEN $5::boolean IS NULL THEN disabled_at WHEN $5 THEN coalesce(disabled_at, now()) END,
			deprovisioned = deprovisioned AND $5::boolean IS NULL
		WHERE org_id = $1 AND id = $2`, caller.OrgID, u.ID, role, authz.GrantTexts(grants), c.Disabled)
	if err != nil {
		return err
	}
	if c.Disabled == nil || !*c.Disabled {
		return nil
	}
	return revokeSessions(ctx, tx, caller, u.ID, nil)
}

// SignOutUser ends all sessions of a user of the caller's org.
func (id *Identity) SignOutUser(ctx context.Context, caller authz.Caller, name string) error {
	err := pg.InOrgTx(ctx, id.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		u, err := findUser(ctx, tx, caller.OrgID, name)
		if err != nil {
			return err
		}
		return revokeSessions(ctx, tx, caller, u.ID, nil)
	})
	return fault.Wrap(err, "sign a user out")
}

// RemoveUser removes a user of the caller's org with all sessions. A rule may admit the same person again; whoever must
// stay out is disabled instead.
func (id *Identity) RemoveUser(ctx context.Context, caller authz.Caller, name string) error {
	err := pg.InOrgTx(ctx, id.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var u User
		err := authz.ChangeAdmins(ctx, tx, caller, func() (err error) {
			if u, err = findUser(ctx, tx, caller.OrgID, name); err != nil {
				return err
			}
			if caller.Actor == userOf(u.ID) {
				return fault.New(fault.Conflict, "you cannot remove yourself").WithHint("ask another admin")
			}
			_, err = tx.Exec(ctx, `DELETE FROM users WHERE org_id = $1 AND id = $2`, caller.OrgID, u.ID)
			return err
		})
		if err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "user.remove", userOf(u.ID), map[string]any{"before": u})
	})
	return fault.Wrap(err, "remove user")
}
