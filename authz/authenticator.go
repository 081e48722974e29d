package authz

import (
	"net/http"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
)

// Authenticator recognises one sort of credential: service tokens, the dev server's token, and an ID token or session
// of an OIDC provider when there is one.
type Authenticator interface {
	// Authenticate says who sent r. ok is false when r bears no credential of this sort; err is an Unauthenticated
	// fault when it bears one that is no good.
	Authenticate(r *http.Request) (caller Caller, ok bool, err error)
}

// bearer is the token in r's Authorization header.
func bearer(r *http.Request) (token string, ok bool) {
	scheme, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return strings.TrimSpace(token), true
}

// badToken tells a stranger nothing about why: an unknown, a revoked and an expired token look alike.
func badToken() error {
	return fault.New(fault.Unauthenticated, "the token is not valid").
		WithHint("it may be mistyped, expired or revoked; an admin of the org can make a new one")
}

func noCredential() error {
	return fault.New(fault.Unauthenticated, "this needs a token").
		WithHint("send the header Authorization: Bearer dagctl_user_..., or set DAGCTL_TOKEN for the command line")
}
