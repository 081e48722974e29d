package identity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
)

// person is somebody for whom a provider, or the link of an admin, vouches.
type person struct {
	issuer, subject string
	email           string // verified; may be empty
	name            string
	provider        string   // in addresses; empty for a link
	orgs            []string // in which the provider's people may be; empty: in all
	claims          Claims   // as rules see them
}

// personOf returns whom the claims of a provider's token are about.
func personOf(p *provider, claims Claims) person {
	name := claims.text("name")
	if name == "" {
		name = claims.text("preferred_username")
	}
	return person{issuer: p.Issuer, subject: claims.text("sub"), email: claims.email(p.TrustEmail), name: short(name),
		provider: p.Name, orgs: p.Orgs, claims: claims.withEmail(p.TrustEmail)}
}

// short cuts a text that others wrote, and takes out what would show it, or what is around it, otherwise than it is
// written: control characters, ends of lines, and marks of the direction of writing.
func short(text string) string {
	const most = 200
	text = strings.ToValidUTF8(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r), unicode.In(r, unicode.Zl, unicode.Zp):
			return ' '
		case unicode.Is(unicode.Bidi_Control, r):
			return -1
		}
		return r
	}, text), "")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most])
	}
	return text
}

// place is an org in which a person may be: as a user whom it has, or as a new one whom its rules admit.
type place struct {
	org      authz.Org
	user     uuid.UUID // zero: not yet
	invited  bool      // the user waits for the first sign-in
	disabled bool
	member   bool // the user has a role of its own, whatever rules say
	seen     bool // the person has been there
	rules    []uuid.UUID
}

// places are where a person may be, the one used last first.
type places struct {
	open     []place
	disabled bool // the person is disabled in an org
}

// admitted returns those of the places in which a person may be. Who may be nowhere gets a Forbidden fault.
func admitted(all []place, p person) (places, error) {
	found := places{disabled: slices.ContainsFunc(all, func(at place) bool { return at.disabled })}
	found.open = slices.DeleteFunc(slices.Clone(all), func(at place) bool {
		return at.disabled || !at.member && len(at.rules) == 0 ||
			len(p.orgs) > 0 && !slices.Contains(p.orgs, at.org.Slug)
	})

	switch {
	case len(found.open) > 0:
		return found, nil
	case found.disabled:
		return places{}, fault.New(fault.Forbidden, "your user is disabled").WithHint("ask an admin of your org")
	}
	return places{}, fault.New(fault.Forbidden, "no org of this server has invited %s, nor a rule that admits you, "+
		"or the invitation has lapsed", p.who()).
		WithHint("ask an admin of your org: `dagctl users invite`, or `dagctl trust add` for a whole group")
}

// choose returns the place that a person wants to be in: the one of an org that is named, or else the one used last, or
// the only one. Otherwise the person is asked, and ok is false: no org gets anybody by inviting whom another has.
func (all places) choose(slug string) (at place, ok bool, err error) {
	if slug == "" {
		at = all.open[0]
		return at, !all.disabled && (at.seen || len(all.open) == 1), nil
	}
	i := slices.IndexFunc(all.open, func(at place) bool { return at.org.Slug == slug })
	if i < 0 {
		return place{}, false, fault.New(fault.Forbidden, "you are not in the org %s", slug).
			WithHint("leave out the org, or ask one of its admins")
	}
	return all.open[i], true, nil
}

// learn notes which rules match a person now, in every org that has the person as a user: what the others gave is taken
// away, also from sessions that there are.
func learn(ctx context.Context, tx pgx.Tx, all []place) error {
	for _, at := range all {
		if at.user == uuid.Nil || at.invited {
			continue
		}
		_, err := tx.Exec(ctx, `UPDATE users SET rules = coalesce($2::uuid[], '{}') WHERE id = $1`, at.user, at.rules)
		if err != nil {
			return fmt.Errorf("note the rules of a user: %w", err)
		}
	}
	return nil
}

// noteRefused records in each org that has the person as a user that a sign-in was refused.
func noteRefused(ctx context.Context, tx pgx.Tx, p person, all []place) error {
	for _, at := range all {
		if at.user == uuid.Nil {
			continue
		}
		as := authz.Caller{OrgID: at.org.ID, OrgSlug: at.org.Slug, Actor: userOf(at.user)}
		err := authz.AuditSignIn(ctx, tx, as, authz.Refused, map[string]any{"issuer": p.issuer,
			"disabled": at.disabled})
		if err != nil {
			return err
		}
	}
	return nil
}

// who names a person for the person.
func (p person) who() string {
	if p.email != "" {
		return p.email
	}
	return "you (your provider vouches for no e-mail address)"
}

func findPlaces(ctx context.Context, tx pgx.Tx, p person) ([]place, error) {
	// Uses idx_users_subject and idx_users_email. Who is a user needs no invitation.
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT ON (u.org_id) o.id, o.slug, o.name, u.id, u.external_id IS NULL, u.disabled_at IS NOT NULL,
			u.role IS NOT NULL, coalesce(u.last_seen_at, 'epoch'::timestamptz)
		FROM users u JOIN orgs o ON o.id = u.org_id
		WHERE u.issuer = $1 AND (u.external_id = $2
			OR u.external_id IS NULL AND $3 <> '' AND lower(u.email COLLATE "C") = $3
			   AND (u.invited_until IS NULL OR u.invited_until > now()))
		ORDER BY u.org_id, u.external_id IS NULL`, p.issuer, p.subject, p.email)
	if err != nil {
		return nil, fmt.Errorf("find users of a person: %w", err)
	}
	type used struct {
		place
		at time.Time // zero: never
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (u used, err error) {
		err = row.Scan(&u.org.ID, &u.org.Slug, &u.org.Name, &u.user, &u.invited, &u.disabled, &u.member, &u.at)
		u.seen = u.at.Unix() > 0
		return u, err
	})
	if err != nil {
		return nil, fmt.Errorf("find users of a person: %w", err)
	}

	slices.SortFunc(found, func(a, b used) int {
		if c := b.at.Compare(a.at); c != 0 {
			return c
		}
		return strings.Compare(a.org.Slug, b.org.Slug)
	})
	all := make([]place, len(found))
	for i, u := range found {
		all[i] = u.place
	}
	return addRules(ctx, tx, p, all)
}

// addRules adds to the places those whose rules the claims meet, and to each what the rules give.
func addRules(ctx context.Context, tx pgx.Tx, p person, all []place) ([]place, error) {
	rows, err := tx.Query(ctx, `
		SELECT o.id, o.slug, o.name, r.id, r.claims
		FROM trust_rules r JOIN orgs o ON o.id = r.org_id
		WHERE r.issuer = $1 AND r.kind = 'user' ORDER BY o.slug, r.name`, p.issuer)
	if err != nil {
		return nil, fmt.Errorf("rules of issuer %s: %w", p.issuer, err)
	}

	var (
		org        authz.Org
		rule       uuid.UUID
		conditions Conditions
	)
	_, err = pgx.ForEachRow(rows, []any{&org.ID, &org.Slug, &org.Name, &rule, &conditions}, func() error {
		if conditions.match(p.claims) {
			i := slices.IndexFunc(all, func(at place) bool { return at.org.ID == org.ID })
			if i < 0 {
				i, all = len(all), append(all, place{org: org})
			}
			all[i].rules = append(all[i].rules, rule)
		}
		conditions = nil // the next row's are decoded into a map of their own
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("rules of issuer %s: %w", p.issuer, err)
	}
	return all, nil
}

// settle makes the person a user of the org, or brings the user up to date.
func (at *place) settle(ctx context.Context, tx pgx.Tx, p person) error {
	if at.user == uuid.Nil {
		err := tx.QueryRow(ctx, `
			INSERT INTO users (org_id, issuer, external_id, email, display_name, role, created_by, rules)
			VALUES ($1, $2, $3, NULLIF($4, ''), NULLIF($5, ''), NULL, 'system', $6)
			ON CONFLICT (org_id, issuer, external_id) DO UPDATE SET email = EXCLUDED.email
			RETURNING id`, at.org.ID, p.issuer, p.subject, p.email, p.name, at.rules).Scan(&at.user)
		if err != nil {
			return fmt.Errorf("provision user: %w", err)
		}
		as := authz.Caller{OrgID: at.org.ID, OrgSlug: at.org.Slug, Actor: "system"}
		return authz.Audit(ctx, tx, as, "user.provision", userOf(at.user), map[string]any{"after": map[string]any{
			"issuer": p.issuer, "subject": p.subject, "email": p.email}})
	}

	// An e-mail address that the provider vouches for replaces the one that an admin wrote.
	tag, err := tx.Exec(ctx, `
		UPDATE users SET external_id = $3, invited_until = NULL, email = coalesce(NULLIF($4, ''), email),
			display_name = coalesce(NULLIF($5, ''), display_name), rules = coalesce($6::uuid[], '{}')
		WHERE id = $1 AND org_id = $2 AND disabled_at IS NULL AND (external_id = $3 OR external_id IS NULL)`,
		at.user, at.org.ID, p.subject, p.email, p.name, at.rules)
	if err != nil {
		return fmt.Errorf("update user: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return fault.New(fault.Conflict, "your user changed while you signed in").WithHint("sign in once more")
	}
	if at.invited {
		as := authz.Caller{OrgID: at.org.ID, OrgSlug: at.org.Slug, Actor: userOf(at.user)}
		return authz.Audit(ctx, tx, as, "user.accept", userOf(at.user), map[string]any{"after": map[string]any{
			"issuer": p.issuer, "subject": p.subject, "email": p.email}})
	}
	return nil
}

// userOf returns how a user is written as an actor, and as an object of the audit log.
func userOf(id uuid.UUID) string { return "user:" + id.String() }

// errNoRows reports whether a query found nothing.
func errNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }
