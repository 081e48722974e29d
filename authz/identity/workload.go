package identity

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
)

// bearers is the Authenticator of tokens of workloads.
type bearers struct{ *Identity }

// maxToken is the most bytes of a token that is looked into.
const maxToken = 16 << 10

// Authenticate returns the caller of a token of an issuer that an org trusts. Nothing is asked of an issuer that no
// rule names.
func (b bearers) Authenticate(r *http.Request) (authz.Caller, bool, error) {
	raw, ok := authz.Bearer(r)
	if !ok || strings.HasPrefix(raw, "dagctl_") || len(raw) > maxToken {
		return authz.Caller{}, false, nil
	}
	says, ok := peek(raw)
	if !ok {
		return authz.Caller{}, false, nil
	}
	trusting, err := b.trusting(r.Context(), says)
	if err != nil || len(trusting) == 0 {
		return authz.Caller{}, false, err
	}

	org := trusting[0].org
	claims, err := b.issuers.get(says.Issuer).verify(r.Context(), b.Audience(org.Slug), raw)
	if err != nil {
		return authz.Caller{}, false, err
	}
	if err := shortLived(claims, time.Now()); err != nil {
		return authz.Caller{}, false, err
	}
	caller, ok := admitWorkload(org, trusting, says.Issuer, claims)
	if !ok {
		return authz.Caller{}, false, badToken()
	}
	return caller, true, nil
}

// longest is how long the token of a workload may last: what is kept for longer is a stored secret.
const longest = 24 * time.Hour

// shortLived refuses the claims of a token that lasts too long, from when it was issued on, or from now on if it does
// not say.
func shortLived(claims Claims, now time.Time) error {
	issued, ok := claims.moment("iat")
	if !ok {
		issued = now
	}
	ends, ok := claims.moment("exp")
	if lasts := ends.Sub(issued); !ok || lasts > longest+leeway {
		return fault.New(fault.Unauthenticated, "the token lasts %s: %s is the most", lasts.Round(time.Minute),
			longest).
			WithHint("have its issuer make one for the job alone, or make a service token: `dagctl tokens create`")
	}
	return nil
}

// trustRule is a rule about workloads with its org.
type trustRule struct {
	org    authz.Org
	name   string
	claims Conditions
	role   string
	grants []string
	roles  []string
}

// trusting returns the rules of the one org that a token names as its audience. A token for several is for none:
// whoever gets it in one could use it in another.
func (b bearers) trusting(ctx context.Context, says named) ([]trustRule, error) {
	if len(says.Audience) != 1 || b.BaseURL == "" {
		return nil, nil
	}
	slug, ok := strings.CutPrefix(says.Audience[0], b.BaseURL+"/")
	if !ok {
		return nil, nil
	}
	rows, err := b.Owner.Query(ctx, `
		SELECT o.id, o.slug, r.name, r.claims, r.role, r.grants, r.org_roles
		FROM trust_rules r JOIN orgs o ON o.id = r.org_id
		WHERE r.issuer = $1 AND r.kind = 'workload' AND o.slug = $2 ORDER BY r.name`, says.Issuer, slug)
	if err != nil {
		return nil, fmt.Errorf("rules of issuer %s: %w", says.Issuer, err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r trustRule, err error) {
		err = row.Scan(&r.org.ID, &r.org.Slug, &r.name, &r.claims, &r.role, &r.grants, &r.roles)
		return r, err
	})
}

// admitWorkload returns the caller that verified claims make by the rules of an org. ok is false if they meet none.
func admitWorkload(org authz.Org, rules []trustRule, issuer string, claims Claims) (c authz.Caller, ok bool) {
	// Anybody's change runs on such an event, in the name of the repository that it is proposed to.
	if isGitHub(issuer) && strings.HasPrefix(claims.text("event_name"), "pull_request") {
		return c, false
	}
	var roles, grants []string
	for _, r := range rules {
		if !r.claims.match(claims.withEmail(false)) {
			continue
		}
		if !ok {
			c = authz.Caller{OrgID: org.ID, OrgSlug: org.Slug, Actor: "workload:" + r.name,
				Name: short(claims.text("sub"))}
		}
		c.Rules = append(c.Rules, r.name)
		ok, roles, grants = true, append(roles, r.role), append(grants, r.grants...)
		c.OrgRoles = union(c.OrgRoles, r.roles)
	}

	c.Role, c.Grants = authz.Highest(roles), authz.ParseGrants(grants)
	if ends, there := claims.moment("exp"); there {
		c.ExpiresAt = ends
	}
	return c, ok
}

// union returns what is in either of two lists, sorted.
func union(a, b []string) []string {
	all := append(slices.Clone(a), b...)
	slices.Sort(all)
	return slices.Compact(all)
}
