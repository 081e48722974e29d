// Package testoidc starts OpenID providers for tests on loopback ports: Start oidc-provider, which is certified and
// runs on Node, and StartDex dex, a second opinion. tools/ pins both. Neither knows anything of dagctl; any number run
// at once, each starts in less than a second and ends with its test.
//
// Vocabulary: a user is who signs in, known by a subject. A client is a program that signs users in. A workload is a
// program with an identity of its own, such as a run of a CI system. To forge is to sign claims that the provider would
// not sign. It owns no tables.
package testoidc

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Options are what a provider knows. Without clients nobody can sign in, until SetClient.
type Options struct {
	Users   []User
	Clients []Client

	IDTokens      time.Duration // how long ID tokens are valid, in whole seconds; default 1 h
	AccessTokens  time.Duration // default 1 h; those of workloads too
	RefreshTokens time.Duration // default 14 days
}

// User can sign in with any password. Which claims an ID token and the userinfo endpoint give depends on the scopes:
// email for the address, profile for the name, groups for the groups, openid for the rest.
type User struct {
	Subject       string
	Email         string // "": none
	EmailVerified bool
	Name          string         // "": none
	Groups        []string       // nil: no such claim
	Claims        map[string]any // further ones
}

// Client may sign users in by code with PKCE, which is required, and by device, may refresh when it asked for the scope
// offline_access with prompt=consent, and is a workload unless it is public.
type Client struct {
	ID           string
	Secret       string   // sent as basic authentication; "": the client is public
	RedirectURIs []string // of a public client, any port of 127.0.0.1 will do; none: it cannot sign in by code
}

// Provider is a running oidc-provider. Its methods may be called at the same time.
type Provider struct {
	Issuer string // http://127.0.0.1:port

	t      testing.TB
	server *server
}

// Start starts a provider that ends with the test.
func Start(t testing.TB, o Options) *Provider {
	t.Helper()
	c := config{
		keys:  []jose.JSONWebKey{NewKey(t)},
		users: slices.Clone(o.Users), clients: slices.Clone(o.Clients),
		lifetimes: lifetimes{
			ID:        seconds(cmp.Or(o.IDTokens, time.Hour)),
			Access:    seconds(cmp.Or(o.AccessTokens, time.Hour)),
			Workloads: seconds(cmp.Or(o.AccessTokens, time.Hour)),
			Refresh:   seconds(cmp.Or(o.RefreshTokens, 14*24*time.Hour)),
		},
	}

	s, err := startServer(t, c)
	if err != nil {
		t.Fatalf("start the OpenID provider of the tests: %v", err)
	}
	return &Provider{Issuer: s.url(), t: t, server: s}
}

// SetUser adds a user, or changes the one with the same subject from the next token on.
func (p *Provider) SetUser(u User) {
	p.t.Helper()
	p.change(func(c *config) {
		c.users = append(slices.DeleteFunc(c.users, func(old User) bool { return old.Subject == u.Subject }), u)
	})
}

// RemoveUser removes a user, who then can neither sign in nor refresh.
func (p *Provider) RemoveUser(subject string) {
	p.t.Helper()
	p.change(func(c *config) {
		c.users = slices.DeleteFunc(c.users, func(u User) bool { return u.Subject == subject })
	})
}

// SetClient adds a client, or changes the one with the same ID. Servers under test often know their redirect URI only
// once they run, and need the issuer before.
func (p *Provider) SetClient(client Client) {
	p.t.Helper()
	p.change(func(c *config) {
		c.clients = append(slices.DeleteFunc(c.clients, func(old Client) bool { return old.ID == client.ID }), client)
	})
}

// Stop makes the provider refuse connections, and ends those that there are, until Resume.
func (p *Provider) Stop() { p.t.Helper(); p.reach("refused") }

// Pause makes the provider accept requests and not answer them until Resume.
func (p *Provider) Pause() { p.t.Helper(); p.reach("hangs") }

// Resume ends Stop and Pause. Sessions, tokens and keys are those from before.
func (p *Provider) Resume() { p.t.Helper(); p.reach("yes") }

func (p *Provider) reach(how string) {
	p.t.Helper()
	if err := p.server.tell(map[string]any{"reach": how}); err != nil {
		p.t.Fatalf("make the OpenID provider of the tests reachable: %s: %v", how, err)
	}
}

func (p *Provider) change(change func(c *config)) {
	p.t.Helper()
	if err := p.server.change(change); err != nil {
		p.t.Fatalf("configure the OpenID provider of the tests: %v", err)
	}
}
