package identity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
)

// algorithms sign tokens that are accepted: none that uses a shared key, and not "none".
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512,
	jose.PS256, jose.PS384, jose.PS512, jose.EdDSA}

// issuer is who signs tokens: a provider at which people sign in, or one whose workloads some org trusts.
type issuer struct {
	name   string // exactly as its tokens have it
	client *http.Client

	mu    sync.Mutex
	found *oidc.Provider
	keys  *keySet
	tried time.Time // when it did not answer last
}

// askAgain is how long an issuer is not asked again: for its addresses after it did not answer, for its keys in any
// case. So a flood of tokens that nobody signed is no flood for the issuer.
const askAgain = 2 * time.Second

// discover returns the issuer's addresses and keys.
func (i *issuer) discover(ctx context.Context) (*oidc.Provider, *keySet, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.found != nil {
		return i.found, i.keys, nil
	}
	if time.Since(i.tried) < askAgain {
		return nil, nil, i.away(errors.New("it did not a moment ago"))
	}

	i.tried = time.Now()
	found, err := oidc.NewProvider(oidc.ClientContext(ctx, i.client), i.name)
	if err != nil {
		return nil, nil, i.away(err)
	}
	var also struct {
		Keys string `json:"jwks_uri"`
	}
	if err := found.Claims(&also); err != nil || !safeAddress(also.Keys) {
		return nil, nil, i.away(errors.New("its jwks_uri is no https address"))
	}
	i.found, i.keys = found, &keySet{client: i.client, url: also.Keys}
	return i.found, i.keys, nil
}

func (i *issuer) away(cause error) error {
	return fault.New(fault.Unavailable, "%s does not answer as an OpenID provider: %w", i.name, cause).
		WithHint("try again later; whoever is signed in stays so")
}

// verify checks the signature, issuer, audience and times of a token, and returns its claims. Errors hold nothing of
// it.
func (i *issuer) verify(ctx context.Context, audience, raw string) (Claims, error) {
	_, keys, err := i.discover(ctx)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(algorithms))
	for n, a := range algorithms {
		names[n] = string(a)
	}
	asked := &listening{keySet: keys}
	verifier := oidc.NewVerifier(i.name, asked, &oidc.Config{ClientID: audience, SupportedSigningAlgs: names})

	token, err := verifier.Verify(ctx, raw)
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return nil, fault.New(fault.Unauthenticated, "the token has expired").
			WithHint("get another one from its issuer")
	case err != nil && asked.failed != nil:
		return nil, asked.failed
	case err != nil:
		return nil, badToken()
	}
	return claimsOf(token, audience)
}

// listening remembers the error of its keys, of which the verifier passes on only the text.
type listening struct {
	*keySet
	failed error
}

func (l *listening) VerifySignature(ctx context.Context, raw string) (payload []byte, err error) {
	payload, l.failed = l.keySet.VerifySignature(ctx, raw)
	return payload, l.failed
}

// maxSubject is the most bytes of a subject that OpenID Connect allows.
const maxSubject = 255

// claimsOf returns the claims of a verified token. One for several audiences must name the one that it was given to.
func claimsOf(token *oidc.IDToken, audience string) (Claims, error) {
	var raw rawClaims
	claims := Claims{}
	if err := token.Claims(&raw); err != nil {
		return nil, badToken()
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber() // numbers stay as they are written
	if err := decoder.Decode(&claims); err != nil {
		return nil, badToken()
	}

	if token.Subject == "" || len(token.Subject) > maxSubject ||
		len(token.Audience) > 1 && claims.text("azp") != audience {
		return nil, badToken()
	}
	return claims, nil
}

// rawClaims takes the claims of a token as they are written.
type rawClaims []byte

func (r *rawClaims) UnmarshalJSON(text []byte) error {
	*r = bytes.Clone(text)
	return nil
}

func badToken() error {
	return fault.New(fault.Unauthenticated, "the token is not valid").
		WithHint("it may be expired, for another server or org, or of somebody whom the org does not trust")
}

// named are the claims by which the issuer of a token is found, before anything is verified.
type named struct {
	Issuer   string       `json:"iss"`
	Subject  string       `json:"sub"`
	Audience jwt.Audience `json:"aud"`
}

// peek returns what a token names. ok is false if it is no token that one of the algorithms signed.
func peek(raw string) (n named, ok bool) {
	token, err := jwt.ParseSigned(raw, algorithms)
	if err != nil {
		return n, false
	}
	err = token.UnsafeClaimsWithoutVerification(&n)
	return n, err == nil && n.Issuer != ""
}

// issuers are those that orgs trust, by name. It keeps at most as many as it has seen tokens of that a rule names.
type issuers struct {
	client *http.Client

	mu    sync.Mutex
	known map[string]*issuer
}

func newIssuers(d *dial.Dialer) *issuers {
	return &issuers{client: newClient(d), known: map[string]*issuer{}}
}

func (all *issuers) get(name string) *issuer {
	all.mu.Lock()
	defer all.mu.Unlock()
	one := all.known[name]
	if one == nil {
		one = &issuer{name: name, client: all.client}
		all.known[name] = one
	}
	return one
}
