package server

import (
	"cmp"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/authz/identity"
)

// IdentityConfig says where people sign in.
type IdentityConfig struct {
	Providers        []ProviderConfig `yaml:"providers"`
	SessionIdleHours int              `yaml:"session_idle_hours"` // after which a session ends that nobody uses
	SessionDays      int              `yaml:"session_days"`       // after which any session ends
}

// ProviderConfig is an OpenID provider.
type ProviderConfig struct {
	Name             string   `yaml:"name"`
	Title            string   `yaml:"title"` // for people; empty: the name
	Issuer           string   `yaml:"issuer"`
	ClientID         string   `yaml:"client_id"`
	ClientSecretFile string   `yaml:"client_secret_file"`
	ClientSecretEnv  string   `yaml:"client_secret_env"` // variable with the secret
	Scopes           []string `yaml:"scopes"`
	Orgs             []string `yaml:"orgs"`        // whose people sign in here; empty: of all
	TrustEmail       bool     `yaml:"trust_email"` // every address in its tokens is verified
}

var defaultIdentity = IdentityConfig{
	SessionIdleHours: int(identity.DefaultIdleAfter / time.Hour),
	SessionDays:      int(identity.DefaultEnds / (24 * time.Hour)),
}

// providers returns the providers with their secrets.
func (cfg *Config) providers(getenv func(string) string) (all []identity.Provider, err error) {
	for _, p := range cfg.Identity.Providers {
		secret := ""
		if p.ClientSecretEnv != "" {
			secret = getenv(p.ClientSecretEnv)
		}
		if p.ClientSecretFile != "" {
			text, err := os.ReadFile(p.ClientSecretFile)
			if err != nil {
				return nil, err
			}
			secret = strings.TrimSpace(string(text))
		}
		all = append(all, identity.Provider{Name: p.Name, Title: p.Title, Issuer: p.Issuer, ClientID: p.ClientID,
			ClientSecret: secret, Scopes: p.Scopes, Orgs: p.Orgs, TrustEmail: p.TrustEmail})
	}
	return all, nil
}

func (cfg *Config) checkIdentity(found *problems) {
	c := cfg.Identity
	found.between("identity.session_idle_hours", int64(c.SessionIdleHours), 1, 24*90)
	found.between("identity.session_days", int64(c.SessionDays), 1, 90)
	all, err := cfg.providers(os.Getenv)
	if err != nil {
		found.add("identity.providers", "%v", err)
	}

	var names, issuers []string
	for i, p := range all {
		if err := p.Check(identity.Canonical(cfg.BaseURL)); err != nil {
			found.add("identity.providers", "%v", err)
		}
		if slices.Contains(names, p.Name) || slices.Contains(issuers, p.Issuer) {
			found.add("identity.providers", "%s: another provider has the name or the issuer", p.Name)
		}
		names, issuers = append(names, p.Name), append(issuers, p.Issuer)
		given := c.Providers[i]
		if p.ClientSecret == "" && cmp.Or(given.ClientSecretEnv, given.ClientSecretFile) != "" {
			found.add("identity.providers", "%s: its client secret is empty", p.Name)
		}
	}
}

// providerOrgs returns the orgs that providers name.
func (cfg *Config) providerOrgs() (orgs []string) {
	for _, p := range cfg.Identity.Providers {
		orgs = append(orgs, p.Orgs...)
	}
	return orgs
}

// origins returns the addresses at which browsers reach the server.
func (cfg *Config) origins() (all []string) {
	for _, address := range append(slices.Clone(cfg.Origins), cfg.BaseURL) {
		if u, err := url.Parse(identity.Canonical(address)); err == nil && u.Host != "" {
			all = append(all, u.Scheme+"://"+u.Host)
		}
	}
	return all
}

// hosts returns the names by which the server is reached; none if the config does not say.
func (cfg *Config) hosts() (hosts []string) {
	for _, address := range append(cfg.origins(), cfg.WorkerBaseURL) {
		if u, err := url.Parse(identity.Canonical(address)); err == nil && u.Host != "" {
			hosts = append(hosts, u.Host)
		}
	}
	return hosts
}
