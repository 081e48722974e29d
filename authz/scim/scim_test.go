package scim_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/auditlog"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/authz/scim"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/internal/testoidc"
	"github.com/dagctl/dagctl/web"
)

// world is a server with the orgs acme and globex, whose people sign in at one provider.
type world struct {
	t        *testing.T
	url      string
	issuer   string
	provider *testoidc.Provider // nil unless newSignInWorld made it
	owner    *pgxpool.Pool
	requests *pgxpool.Pool
	identity *identity.Identity
	acme     authz.Caller // admins
	globex   authz.Caller
	began    chan struct{} // a stream has begun
}

// newWorld makes a world whose issuer nobody asks.
func newWorld(t *testing.T, change ...func(*authz.Config, *pgxpool.Pool)) *world {
	t.Helper()
	return makeWorld(t, &world{t: t, issuer: "https://login.example.com"}, change...)
}

// newSignInWorld makes a world in which people sign in.
func newSignInWorld(t *testing.T, users ...testoidc.User) *world {
	t.Helper()
	p := testoidc.Start(t, testoidc.Options{Users: users})
	return makeWorld(t, &world{t: t, issuer: p.Issuer, provider: p})
}

func makeWorld(t *testing.T, w *world, change ...func(*authz.Config, *pgxpool.Pool)) *world {
	t.Helper()
	address := testdb.URL(t)
	var err error
	w.owner, err = pg.Open(t.Context(), address, pg.WithMaxConns(8))
	require.NoError(t, err)
	t.Cleanup(w.owner.Close)
	w.requests, err = pg.OpenRequests(t.Context(), address, pg.WithMaxConns(8))
	require.NoError(t, err)
	t.Cleanup(w.requests.Close)
	w.acme, w.globex = w.org("acme"), w.org("globex")
	w.began = make(chan struct{}, 1)

	server := httptest.NewUnstartedServer(nil)
	w.url = "http://" + server.Listener.Addr().String()
	dialer, err := dial.New(dial.Config{Allowed: []string{"127.0.0.0/8"}})
	require.NoError(t, err)
	if w.provider != nil {
		w.provider.SetClient(testoidc.Client{ID: "dagctl", Secret: "s3cret",
			RedirectURIs: []string{w.url + "/signin/callback/corp"}})
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	w.identity, err = identity.New(identity.Config{Owner: w.owner, Requests: w.requests, BaseURL: w.url, Dialer: dialer,
		Frame: web.Frame, Log: log, Providers: []identity.Provider{{Name: "corp", Issuer: w.issuer, ClientID: "dagctl",
			ClientSecret: "s3cret", Scopes: []string{"openid", "email", "profile", "groups"}}}})
	require.NoError(t, err)

	tokens := authz.NewTokens(w.owner)
	cfg := authz.Config{
		REST:           rest.Config{Version: "test", Logger: log},
		Authenticators: append([]authz.Authenticator{tokens}, w.identity.Authenticators()...), Workers: tokens,
		Origins: []string{w.url}, SignInPath: identity.SignInPath,
	}
	for _, f := range change {
		f(&cfg, w.owner)
	}
	api, err := authz.NewAPI(cfg)
	require.NoError(t, err)
	authz.Register(api, w.requests, w.identity.Issuers)
	w.identity.AddRoutes(api)
	scim.New(w.identity).AddRoutes(api)
	wait := func(_ http.ResponseWriter, r *http.Request, _ authz.Caller) error {
		w.began <- struct{}{}
		<-r.Context().Done()
		return r.Context().Err()
	}
	api.HandleStream(authz.Reader, "GET /v1/endless", wait)
	server.Config.Handler = api.Handler()
	server.Start()
	t.Cleanup(server.Close)
	return w
}

func (w *world) org(slug string) authz.Caller {
	org, err := authz.CreateOrg(w.t.Context(), w.owner, slug, slug)
	require.NoError(w.t, err)
	return authz.Caller{OrgID: org.ID, OrgSlug: slug, Actor: "token:admin", Role: authz.RoleAdmin}
}

// provisioner makes a scim token of an org and returns its client.
func (w *world) provisioner(of authz.Caller, change ...func(*authz.NewToken)) *client {
	w.t.Helper()
	n := authz.NewToken{Name: "idp", Kind: authz.KindSCIM, Issuer: w.issuer}
	for _, f := range change {
		f(&n)
	}
	secret, _, err := authz.CreateToken(w.t.Context(), w.requests, of, n)
	require.NoError(w.t, err)
	return &client{w, secret}
}

// client is an identity provider.
type client struct {
	w     *world
	token string
}

// answer is what an identity provider gets.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	text   string
	body   map[string]any
}

// send sends a request, and checks the form of the answer.
func (c *client) send(method, path, body string, header ...string) answer {
	t := c.w.t
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, c.w.url+scim.Base+path, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/scim+json")
	request.Header.Set("Authorization", "Bearer "+c.token)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err, "%s %s", method, path)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)

	a := answer{t: t, status: response.StatusCode, header: response.Header, text: string(text)}
	if len(text) > 0 && response.Header.Get("Content-Type") == "application/scim+json" {
		require.NoError(t, json.Unmarshal(text, &a.body), a.text)
	}
	return a
}

// ok checks the status.
func (a answer) ok(status int) answer {
	a.t.Helper()
	require.Equal(a.t, status, a.status, a.text)
	if len(a.text) > 0 {
		require.Equal(a.t, "application/scim+json", a.header.Get("Content-Type"))
	}
	return a
}

// fails checks that the answer is an error in SCIM's form.
func (a answer) fails(status int, scimType string) {
	a.t.Helper()
	a.ok(status)
	require.Equal(a.t, []any{"urn:ietf:params:scim:api:messages:2.0:Error"}, a.body["schemas"], a.text)
	require.Equal(a.t, http.StatusText(status), http.StatusText(toInt(a.body["status"])), a.text)
	require.NotEmpty(a.t, a.body["detail"], a.text)
	got, _ := a.body["scimType"].(string)
	require.Equal(a.t, scimType, got, a.text)
}

func toInt(text any) (n int) {
	_ = json.Unmarshal([]byte(text.(string)), &n)
	return n
}

func (a answer) id() string { a.t.Helper(); return a.body["id"].(string) }

// ids returns the ids of a list, and how many there are in all.
func (a answer) ids() (ids []string, total int) {
	a.t.Helper()
	a.ok(http.StatusOK)
	for _, r := range a.body["Resources"].([]any) {
		ids = append(ids, r.(map[string]any)["id"].(string))
	}
	return ids, int(a.body["totalResults"].(float64))
}

// filter lists with a filter.
func (c *client) filter(kind, filter string) answer {
	c.w.t.Helper()
	return c.send("GET", "/"+kind+"?"+url.Values{"filter": {filter}}.Encode(), "")
}

// newUser provisions a user whose name is an e-mail address.
func (c *client) newUser(email string) string {
	c.w.t.Helper()
	return c.send("POST", "/Users", `{"schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"], "userName": "`+email+
		`", "active": true, "emails": [{"primary": true, "type": "work", "value": "`+email+`"}]}`).ok(201).id()
}

// find returns a user as admins see it.
func (w *world) find(of authz.Caller, name string) identity.User {
	w.t.Helper()
	u, err := w.identity.GetUser(w.t.Context(), of, name)
	require.NoError(w.t, err)
	return u
}

// audit returns the details of entries by the token with an action, latest first.
func (w *world) audit(of authz.Caller, action string) (details []string) {
	w.t.Helper()
	list, err := auditlog.List(w.t.Context(), w.requests, of, auditlog.Filter{Actor: "token:idp", Action: action},
		rest.PageInput{Limit: 100})
	require.NoError(w.t, err)
	for _, e := range list.Items {
		details = append(details, string(e.Detail))
	}
	return details
}

// signIn signs a subject in at the provider, and returns its browser and the status of the answer.
func (w *world) signIn(subject string) (*http.Client, int) {
	w.t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(w.t, err)
	b := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	get := func(address string) *http.Response {
		response, err := b.Get(address)
		require.NoError(w.t, err)
		require.NoError(w.t, response.Body.Close())
		return response
	}
	there := get(w.url + "/signin/with/corp")
	require.Equal(w.t, http.StatusSeeOther, there.StatusCode)
	return b, get(w.provider.SignIn(w.t, there.Header.Get("Location"), subject)).StatusCode
}

// me returns who a browser is, and the status of the answer.
func (w *world) me(b *http.Client) (me authz.Identity, status int) {
	w.t.Helper()
	response, err := b.Get(w.url + "/v1/whoami")
	require.NoError(w.t, err)
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		require.NoError(w.t, json.NewDecoder(response.Body).Decode(&me))
	}
	return me, response.StatusCode
}
