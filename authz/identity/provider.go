package identity

import (
	"context"
	"crypto/sha256"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
)

// Provider is an OpenID provider at which people sign in. The server's administrator names it in the config.
type Provider struct {
	Name         string   // in addresses and commands
	Title        string   // for people; the name when empty
	Issuer       string   // exactly as the provider writes it
	ClientID     string   // of this server at the provider
	ClientSecret string   // empty: the provider knows the server as a public client
	Scopes       []string // DefaultScopes when empty
	Orgs         []string // slugs of those whose people sign in here; empty: of every org
	TrustEmail   bool     // the provider holds only addresses that it verified, and does not say so in its tokens
}

// DefaultScopes are what a provider is asked for where the config does not say.
var DefaultScopes = []string{oidc.ScopeOpenID, "email", "profile"}

var goodProvider = late.Pattern(`^[a-z][a-z0-9-]{0,39}$`)

// Check validates a provider of the config of a server at an address.
func (p Provider) Check(baseURL string) error {
	switch {
	case !goodProvider.MatchString(p.Name):
		return fault.New(fault.Invalid, "provider %q: its name must be up to 40 of a-z, 0-9 and -", p.Name)
	case p.ClientID == "":
		return fault.New(fault.Invalid, "provider %s: client_id is missing", p.Name)
	case !authz.SafeAddress(p.Issuer):
		return fault.New(fault.Invalid, "provider %s: the issuer %q must be an https address", p.Name, p.Issuer)
	case !authz.SafeAddress(baseURL):
		return fault.New(fault.Invalid, "provider %s: people can sign in only at an https base_url, not at %q", p.Name,
			baseURL).WithHint("set base_url to the address at which browsers reach the server")
	case strings.Trim(pathOf(baseURL), "/") != "":
		return fault.New(fault.Invalid, "provider %s: people can sign in only at a base_url without a path, not at %q",
			p.Name, baseURL)
	case len(p.Scopes) > 0 && !slices.Contains(p.Scopes, oidc.ScopeOpenID):
		return fault.New(fault.Invalid, "provider %s: the scopes lack openid", p.Name)
	}
	return nil
}

func pathOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Path
}

// provider is a Provider with what this server knows of it.
type provider struct {
	Provider
	*issuer
	callback string
}

func newProvider(p Provider, baseURL string) *provider {
	if p.Title == "" {
		p.Title = p.Name
	}
	if len(p.Scopes) == 0 {
		p.Scopes = DefaultScopes
	}
	// The administrator names providers, so they may be anywhere, in the server's own network too.
	client := newClient(&net.Dialer{Timeout: providerPatience})
	return &provider{Provider: p, issuer: &issuer{name: p.Issuer, client: client},
		callback: baseURL + callbackPath + p.Name}
}

// providerPatience is how long a provider may take to answer.
const providerPatience = 10 * time.Second

// dialer connects to issuers.
type dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// newClient returns an HTTP client for issuers. It follows no redirect: an issuer's address is exact.
func newClient(d dialer) *http.Client {
	return &http.Client{
		Timeout: providerPatience,
		Transport: &bounded{&http.Transport{DialContext: d.DialContext, TLSHandshakeTimeout: providerPatience,
			ResponseHeaderTimeout: providerPatience, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true,
			IdleConnTimeout: time.Minute, MaxIdleConns: 20}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// bounded limits the size of answers.
type bounded struct{ http.RoundTripper }

// maxIssuerAnswer is the size in bytes of what an issuer may answer: keys, configuration or tokens.
const maxIssuerAnswer = 1 << 20

func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		response.Body = http.MaxBytesReader(nil, response.Body, maxIssuerAnswer)
	}
	return response, err
}

// oauth returns the settings of sign-ins at the provider.
func (p *provider) oauth(found *oidc.Provider) *oauth2.Config {
	return &oauth2.Config{ClientID: p.ClientID, ClientSecret: p.ClientSecret, Endpoint: found.Endpoint(),
		RedirectURL: p.callback, Scopes: p.Scopes}
}

// start returns the address at the provider to which a browser goes to sign in.
func (p *provider) start(ctx context.Context, f flow) (string, error) {
	found, _, err := p.discover(ctx)
	if err != nil {
		return "", err
	}
	return p.oauth(found).AuthCodeURL(f.State, oidc.Nonce(f.Nonce), oauth2.S256ChallengeOption(f.Verifier)), nil
}

// exchange returns what the provider says of the person who came back with a code.
func (p *provider) exchange(ctx context.Context, code string, f flow) (Claims, error) {
	found, _, err := p.discover(ctx)
	if err != nil {
		return nil, err
	}
	tokens, err := p.oauth(found).Exchange(oidc.ClientContext(ctx, p.client), code, oauth2.VerifierOption(f.Verifier))
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused) && refused.Response.StatusCode < http.StatusInternalServerError:
		return nil, fault.New(fault.Unauthenticated, "%s did not accept the sign-in: %s", p.Title, refused.ErrorCode).
			WithHint("sign in once more; if it happens again, the server's client_id or client_secret is wrong")
	case err != nil:
		p.doubt()
		return nil, p.away(err)
	}

	raw, _ := tokens.Extra("id_token").(string)
	claims, err := p.verify(ctx, p.ClientID, raw)
	if err != nil {
		return nil, err
	}
	if azp := claims.text("azp"); azp != "" && azp != p.ClientID {
		return nil, badToken()
	}
	if nonce := claims.text("nonce"); nonce == "" || nonce != f.Nonce {
		return nil, fault.New(fault.Unauthenticated, "the answer of %s belongs to another sign-in", p.Title)
	}
	return claims, nil
}

// challengeOf returns the challenge of a verifier, as S256 of RFC 7636 makes it.
func challengeOf(verifier string) []byte {
	sum := sha256.Sum256([]byte(verifier))
	return sum[:]
}
