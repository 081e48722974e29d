package identity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/dagctl/dagctl/authz"
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

	mu     sync.Mutex
	found  *oidc.Provider
	keys   *keySet
	as     time.Time // when the issuer said so; zero: it is to be asked again
	tried  time.Time // when it was asked last
	asking bool
}

// askAgain is how long an issuer is not asked again, so that a flood of tokens that nobody signed is no flood for it,
// and metadataFor how long what it says of its addresses is used without asking again.
const (
	askAgain    = 2 * time.Second
	metadataFor = 10 * time.Minute
)

// discover returns the issuer's addresses and keys. Nobody waits for one that has said them before.
func (i *issuer) discover(ctx context.Context) (*oidc.Provider, *keySet, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	soon := time.Since(i.tried) < askAgain
	switch {
	case i.found != nil && !soon && !i.asking && time.Since(i.as) > metadataFor:
		i.asking = true
		go i.refresh(context.WithoutCancel(ctx))
		fallthrough
	case i.found != nil:
		return i.found, i.keys, nil
	case soon:
		return nil, nil, i.away(errors.New("it did not a moment ago"))
	}

	i.tried = time.Now()
	found, keys, err := i.ask(ctx)
	if err != nil {
		return nil, nil, i.away(err)
	}
	i.found, i.keys, i.as = found, &keySet{client: i.client, url: keys, lost: i.doubt}, time.Now()
	return i.found, i.keys, nil
}

// ask asks the issuer for its addresses, and returns that of its keys apart.
func (i *issuer) ask(ctx context.Context) (found *oidc.Provider, keys string, err error) {
	found, err = oidc.NewProvider(oidc.ClientContext(ctx, i.client), i.name)
	if err != nil {
		return nil, "", err
	}
	var also struct {
		Keys string `json:"jwks_uri"`
	}
	if err := found.Claims(&also); err != nil || !authz.SafeAddress(also.Keys) {
		return nil, "", errors.New("its jwks_uri is no https address")
	}
	return found, also.Keys, nil
}

// refresh takes over the addresses that the issuer has now. Known keys stay while it does not move them.
func (i *issuer) refresh(ctx context.Context) {
	found, keys, err := i.ask(ctx)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.asking, i.tried = false, time.Now()
	if err != nil {
		return // the old ones may do
	}
	if i.found, i.as = found, time.Now(); keys != i.keys.url {
		i.keys = &keySet{client: i.client, url: keys, lost: i.doubt}
	}
}

// doubt makes the next caller ask for the issuer's addresses again, because keys or a token could not be had there.
func (i *issuer) doubt() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.as = time.Time{}
}

func (i *issuer) away(cause error) error {
	return fault.New(fault.Unavailable, "%s does not answer as an OpenID provider: %w", i.name, cause).
		WithHint("try again later; whoever is signed in stays so")
}

// leeway is how far the clocks of an issuer and of this server may be apart.
const leeway = time.Minute

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
	now := time.Now()
	verifier := oidc.NewVerifier(i.name, asked, &oidc.Config{ClientID: audience, SupportedSigningAlgs: names,
		Now: func() time.Time { return now.Add(-leeway) }})

	token, err := verifier.Verify(ctx, raw)
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return nil, fault.New(fault.Unauthenticated, "the token has expired").
			WithHint("get another one from its issuer; if that has expired too, the clocks of this server and of the " +
				"issuer differ by more than a minute")
	case err == nil && token.IssuedAt.After(now.Add(leeway)):
		return nil, fault.New(fault.Unauthenticated, "the token was issued in the future, at %s",
			token.IssuedAt.UTC().Format(time.RFC3339)).
			WithHint("the clocks of this server and of the issuer differ by more than a minute: set them")
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

	if token.Subject == "" || len(token.Subject) > maxSubject || unprintable(token.Subject) ||
		unprintable(claims.text("email")) ||
		len(token.Audience) > 1 && claims.text("azp") != audience {
		return nil, badToken()
	}
	return claims, nil
}

// unprintable reports whether a text has control characters, which no name has and no database column takes.
func unprintable(text string) bool { return strings.ContainsFunc(text, unicode.IsControl) }

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
