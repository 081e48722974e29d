package authz

import (
	"net/http"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
)

// Authenticator recognises one kind of credential: a service token, the dev server's token, or an ID token or session
// of an OIDC provider.
type Authenticator interface {
	// Authenticate returns the caller that sent r. ok is false if r has no credential of this kind. err is an
	// Unauthenticated fault if r has one that is not valid.
	Authenticate(r *http.Request) (caller Caller, ok bool, err error)
}

// Bearer returns the token in r's Authorization header.
func Bearer(r *http.Request) (token string, ok bool) {
	scheme, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return strings.TrimSpace(token), true
}

// badToken returns the same error for unknown, revoked and expired tokens, so that a stranger learns nothing.
func badToken() error {
	return fault.New(fault.Unauthenticated, "the token is not valid").
		WithHint("it may be mistyped, expired or revoked; an admin of the org can create a new one")
}

func noCredential() error {
	return fault.New(fault.Unauthenticated, "this needs a token").
		WithHint("send the header Authorization: Bearer dagctl_user_..., or set DAGCTL_TOKEN for the command line")
}
