// Package authz authenticates callers and decides what they may do. It puts a rule on every route, recognises tokens
// and sessions, keeps orgs apart and records who did what.
//
// Vocabulary: a Role is a platform permission (reader < proposer < writer < admin), and a Grant gives one on some DAGs
// only. An org role is a visibility group, always written role:SLUG. A Caller is an authenticated person or service
// token, in one org. An Action is what a caller wants to do, an Object what it is on; Authorize decides. A Principal is
// the kind of party that a route is for. A Rule is the principal of a route, or its action and how its object is found
// (Target). An Authenticator recognises one kind
// of credential. A service token is a credential of kind user, which has a role and becomes a Caller, of kind worker,
// which lists what it may claim, or of kind scim, by which an identity provider keeps users: these two never become a
// Caller.
//
// It owns orgs, users, org_roles, org_role_memberships, service_tokens, secrets, previous_secrets,
// audit_log and audit_heads.
package authz

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// Role is what a caller may do in its org.
type Role string

// The roles. Each may do all that the one before it may do.
const (
	RoleReader   Role = "reader"
	RoleProposer Role = "proposer" // plans, and touches nothing that is live
	RoleWriter   Role = "writer"
	RoleAdmin    Role = "admin"
)

// rank orders the roles; an unknown one ranks below all.
func (r Role) rank() int {
	return slices.Index([]Role{RoleReader, RoleProposer, RoleWriter, RoleAdmin}, r)
}

// Valid reports whether r is one of the roles.
func (r Role) Valid() bool { return r.rank() >= 0 }

// Caller is who a request comes from. The zero Caller may do nothing.
type Caller struct {
	OrgID     uuid.UUID
	OrgSlug   string
	Actor     string   // "token:NAME", "user:ID", "workload:RULE", "dev", or "system" for the server itself
	Name      string   // of a user, or the subject of a workload, for people; may be empty
	Role      Role     // within the org
	Grants    []Grant  // roles on some DAGs besides
	OrgRoles  []string // visibility groups, each as role:SLUG
	Rules     []string // of a workload: the trust rules that admitted it
	RequestID string
	ExpiresAt time.Time // of the caller's token; zero: none expires

	csrf string // what a mutation must repeat; set if a cookie authenticated the caller
}

// atLeast reports whether r may do all that another role may.
func (r Role) atLeast(role Role) bool { return role.Valid() && r.rank() >= role.rank() }

// Highest returns the mightiest of some roles, empty if none is one.
func Highest(roles []string) (highest Role) {
	for _, r := range roles {
		if role := Role(r); role.rank() > highest.rank() {
			highest = role
		}
	}
	return highest
}

// is reports whether the caller has at least this role in the whole org.
func (c Caller) is(role Role) bool { return c.Role.atLeast(role) }

// SessionCookie is the name of the cookie of signed-in browsers, without the prefix that it has where TLS is used.
const SessionCookie = "dagctl_session"

// ByCookie returns the caller as one that a cookie with this secret authenticated: its mutations need a CSRF token.
func (c Caller) ByCookie(secret string) Caller {
	c.csrf = csrfToken(secret)
	return c
}

// CSRFToken returns what forms and scripts of the caller's pages must send back with every mutation, as the field
// csrf_token or the header X-CSRF-Token. It is empty for a caller without a cookie, who needs none.
func (c Caller) CSRFToken() string { return c.csrf }
