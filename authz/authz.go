// Package authz authenticates callers and decides what they may do. It puts a rule on every route, recognises tokens
// and sessions, keeps orgs apart and records who did what.
//
// Vocabulary: a Role is a platform permission (reader < writer < admin). An org role is a visibility group, always
// written role:SLUG. A Caller is an authenticated person or service token, in one org. A Principal is the kind of party
// that a route is for. A Rule is the principal and the role that a route requires. An Authenticator recognises one kind
// of credential. A service token is a credential of kind user, which has a role and becomes a Caller, or of kind
// worker, which lists what it may claim and never becomes a Caller.
//
// It owns orgs, users, org_roles, org_role_memberships, service_tokens, secrets and audit_log.
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
	RoleReader Role = "reader"
	RoleWriter Role = "writer"
	RoleAdmin  Role = "admin"
)

// rank orders the roles; an unknown one ranks below all.
func (r Role) rank() int {
	return slices.Index([]Role{RoleReader, RoleWriter, RoleAdmin}, r)
}

// Valid reports whether r is one of the roles.
func (r Role) Valid() bool { return r.rank() >= 0 }

// Caller is who a request comes from. The zero Caller may do nothing.
type Caller struct {
	OrgID     uuid.UUID
	OrgSlug   string
	Actor     string   // "token:NAME", "user:ID", "dev", or "system" for what the server does by itself
	Role      Role     // within the org
	OrgRoles  []string // visibility groups, each as role:SLUG
	RequestID string
	ExpiresAt time.Time // of the caller's token; zero: none expires

	csrf string // what a mutation must repeat; set if a cookie authenticated the caller
}

// Is reports whether the caller has at least this role.
func (c Caller) Is(role Role) bool { return role.Valid() && c.Role.rank() >= role.rank() }

// CSRFToken returns what forms and scripts of the caller's pages must send back with every mutation, as the field
// csrf_token or the header X-CSRF-Token. It is empty for a caller without a cookie, who needs none.
func (c Caller) CSRFToken() string { return c.csrf }
