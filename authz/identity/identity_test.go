package identity_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/internal/testoidc"
	"github.com/dagctl/dagctl/web"
)

// world is a server with the orgs acme and globex, at which people sign in.
type world struct {
	t        *testing.T
	url      string
	owner    *pgxpool.Pool
	requests *pgxpool.Pool
	identity *identity.Identity
	acme     authz.Caller // admins
	globex   authz.Caller
	tokens   map[string]string // of admins, by org
}

// newWorld makes a world with providers, whose client is dagctl.
func newWorld(t *testing.T, providers map[string]*testoidc.Provider, change ...func(*identity.Config)) *world {
	t.Helper()
	w := &world{t: t, tokens: map[string]string{}}
	address := testdb.URL(t)
	var err error
	w.owner, err = pg.Open(t.Context(), address, pg.WithMaxConns(8))
	require.NoError(t, err)
	t.Cleanup(w.owner.Close)
	w.requests, err = pg.OpenRequests(t.Context(), address, pg.WithMaxConns(8))
	require.NoError(t, err)
	t.Cleanup(w.requests.Close)
	w.acme, w.globex = w.org("acme"), w.org("globex")

	server := httptest.NewUnstartedServer(nil)
	w.url = "http://" + server.Listener.Addr().String()
	dialer, err := dial.New(dial.Config{Allowed: []string{"127.0.0.0/8"}})
	require.NoError(t, err)
	cfg := identity.Config{Owner: w.owner, Requests: w.requests, BaseURL: w.url, Dialer: dialer, Frame: web.Frame,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for name, p := range providers {
		p.SetClient(testoidc.Client{ID: "dagctl", Secret: "s3cret",
			RedirectURIs: []string{w.url + "/signin/callback/" + name}})
		cfg.Providers = append(cfg.Providers, identity.Provider{Name: name, Issuer: p.Issuer, ClientID: "dagctl",
			ClientSecret: "s3cret", Scopes: []string{"openid", "email", "profile", "groups"}})
	}
	for _, f := range change {
		f(&cfg)
	}

	w.identity, err = identity.New(cfg)
	require.NoError(t, err)
	api, err := authz.NewAPI(authz.Config{
		REST:           rest.Config{Version: "test", Logger: cfg.Log},
		Authenticators: append([]authz.Authenticator{authz.NewTokens(w.owner)}, w.identity.Authenticators()...),
		Origins:        []string{w.url}, Hosts: []string{strings.TrimPrefix(w.url, "http://")},
		SignInPath: identity.SignInPath,
	})
	require.NoError(t, err)
	authz.Register(api, w.requests, w.identity.Issuers)
	w.identity.AddRoutes(api)
	api.HandlePage(authz.Reader, "GET /{$}", func(w http.ResponseWriter, _ *http.Request, c authz.Caller) error {
		_, err := io.WriteString(w, "home of "+c.Name+" in "+c.OrgSlug)
		return err
	})
	server.Config.Handler = api.Handler()
	server.Start()
	t.Cleanup(server.Close)
	return w
}

// org makes an org with a token of an admin.
func (w *world) org(slug string) authz.Caller {
	org, err := authz.CreateOrg(w.t.Context(), w.owner, slug, slug)
	require.NoError(w.t, err)
	admin := authz.Caller{OrgID: org.ID, OrgSlug: slug, Actor: "system", Role: authz.RoleAdmin}
	secret, _, err := authz.CreateToken(w.t.Context(), w.owner, admin, authz.NewToken{Name: "admin",
		Role: authz.RoleAdmin})
	require.NoError(w.t, err)
	w.tokens[slug] = secret
	admin.Actor = "token:admin"
	return admin
}

// invite invites somebody to sign in at a provider.
func (w *world) invite(caller authz.Caller, n identity.NewUser) identity.User {
	u, err := w.identity.Invite(w.t.Context(), caller, n)
	require.NoError(w.t, err)
	return u
}

// trust adds a rule.
func (w *world) trust(caller authz.Caller, n identity.NewRule) identity.Rule {
	r, err := w.identity.CreateRule(w.t.Context(), caller, n)
	require.NoError(w.t, err)
	return r
}

// browser keeps cookies and follows redirects of the server only.
type browser struct {
	w      *world
	client *http.Client
}

func (w *world) browser() *browser {
	jar, err := cookiejar.New(nil)
	require.NoError(w.t, err)
	return &browser{w, &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}}
}

// page is an answer to a browser.
type page struct {
	status   int
	location string
	body     string
}

func (b *browser) do(method, path string, form url.Values, header http.Header) page {
	b.w.t.Helper()
	address := path
	if strings.HasPrefix(path, "/") {
		address = b.w.url + path
	}
	request, err := http.NewRequestWithContext(b.w.t.Context(), method, address, strings.NewReader(form.Encode()))
	require.NoError(b.w.t, err)
	request.Header.Set("Accept", "text/html")
	if form != nil {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Origin", b.w.url)
	}
	for name, values := range header {
		request.Header[name] = values
	}

	response, err := b.client.Do(request)
	require.NoError(b.w.t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(b.w.t, err)
	return page{response.StatusCode, response.Header.Get("Location"), string(text)}
}

func (b *browser) get(path string) page { b.w.t.Helper(); return b.do(http.MethodGet, path, nil, nil) }

// post sends a form with the page's CSRF token.
func (b *browser) post(path string, form url.Values) page {
	b.w.t.Helper()
	return b.do(http.MethodPost, path, form, nil)
}

// start goes to a provider and returns the address there.
func (b *browser) start(provider, query string) string {
	b.w.t.Helper()
	there := b.get("/signin/with/" + provider + "?" + query)
	require.Equal(b.w.t, http.StatusSeeOther, there.status, there.body)
	return there.location
}

// signIn signs a subject in at a provider, and returns the answer to the browser that comes back.
func (b *browser) signIn(p *testoidc.Provider, provider, subject, query string) page {
	b.w.t.Helper()
	return b.get(p.SignIn(b.w.t, b.start(provider, query), subject))
}

var csrfField = regexp.MustCompile(`name="csrf_token" value="([^"]+)"`)

// csrf returns the CSRF token of a page.
func (b *browser) csrf(path string) string {
	b.w.t.Helper()
	shown := b.get(path)
	found := csrfField.FindStringSubmatch(shown.body)
	require.NotNil(b.w.t, found, shown.body)
	return found[1]
}

// whoami asks the API who a bearer token is.
func (w *world) whoami(token string) (int, authz.Identity) {
	w.t.Helper()
	return w.ask(http.Header{"Authorization": {"Bearer " + token}})
}

func (w *world) ask(header http.Header) (int, authz.Identity) {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+"/v1/whoami", nil)
	require.NoError(w.t, err)
	request.Header = header
	response, err := http.DefaultClient.Do(request)
	require.NoError(w.t, err)
	defer response.Body.Close()
	var me authz.Identity
	text, err := io.ReadAll(response.Body)
	require.NoError(w.t, err)
	if response.StatusCode == http.StatusOK {
		require.NoError(w.t, json.Unmarshal(text, &me))
	}
	return response.StatusCode, me
}

// me asks who the browser is.
func (b *browser) me() (int, authz.Identity) {
	b.w.t.Helper()
	base, err := url.Parse(b.w.url)
	require.NoError(b.w.t, err)
	header := http.Header{}
	for _, c := range b.client.Jar.Cookies(base) {
		header.Add("Cookie", c.String())
	}
	return b.w.ask(header)
}

// post sends JSON to the API, without a credential if the token is empty.
func (w *world) post(token, path string, body, answer any) int {
	w.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(w.t, err)
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+path,
		strings.NewReader(string(text)))
	require.NoError(w.t, err)
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(w.t, err)
	defer response.Body.Close()
	if answer != nil && response.StatusCode < 300 {
		require.NoError(w.t, json.NewDecoder(response.Body).Decode(answer))
	}
	return response.StatusCode
}
