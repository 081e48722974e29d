package authz

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// Provisioner is an identity provider that a service token of kind scim authenticated. It keeps the users and groups of
// one issuer in one org, and can do nothing else: it has no role itself and is not a Caller.
type Provisioner struct {
	OrgID       uuid.UUID
	OrgSlug     string
	TokenName   string
	Issuer      string      // of its users, exactly as the ID tokens have it
	Role        Role        // of its users
	SubjectFrom SubjectFrom // where the subject of a user is found
	RequestID   string
}

// SubjectFrom names the attribute of SCIM that holds a user's subject at the issuer.
type SubjectFrom string

const (
	FromSignIn     SubjectFrom = "" // none does: the first sign-in with the verified e-mail address tells
	FromExternalID SubjectFrom = "externalId"
	FromUserName   SubjectFrom = "userName"
)

// Author returns a caller for the audit log and for conditions on the org. It has no role, so it may do nothing.
func (p Provisioner) Author() Caller {
	return Caller{OrgID: p.OrgID, OrgSlug: p.OrgSlug, Actor: "token:" + p.TokenName, RequestID: p.RequestID}
}

// Covers reports whether whoever has some rights may do no more than the users that the provisioner makes. Its role
// covers grants of the same role; only that of an admin covers org roles, which admins give themselves.
func (p Provisioner) Covers(role Role, grants []Grant, orgRoles []string) bool {
	if role != "" && !p.Role.atLeast(role) || len(orgRoles) > 0 && p.Role != RoleAdmin {
		return false
	}
	return !slices.ContainsFunc(grants, func(g Grant) bool { return !p.Role.atLeast(g.Role) })
}

// validateSCIM checks a token of kind scim.
func (n NewToken) validateSCIM(problems *tokenProblems) {
	*problems = append(*problems, CheckRoles(n.Role, nil, nil)...)
	if len(n.Grants)+len(n.OrgRoles)+len(n.Runtimes)+len(n.Operators)+len(n.Orgs) > 0 {
		problems.add("kind", "a scim token gives its users a role, and nothing else: rules give what groups have")
	}
	if !SafeAddress(n.Issuer) {
		problems.add("issuer", "%q is not the https address of an issuer, exactly as its ID tokens have it", n.Issuer)
	}
	if !slices.Contains([]SubjectFrom{FromSignIn, FromExternalID, FromUserName}, n.SubjectFrom) {
		problems.add("subject_from", "%q holds no subject: use externalId or userName", n.SubjectFrom)
	}
}

// requireProvider refuses a scim token for an issuer at which nobody in the org could sign in.
func (n NewToken) requireProvider(org string, issuers Issuers) error {
	if n.Kind != KindSCIM {
		return nil
	}
	known := issuers(org)
	if slices.Contains(known, n.Issuer) {
		return nil
	}

	err := fault.New(fault.Invalid, "%q is no provider of this server at which people of %s sign in", n.Issuer, org)
	err.Problems = []fault.Problem{{Location: "body.issuer", Message: err.Message}}
	if len(known) == 0 {
		return err.WithHint("an administrator of the server adds it to identity.providers in the config")
	}
	return err.WithHint("people of %s sign in at %s; an administrator of the server adds others to "+
		"identity.providers in the config", org, strings.Join(known, ", "))
}

// AuthenticateProvisioner returns the provisioner of a service token of kind scim, or an Unauthenticated fault for
// anything else.
func (a *Tokens) AuthenticateProvisioner(r *http.Request) (Provisioner, error) {
	secret, ok := Bearer(r)
	if !ok {
		return Provisioner{}, fault.New(fault.Unauthenticated, "this needs a scim token").
			WithHint("send the header Authorization: Bearer dagctl_scim_...")
	}
	kind, _ := SecretKind(secret)
	switch TokenKind(kind) {
	case KindSCIM:
		return a.findProvisioner(r.Context(), secret)
	case KindUser, KindWorker:
		return Provisioner{}, fault.New(fault.Unauthenticated, "a %s token provisions no users", kind).
			WithHint("`dagctl tokens create NAME --kind scim --issuer ISSUER` creates a token that does")
	}
	return Provisioner{}, badToken()
}

// findProvisioner looks up a scim token, as find looks up a user token.
func (a *Tokens) findProvisioner(ctx context.Context, secret string) (p Provisioner, err error) {
	err = a.pool.QueryRow(ctx, `
		WITH token AS (
			SELECT t.id, t.org_id, o.slug, t.name, t.issuer, t.role, t.subject_from
			FROM service_tokens t JOIN orgs o ON o.id = t.org_id
			WHERE t.hash = $1 AND t.kind = 'scim' AND t.revoked_at IS NULL AND t.expires_at > now()
		), touched AS (
			UPDATE service_tokens t SET last_used_at = now()
			FROM token
			WHERE t.id = token.id AND (t.last_used_at IS NULL OR t.last_used_at < now() - interval '1 minute')
		)
		SELECT org_id, slug, name, issuer, role, coalesce(subject_from, '') FROM token`, HashSecret(secret)).
		Scan(&p.OrgID, &p.OrgSlug, &p.TokenName, &p.Issuer, &p.Role, &p.SubjectFrom)

	if errors.Is(err, pgx.ErrNoRows) {
		return Provisioner{}, badToken()
	}
	if err != nil {
		return Provisioner{}, fmt.Errorf("look up scim token: %w", err)
	}
	return p, nil
}

// HandleProvisioner adds a route for identity providers, with the rule ByProvisioner. The pattern is net/http's. If h
// returns an error, or the sender is not admitted, fail writes the answer in the provider's own form, so h must not
// have written anything.
func (api *API) HandleProvisioner(pattern string,
	h func(w http.ResponseWriter, r *http.Request, p Provisioner) error,
	fail func(w http.ResponseWriter, p *rest.Problem, err error)) {
	method, path := splitPattern(pattern)
	if api.workers == nil {
		panic(fmt.Sprintf("route %s is for a %s, but the API was built without what recognises one", pattern,
			AProvisioner))
	}
	api.declare(method, path, ByProvisioner)

	api.rest.HandlePlain(pattern, api.rest.Timeout(), func(w http.ResponseWriter, r *http.Request) {
		provisioner, err := api.admitProvisioner(r)
		if err == nil {
			err = h(w, r, provisioner)
		}
		if err == nil {
			return
		}
		if fault.Is(err, fault.Unauthenticated) {
			w.Header().Set("WWW-Authenticate", challenge)
		}
		fail(w, api.rest.Problem(r, err), err)
	})
}

// admitProvisioner returns the identity provider that sent r. Its requests count as those of its org.
func (api *API) admitProvisioner(r *http.Request) (p Provisioner, err error) {
	err = api.failures.guard(r, r.Header.Get("Authorization"), time.Now(), func() error {
		p, err = api.workers.AuthenticateProvisioner(r)
		return err
	})
	if err != nil {
		return Provisioner{}, err
	}
	if err := api.limiter.Take(p.OrgID.String()+" token:"+p.TokenName, time.Now()); err != nil {
		return Provisioner{}, err
	}
	if err := api.quotas.TakeRequest(r.Context(), p.OrgID, time.Now()); err != nil {
		return Provisioner{}, err
	}
	p.RequestID = rest.RequestID(r.Context())
	return p, nil
}
