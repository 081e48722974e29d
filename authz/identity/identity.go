// Package identity lets people and pipelines in: people sign in at an OpenID provider, or by a one-time link of an
// admin; pipelines present the token of an issuer that their org trusts.
//
// Vocabulary: a Provider is an OpenID provider of the server's config, at which people sign in. A User is a person in
// one org; who belongs to several has a user in each. A Rule says what an org gives those whom an issuer vouches for,
// by their Claims: people when they sign in (kind user), or the tokens of a workload, such as a job of a CI service. A
// session is a user who signed in with a browser or the command line. What a user may do is what an admin gave to the
// user, and what the rules give that matched the sign-in, as they are now. An identity provider may keep users and
// their groups (authz/scim speaks with it): it provisions and deprovisions them, and rules of kind group give a Group's
// members roles as long as they are members.
//
// It owns users, org_role_memberships (with authz), trust_rules, sessions, sign_in_links, cli_logins, scim_users,
// scim_groups and scim_group_members.
package identity

import (
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/rest"
)

// Config has what identities need.
type Config struct {
	Owner    *pgxpool.Pool // finds users and sessions before their org is known
	Requests *pgxpool.Pool
	// BaseURL is the address of the server for browsers. Without it nobody can sign in.
	BaseURL   string
	Providers []Provider
	Dialer    *dial.Dialer // reaches the issuers that orgs name
	IdleAfter time.Duration
	Ends      time.Duration // how long a session lasts at most
	Starts    *rest.Limiter // for sign-ins from one address; nil: no limit
	Frame     Frame
	Log       *slog.Logger
}

// Frame writes a page: its content below its title, within what all pages of the server have around them. head goes
// into the HTML's head. The caller is the zero one where nobody has signed in.
type Frame func(w http.ResponseWriter, caller authz.Caller, title string, head, content template.HTML) error

// How long sessions last where the config does not say.
const (
	DefaultIdleAfter = 12 * time.Hour
	DefaultEnds      = 7 * 24 * time.Hour
)

// Identity recognises people and pipelines, and signs people in.
type Identity struct {
	Config
	base      *url.URL
	providers map[string]*provider // by name
	issuers   *issuers
}

// New validates the config. It asks no provider: one that does not answer keeps nobody from using the server.
func New(c Config) (*Identity, error) {
	if c.Owner == nil || c.Requests == nil || c.Dialer == nil || c.Frame == nil || c.Log == nil {
		return nil, errors.New("identity: pools, a dialer, a frame of pages and a log are needed")
	}
	if c.IdleAfter == 0 {
		c.IdleAfter = DefaultIdleAfter
	}
	if c.Ends == 0 {
		c.Ends = DefaultEnds
	}

	c.BaseURL = Canonical(c.BaseURL)
	base, err := url.Parse(c.BaseURL)
	if err != nil {
		return nil, err
	}
	id := &Identity{Config: c, base: base, providers: map[string]*provider{}, issuers: newIssuers(c.Dialer)}
	for _, p := range c.Providers {
		if err := p.Check(c.BaseURL); err != nil {
			return nil, err
		}
		id.providers[p.Name] = newProvider(p, c.BaseURL)
	}
	return id, nil
}

// Canonical returns an address as browsers write it: with its host in lower case, without the port that its scheme has
// anyway and without a slash at the end.
func Canonical(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return strings.TrimRight(address, "/")
	}
	u.Scheme, u.Host = strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	for scheme, port := range map[string]string{"https": ":443", "http": ":80"} {
		if u.Scheme == scheme {
			u.Host = strings.TrimSuffix(u.Host, port)
		}
	}
	return strings.TrimRight(u.String(), "/")
}

// Authenticators returns what recognises the credentials of this package.
func (id *Identity) Authenticators() []authz.Authenticator {
	return []authz.Authenticator{sessions{id}, bearers{id}}
}

// Audience returns what the token of a workload must be made for. It names the server and the org, so that no token for
// one org or server works at another.
func (id *Identity) Audience(org string) string { return id.BaseURL + "/" + org }

// secure reports whether browsers reach the server by TLS. Otherwise it is on this machine: see Provider.Check.
func (id *Identity) secure() bool { return id.base.Scheme == "https" }
