package identity

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// Profile is what an identity provider says of a user beside its names.
type Profile struct {
	DisplayName string  `json:"display_name,omitempty"`
	FullName    string  `json:"full_name,omitempty"`
	GivenName   string  `json:"given_name,omitempty"`
	FamilyName  string  `json:"family_name,omitempty"`
	Emails      []Email `json:"emails,omitempty"`
}

// Email is an e-mail address of a user.
type Email struct {
	Value   string `json:"value"`
	Type    string `json:"type,omitempty"` // such as work
	Primary bool   `json:"primary,omitempty"`
	Display string `json:"display,omitempty"`
}

// Account is a user as the identity provider describes it that keeps it.
type Account struct {
	UserName   string  `json:"user_name"` // unique at the issuer, whatever its case
	ExternalID string  `json:"external_id,omitempty"`
	Active     *bool   `json:"active"` // nil in what is to be written: as it was, or true
	Profile    Profile `json:"profile"`
}

// Provisioned is a user that an identity provider keeps.
type Provisioned struct {
	ID uuid.UUID
	Account
	Groups    []GroupName // which the user is a member of
	Version   int64
	CreatedAt time.Time
	UpdatedAt time.Time
}

// GroupName names a group.
type GroupName struct {
	ID   uuid.UUID `json:"id"`
	Name string    `json:"name"`
}

// ETag returns what changes with every change of the user.
func (u Provisioned) ETag() string {
	state := "on"
	if u.Active != nil && !*u.Active {
		state = "off"
	}
	return fmt.Sprintf(`W/"%d-%s"`, u.Version, state)
}

// email returns the address by which a sign-in is matched: the primary one, or that of work, or the first; without any,
// the user's name if it is one.
func (a Account) email() string {
	emails := a.Profile.Emails
	for _, better := range []func(Email) bool{
		func(e Email) bool { return e.Primary },
		func(e Email) bool { return strings.EqualFold(e.Type, "work") },
		func(Email) bool { return true },
	} {
		if i := slices.IndexFunc(emails, better); i >= 0 {
			return lowerASCII(emails[i].Value)
		}
	}
	if IsEmail(a.UserName) {
		return lowerASCII(a.UserName)
	}
	return ""
}

// name returns how people see the user.
func (a Account) name() string {
	for _, name := range []string{a.Profile.DisplayName, a.Profile.FullName,
		strings.TrimSpace(a.Profile.GivenName + " " + a.Profile.FamilyName)} {
		if name != "" {
			return short(name)
		}
	}
	return ""
}

// subject returns who the user is at the issuer; empty: the first sign-in tells. It refuses an account that nobody
// could ever sign in to.
func (a Account) subject(p authz.Provisioner) (string, error) {
	subject := ""
	switch p.SubjectFrom {
	case authz.FromExternalID:
		subject = a.ExternalID
	case authz.FromUserName:
		subject = a.UserName
	}

	switch {
	case p.SubjectFrom != authz.FromSignIn && (subject == "" || len(subject) > maxSubject):
		return "", fault.New(fault.Invalid, "%s is the user's subject at %s: it needs 1 to %d bytes", p.SubjectFrom,
			p.Issuer, maxSubject)
	case p.SubjectFrom == authz.FromSignIn && a.email() == "":
		return "", fault.New(fault.Invalid, "the user needs an e-mail address, by which the first sign-in is matched").
			WithHint("map emails or an address as userName, or make the token with --subject-from")
	}
	return subject, nil
}

// provisionedColumns is what scanProvisioned scans, over scim_users s and users u.
const provisionedColumns = `
	s.user_id, s.user_name, coalesce(s.external_id, ''), u.disabled_at IS NULL, s.profile,
	ARRAY(SELECT jsonb_build_object('id', g.id, 'name', g.display_name) FROM scim_group_members m
		JOIN scim_groups g ON g.id = m.group_id WHERE m.user_id = s.user_id ORDER BY g.display_name),
	s.version, s.created_at, s.updated_at`

func scanProvisioned(row pgx.CollectableRow) (u Provisioned, err error) {
	err = row.Scan(&u.ID, &u.UserName, &u.ExternalID, &u.Active, &u.Profile, &u.Groups, &u.Version, &u.CreatedAt,
		&u.UpdatedAt)
	return u, err
}

// findProvisioned returns a user that the provisioner keeps, and locks it.
func findProvisioned(ctx context.Context, tx pgx.Tx, p authz.Provisioner, id uuid.UUID) (Provisioned, error) {
	rows, err := tx.Query(ctx, `
		SELECT `+provisionedColumns+`
		FROM scim_users s JOIN users u ON u.org_id = s.org_id AND u.id = s.user_id
		WHERE s.org_id = $1 AND s.issuer = $2 AND s.user_id = $3 FOR UPDATE OF s, u`, p.OrgID, p.Issuer, id)
	if err != nil {
		return Provisioned{}, fmt.Errorf("find provisioned user: %w", err)
	}
	u, err := pgx.CollectExactlyOneRow(rows, scanProvisioned)
	if errNoRows(err) {
		return Provisioned{}, fault.New(fault.NotFound, "there is no user %s", id)
	}
	return u, fault.Wrap(err, "find provisioned user")
}

// GetProvisioned returns a user that the provisioner keeps.
func (id *Identity) GetProvisioned(ctx context.Context, p authz.Provisioner, user uuid.UUID) (u Provisioned,
	err error) {
	one, _, err := id.ListProvisioned(ctx, p, AccountFilter{ID: &user}, Window{Count: 1})
	if err == nil && len(one) == 0 {
		return u, fault.New(fault.NotFound, "there is no user %s", user)
	}
	if err != nil {
		return u, err
	}
	return one[0], nil
}

// Provision makes a user of the provisioner's org. One whom the org has at the issuer already, by an invitation or a
// sign-in, is taken over with what an admin gave it. Invitations to more than the token gives are refused.
func (id *Identity) Provision(ctx context.Context, p authz.Provisioner, a Account) (u Provisioned, err error) {
	if !id.serves(p.Issuer, p.OrgSlug) {
		return u, fault.New(fault.Forbidden, "%s is no provider of this server, so nobody could sign in", p.Issuer).
			WithHint("an administrator of the server adds it to identity.providers, or an admin of the org makes a " +
				"token with another issuer")
	}
	subject, err := a.subject(p)
	if err != nil {
		return u, err
	}

	asked := func() any { return a }
	err = id.asProvider(ctx, p, "user.provision", asked, func(ctx context.Context, tx pgx.Tx) error {
		u, err = provisionIn(ctx, tx, p, a, subject)
		return err
	})
	return u, taken(err, "provision "+a.UserName)
}

func provisionIn(ctx context.Context, tx pgx.Tx, p authz.Provisioner, a Account, subject string) (Provisioned, error) {
	key, before, err := adopt(ctx, tx, p, a, subject)
	if err != nil {
		return Provisioned{}, err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO scim_users (user_id, org_id, issuer, user_name, external_id, profile)
		VALUES ($1, $2, $3, $4, NULLIF($5, ''), $6)`, key, p.OrgID, p.Issuer, a.UserName, a.ExternalID, a.Profile)
	if err != nil {
		return Provisioned{}, err
	}
	if err := setActive(ctx, tx, p, key, a.Active == nil || *a.Active); err != nil {
		return Provisioned{}, err
	}

	after, err := findUser(ctx, tx, p.OrgID, key.String())
	if err != nil {
		return Provisioned{}, err
	}
	detail := map[string]any{"after": after, "account": a}
	if before != nil {
		detail["before"] = before
	}
	if err := authz.Audit(ctx, tx, p.Author(), "user.provision", userOf(key), detail); err != nil {
		return Provisioned{}, err
	}
	return findProvisioned(ctx, tx, p, key)
}

// adopt returns the user of an account, with what it was before; it makes one if the org has none at the issuer.
func adopt(ctx context.Context, tx pgx.Tx, p authz.Provisioner, a Account, subject string) (key uuid.UUID,
	before *User, err error) {
	email := a.email()
	err = tx.QueryRow(ctx, `
		SELECT u.id FROM users u
		WHERE u.org_id = $1 AND u.issuer = $2 AND (u.external_id = $3 OR $4 <> '' AND lower(u.email COLLATE "C") = $4
			AND (u.external_id IS NULL OR $3 = ''))
		  AND NOT EXISTS (SELECT FROM scim_users s WHERE s.org_id = u.org_id AND s.user_id = u.id)
		ORDER BY u.external_id IS NOT DISTINCT FROM $3 DESC, u.disabled_at IS NULL DESC, u.created_at LIMIT 1
		FOR UPDATE`, p.OrgID, p.Issuer, subject, email).Scan(&key)
	if errNoRows(err) {
		err = tx.QueryRow(ctx, `
			INSERT INTO users (org_id, issuer, external_id, email, display_name, role, created_by)
			VALUES ($1, $2, NULLIF($3, ''), NULLIF($4, ''), NULLIF($5, ''), $6, $7) RETURNING id`,
			p.OrgID, p.Issuer, subject, email, a.name(), p.Role, p.Author().Actor).Scan(&key)
		return key, nil, err
	}
	if err != nil {
		return key, nil, err
	}

	was, err := findUser(ctx, tx, p.OrgID, key.String())
	if err != nil {
		return key, nil, err
	}
	if was.Subject == "" {
		if err := guardRights(p, was, "take over the invitation"); err != nil {
			return key, nil, err
		}
	}
	_, err = tx.Exec(ctx, `
		UPDATE users SET role = coalesce(role, $3), external_id = coalesce(external_id, NULLIF($4, '')),
			invited_until = NULL, email = coalesce(NULLIF($5, ''), email),
			display_name = coalesce(NULLIF($6, ''), display_name)
		WHERE org_id = $1 AND id = $2`, p.OrgID, key, p.Role, subject, email, a.name())
	return key, &was, err
}

// setActive lets a user in, or keeps the user out everywhere from the commit of the transaction on. It does not let in
// whom an admin has disabled.
func setActive(ctx context.Context, tx pgx.Tx, p authz.Provisioner, user uuid.UUID, active bool) error {
	statement := `
		UPDATE users SET deprovisioned = deprovisioned OR disabled_at IS NULL, disabled_at = coalesce(disabled_at,
			now())
		WHERE org_id = $1 AND id = $2`
	if active {
		statement = `
			UPDATE users SET disabled_at = CASE WHEN deprovisioned THEN NULL ELSE disabled_at END, deprovisioned = false
			WHERE org_id = $1 AND id = $2`
	}
	if _, err := tx.Exec(ctx, statement, p.OrgID, user); err != nil {
		return fmt.Errorf("set a user active: %w", err)
	}
	if active {
		return nil
	}
	return revokeSessions(ctx, tx, p.Author(), user, nil)
}

// Reprovision changes a user that the provisioner keeps. The change gets the user as it is, locked, and returns what it
// is to be; ifMatch is the header of that name.
func (id *Identity) Reprovision(ctx context.Context, p authz.Provisioner, user uuid.UUID, ifMatch string,
	change func(Account) (Account, error)) (u Provisioned, err error) {
	var next Account
	asked := func() any { return next }
	err = id.asProvider(ctx, p, "user.change", asked, func(ctx context.Context, tx pgx.Tx) error {
		before, err := findProvisioned(ctx, tx, p, user)
		if err != nil {
			return err
		}
		if err := rest.CheckIfMatch(ifMatch, before.ETag()); err != nil {
			return err
		}
		if next, err = change(before.Account); err != nil {
			return err
		}
		if next.Active == nil {
			next.Active = before.Active
		}
		if u = before; reflect.DeepEqual(next, before.Account) {
			return nil
		}

		if err := rewrite(ctx, tx, p, before, next); err != nil {
			return err
		}
		if u, err = findProvisioned(ctx, tx, p, user); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, p.Author(), "user.change", userOf(user),
			map[string]any{"before": before.Account, "after": u.Account})
	})
	return u, taken(err, "change user")
}

// rewrite makes a user what its account says. It does not make somebody else of a user who outranks the token.
func rewrite(ctx context.Context, tx pgx.Tx, p authz.Provisioner, before Provisioned, next Account) error {
	subject, err := next.subject(p)
	if err != nil {
		return err
	}
	is, err := findUser(ctx, tx, p.OrgID, before.ID.String())
	if err != nil {
		return err
	}
	another := subject != "" && subject != is.Subject
	if another || is.Subject == "" && next.email() != before.email() {
		if err := guardRights(p, is, "say that it is somebody else"); err != nil {
			return err
		}
	}
	_, err = tx.Exec(ctx, `
		UPDATE scim_users SET user_name = $3, external_id = NULLIF($4, ''), profile = $5, version = version + 1,
			updated_at = now()
		WHERE org_id = $1 AND user_id = $2`, p.OrgID, before.ID, next.UserName, next.ExternalID, next.Profile)
	if err != nil {
		return err
	}

	// Whoever is signed in as the former subject may be somebody else. The address of a known user is the one that the
	// issuer vouched for, until the provider names another.
	_, err = tx.Exec(ctx, `
		UPDATE users SET external_id = coalesce(NULLIF($3, ''), external_id), display_name = NULLIF($5, ''),
			email = CASE WHEN $4 = $6 THEN email ELSE NULLIF($4, '') END,
			rules = CASE WHEN $7 THEN '{}' ELSE rules END
		WHERE org_id = $1 AND id = $2`,
		p.OrgID, before.ID, subject, next.email(), next.name(), before.email(), another)
	if err != nil {
		return err
	}
	if another {
		if err := revokeSessions(ctx, tx, p.Author(), before.ID, nil); err != nil {
			return err
		}
	}
	if *next.Active == *before.Active {
		return nil
	}
	return setActive(ctx, tx, p, before.ID, *next.Active)
}

// Deprovision disables a user and ends what the provisioner keeps of it. The user stays in the org, and out, so that no
// rule lets the same person in again; Provision takes it over.
func (id *Identity) Deprovision(ctx context.Context, p authz.Provisioner, user uuid.UUID, ifMatch string) error {
	err := pg.InOrgTx(ctx, id.Requests, p.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		// Whoever changes a group locks it before its members.
		_, err := tx.Exec(ctx, `
			SELECT FROM scim_groups
			WHERE org_id = $1 AND id IN (SELECT group_id FROM scim_group_members WHERE org_id = $1 AND user_id = $2)
			ORDER BY id FOR UPDATE`, p.OrgID, user)
		if err != nil {
			return err
		}
		before, err := findProvisioned(ctx, tx, p, user)
		if err != nil {
			return err
		}
		if err := rest.CheckIfMatch(ifMatch, before.ETag()); err != nil {
			return err
		}
		if err := setActive(ctx, tx, p, user, false); err != nil {
			return err
		}

		_, err = tx.Exec(ctx, `
			UPDATE scim_groups SET version = version + 1, updated_at = now()
			WHERE org_id = $1 AND id IN (SELECT group_id FROM scim_group_members WHERE org_id = $1 AND user_id = $2)`,
			p.OrgID, user)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `DELETE FROM scim_users WHERE org_id = $1 AND user_id = $2`, p.OrgID, user)
		if err != nil {
			return err
		}
		return authz.Audit(ctx, tx, p.Author(), "user.deprovision", userOf(user),
			map[string]any{"before": before.Account, "groups": before.Groups})
	})
	return fault.Wrap(err, "deprovision user")
}

// taken makes a Conflict fault of a violated unique key.
func taken(err error, doing string) error {
	if isDuplicate(err) {
		return fault.New(fault.Conflict, "another user or group of the provider has that name, subject or address")
	}
	return fault.Wrap(err, doing)
}
