package main

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/internal/testbrowser"
	"github.com/dagctl/dagctl/internal/testoidc"
)

// signsIn makes people sign in at a provider.
func signsIn(t *testing.T, p *testoidc.Provider) func(*server.Config) {
	return func(cfg *server.Config) {
		cfg.BaseURL = "http://" + cfg.Listen
		file := filepath.Join(t.TempDir(), "secret")
		require.NoError(t, os.WriteFile(file, []byte("s3cret"), 0o600))
		cfg.Identity.Providers = []server.ProviderConfig{{Name: "corp", Title: "Corp", Issuer: p.Issuer,
			ClientID: "dagctl", ClientSecretFile: file}}
		p.SetClient(testoidc.Client{ID: "dagctl", Secret: "s3cret",
			RedirectURIs: []string{cfg.BaseURL + "/signin/callback/corp"}})
	}
}

// signIn goes from the sign-in page through the provider's login and consent.
func signIn(b *testbrowser.Browser, subject string) {
	b.Follow("main a.button")
	b.Fill("input[name=login]", subject)
	b.Fill("input[name=password]", "any")
	b.Follow("button[type=submit]") // login
	b.Follow("button[type=submit]") // consent
}

// exists reports whether the page has an element.
func exists(b *testbrowser.Browser, selector string) (found bool) {
	b.Run("look for "+selector, chromedp.Evaluate(`document.querySelector('`+selector+`') !== null`, &found))
	return found
}

// People get in with a browser, see what their role shows, and are out when an admin says so.
func TestPeopleGetInWithABrowser(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{
		{Subject: "ada", Email: "ada@example.com", EmailVerified: true, Name: "Ada"},
		{Subject: "ben", Email: "ben@example.com", EmailVerified: true, Name: "Ben"}}})
	w := newWorld(t, signsIn(t, p))
	w.deployReadings(t, "2026-01-01")
	require.NoError(t, w.as(admin).Post(t.Context(), "/v1/users",
		identity.NewUser{Email: "ada@example.com", Role: authz.RoleAdmin}, nil))

	ada := testbrowser.Start(t)
	ada.Open(w.url + "/datasets?search=highest")
	require.Equal(t, "Sign in", ada.Text("h1"))
	require.False(t, exists(ada, "nav"), "who has not signed in has nowhere to go")
	signIn(ada, "ada")
	require.Equal(t, w.url+"/datasets?search=highest", ada.URL(), "the page that was asked for")
	require.Equal(t, "ada@example.com · acme", ada.Text(".caller a"))
	ada.Follow(".caller a")
	require.Equal(t, w.url+"/account", ada.URL())
	require.Contains(t, ada.Text("main"), "admin in the org acme")

	ada.Click(".more summary")
	ada.Follow(`a[href="/users"]`)
	ada.Fill("#invite input[name=email]", "ben@example.com")
	ada.Follow("#invite button")
	require.Equal(t, "ben@example.com", ada.Text("h1"))
	require.Contains(t, ada.Text("main"), "invited")
	bensPage := ada.URL()

	ben := testbrowser.Start(t)
	ben.Open(w.url + "/dags")
	signIn(ben, "ben")
	require.Equal(t, w.url+"/dags", ben.URL())
	require.Equal(t, "ben@example.com · acme", ben.Text(".caller a"))
	require.False(t, exists(ben, `a[href="/users"]`), "a reader administers nothing")
	ben.Follow(`a[href="/datasets"]`)
	require.Contains(t, ben.Text("main"), "daily_highest")
	require.NotContains(t, ben.Text("main"), "readings/landing/0", "readers see published datasets only")
	ben.Open(bensPage)
	require.Contains(t, ben.Text("main"), "this needs the role admin")

	ben.Open(w.url + "/dags")
	ada.Open(bensPage)
	require.Contains(t, ada.Text("dl"), "active")
	ada.Follow("#disable button")
	disabled := time.Now()
	require.Contains(t, ada.Text("dl"), "disabled")
	ben.Follow(`a[href="/datasets"]`)
	require.Equal(t, "Sign in", ben.Text("h1"))
	require.Less(t, time.Since(disabled), 5*time.Second)

	ada.Open(w.url + "/users")
	require.Contains(t, ada.Text("main"), "ben@example.com")
	ada.Enter(".caller button")
	require.Equal(t, w.url+"/signin?out=1", ada.URL())
	require.Contains(t, ada.Text("main"), "You are signed out")
	ada.Run("go back", chromedp.NavigateBack())
	require.Equal(t, "Sign in", ada.Text("h1"))
	require.NotContains(t, ada.Text("body"), "ben@example.com")
}

// withBaseURL gives a server the address on which it listens.
func withBaseURL(cfg *server.Config) { cfg.BaseURL = "http://" + cfg.Listen }

func TestAdminsChangeUsersOnPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withBaseURL)
	root := w.signedIn(t, "root@example.com", authz.RoleAdmin)

	kept := root.refused("/users", url.Values{"email": {"nonsense"}, "name": {"Cy"}, "role": {"writer"},
		"grants": {"admin:x"}}, `"nonsense" is not an e-mail address`)
	require.Equal(t, []string{"nonsense", "Cy", "admin:x", "writer"},
		[]string{field(kept, "email"), field(kept, "name"), field(kept, "grants"), field(kept, "role")})
	require.Contains(t, text(kept), "cannot be granted on some DAGs", "everything that is wrong")
	root.refused("/users", url.Values{"email": {"root@example.com"}, "role": {"reader"}}, "already")

	root.done("/roles", url.Values{"slug": {"finance"}})
	cy := root.done("/users", url.Values{"email": {"cy@example.com"}, "role": {"reader"},
		"grants": {"writer:sales-*, proposer:orders"}, "org_roles": {"role:finance"}})
	require.Equal(t, "cy@example.com", text(all(cy, "h1")[0]))
	require.Equal(t, "writer:sales-* proposer:orders", field(cy, "grants"))
	var list struct{ Items []identity.User }
	require.NoError(t, w.as(admin).Get(t.Context(), "/v1/users", nil, &list))
	require.Len(t, list.Items, 2)
	user := list.Items[0]
	path := "/users/" + user.ID.String()
	require.Equal(t, []string{"role:finance"}, user.OrgRoles)

	// A link is shown once, and the user that it signs in may do what the page says.
	status, _, page := root.post(path+"/link", url.Values{})
	require.Equal(t, http.StatusOK, status)
	link := byID(page, "link")
	require.True(t, strings.HasPrefix(link, w.url+"/signin/link?token="), link)
	require.Empty(t, byID(root.get(path), "link"))
	in := w.follow(t, link)
	require.NotContains(t, text(in.get("/dags")), "Access")
	for _, part := range []url.Values{{}, {"role": {"admin"}}, {"grants": {""}}} {
		status, _, _ := root.post(path, part)
		require.Equal(t, http.StatusUnprocessableEntity, status, "%v", part)
	}
	require.Equal(t, "writer:sales-* proposer:orders", field(root.get(path), "grants"))
	root.done(path, url.Values{"role": {"admin"}, "grants": {""}})
	require.Contains(t, text(in.get("/dags")), "Access", "a change holds at once")
	require.NotContains(t, rows(in.get("/users"), 0)[0][4], "finance", "what the form left out is taken away")
	root.refused(path, url.Values{"role": {"emperor"}, "grants": {""}}, "is no role")
	root.refused(path, url.Values{"role": {"reader"}, "grants": {""}, "org_roles": {"role:gone"}},
		"there is no org role")

	root.done(path+"/sign-out", url.Values{})
	status, location, _ := in.send("/dags", nil)
	require.Equal(t, http.StatusSeeOther, status)
	require.Equal(t, "/signin?next=%2Fdags", location)
	require.Contains(t, text(root.done(path+"/disable", url.Values{})), "disabled")
	root.refused(path+"/link", url.Values{}, "`dagctl users enable cy@example.com` lets the user in again")
	require.Contains(t, text(root.done(path+"/enable", url.Values{})), "active")
	own := "/users/root@example.com"
	root.refused(own+"/disable", url.Values{}, "you cannot disable yourself")
	root.refused(own+"/remove", url.Values{}, "you cannot remove yourself")

	confirm := root.get(path + "/remove")
	require.Equal(t, "Remove cy@example.com?", text(all(confirm, "h1")[0]))
	require.NotContains(t, text(root.done(path+"/remove", url.Values{})), "cy@example.com")
	status, _, _ = root.send(path, nil)
	require.Equal(t, http.StatusNotFound, status)
}

func TestAdminsChangeRolesTrustAndTokensOnPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withBaseURL)
	root := w.signedIn(t, "root@example.com", authz.RoleAdmin)

	require.Contains(t, text(root.get("/roles")), "The org has no roles")
	kept := root.refused("/roles", url.Values{"slug": {"No Slug"}, "name": {"Money"}}, "is not the slug")
	require.Equal(t, "Money", field(kept, "name"))
	require.Equal(t, []string{"role:finance", "Money", "0", "0"},
		rows(root.done("/roles", url.Values{"slug": {"finance"}, "name": {"Money"}}), 0)[0][:4])

	// Trust.
	require.Equal(t, w.url+"/acme", byID(root.get("/trust"), "audience"))
	rule := url.Values{"name": {"main"}, "kind": {"workload"},
		"issuer": {"https://token.actions.githubusercontent.com"},
		"claims": {"repository=acme/flights\nref"}, "role": {"writer"}, "org_roles": {"role:finance"}}
	kept = root.refused("/trust", rule, `"ref" is not like CLAIM=PATTERN`)
	require.Equal(t, "repository=acme/flights ref", field(kept, "claims"))
	rule.Set("claims", "repository=acme/flights")
	root.refused("/trust", rule, "name the repository_id")
	rule.Set("claims", "repository_id = 7\r\nref=refs/heads/main\r\nref=refs/tags/*\r\n")
	require.Equal(t, []string{"main", "workloads", "https://token.actions.githubusercontent.com",
		"ref=refs/heads/main ref=refs/tags/* repository_id=7", "writer", "role:finance"},
		rows(root.done("/trust", rule), 0)[0][:6])
	root.refused("/trust", rule, "has a rule main already")
	require.Equal(t, "Remove the rule main?", text(all(root.get("/trust/main/remove"), "h1")[0]))
	require.Contains(t, text(root.done("/trust/main/remove", url.Values{})), "The org trusts no issuer")
	status, _, _ := root.send("/trust/main/remove", nil)
	require.Equal(t, http.StatusNotFound, status)

	// Tokens.
	kept = root.refused("/tokens", url.Values{"kind": {"user"}, "name": {"bi"}, "days": {"999"}, "role": {"reader"}},
		"a token lives 1 to 365 days")
	require.Equal(t, "bi", field(kept, "name"))
	status, _, page := root.post("/tokens", url.Values{"kind": {"user"}, "name": {"bi"}, "days": {"30"},
		"role": {"reader"}, "org_roles": {"role:finance"}})
	require.Equal(t, http.StatusOK, status)
	w.tokens["bi"] = byID(page, "secret")
	require.Empty(t, byID(root.get("/tokens"), "secret"))
	status, body := w.send(t, "bi", http.MethodGet, "/v1/whoami", "", nil)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "role:finance")
	root.refused("/roles/finance/delete", url.Values{}, "role:finance is in use: 1 tokens")
	root.done("/tokens/bi/revoke", url.Values{})
	status, _ = w.send(t, "bi", http.MethodGet, "/v1/whoami", "", nil)
	require.Equal(t, http.StatusUnauthorized, status)
	root.refused("/tokens/admin/revoke", url.Values{}, "is the last admin token")
	require.Contains(t, text(root.done("/roles/finance/delete", url.Values{})), "The org has no roles")
	status, _, page = root.post("/tokens", url.Values{"kind": {"worker"}, "name": {"gpu"}, "days": {"30"},
		"runtimes": {"gpu lambda"}})
	require.Equal(t, http.StatusOK, status, text(page))
	require.Contains(t, byID(page, "secret"), "dagctl_worker_")
	require.Contains(t, text(page), "runtimes gpu, lambda")

	// All of it is in the audit log.
	log := rows(root.get("/audit?action=token.create&actor=user:"+url.QueryEscape(userIn(root))), 0)
	require.Len(t, log, 2)
	require.Equal(t, []string{"token.create", "token:gpu"}, log[0][2:4])
	require.Contains(t, text(root.get("/audit?since=2999-01-01T00:00")), "No entry matches")
	status, _, body = root.send("/audit?since=yesterday", nil)
	require.Equal(t, http.StatusUnprocessableEntity, status)
	require.Equal(t, "yesterday", field(parse(t, body), "since"))
}

// formsOfAccess are the addresses to which the pages about access post.
var formsOfAccess = []string{"/users", "/users/{user}", "/users/{user}/disable", "/users/{user}/enable",
	"/users/{user}/sign-out", "/users/{user}/link", "/users/{user}/remove", "/roles", "/roles/{slug}/delete", "/trust",
	"/trust/{rule}/remove", "/tokens", "/tokens/{token}/revoke", "/signout", "/secrets",
	"/secrets/{name}/bind", "/secrets/{name}/delete", "/accept/{name...}", "/reject/{name...}"}

func TestFormsOfAccessNeedATokenAndARole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withBaseURL)
	root, low := w.signedIn(t, "root@example.com", authz.RoleAdmin), w.signedIn(t, "low@example.com", authz.RoleWriter)
	for _, route := range w.app.API.Routes() { // none is forgotten
		if route.Rule == authz.Admin && route.Method == http.MethodPost && !strings.HasPrefix(route.Path, "/v1/") &&
			!strings.HasPrefix(route.Path, "/workers") {
			require.Contains(t, formsOfAccess, route.Path)
		}
	}
	for _, path := range formsOfAccess {
		path = address(path, "")
		status, _, body := root.send(path, url.Values{"email": {"x@example.com"}, "role": {"reader"}})
		require.Equal(t, http.StatusForbidden, status, path)
		require.Contains(t, body, "CSRF token is missing", path)
		status, _, _ = root.send(path, url.Values{"csrf_token": {low.csrf()}})
		require.Equal(t, http.StatusForbidden, status, path)
		if path != "/signout" {
			status, _, page := low.post(path, url.Values{})
			require.Equal(t, http.StatusForbidden, status, path)
			require.Contains(t, text(page), "this needs the role admin", path)
			// What a browser would not send is no fault of the server.
			for _, odd := range []string{"\x00", "\xff", strings.Repeat("x", 60_000)} {
				form := url.Values{}
				for _, name := range []string{"email", "name", "issuer", "role", "grants", "org_roles", "slug", "kind",
					"claims", "days", "runtimes", "operators"} {
					form.Set(name, odd)
				}
				status, _, page := root.post(path, form)
				require.Less(t, status, 500, "%s: %s", path, text(page))
			}
		}
	}
	require.Len(t, rows(root.get("/users"), 0), 2, "nothing of that took effect")
}

// hostile is a name that would be script on a page that did not escape it.
const hostile = `"><script>alert(1)</script>'`

func TestPagesOfAccessShowManyRowsEscaped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withBaseURL)
	root := w.signedIn(t, "root@example.com", authz.RoleAdmin)
	pages := []string{"/users", "/roles", "/trust", "/tokens", "/audit", "/audit?object=none", "/account"}
	for _, path := range pages {
		requireAccessible(t, root.get(path), path)
	}

	_, err := w.pool.Exec(t.Context(), `
		INSERT INTO users (org_id, issuer, external_id, email, display_name, role, created_by)
		SELECT id, 'https://x', n || $1, n || $1, $1, 'reader', $1 FROM orgs, generate_series(1, 120) n
		WHERE slug = 'acme'`, hostile)
	require.NoError(t, err)
	_, err = w.pool.Exec(t.Context(), `
		INSERT INTO org_roles (org_id, slug, name) SELECT id, 'r' || n, $1 FROM orgs, generate_series(1, 120) n
		WHERE slug = 'acme'`, hostile)
	require.NoError(t, err)
	_, err = w.pool.Exec(t.Context(), `
		INSERT INTO trust_rules (id, org_id, name, kind, issuer, claims, role, org_roles, created_by)
		SELECT gen_random_uuid(), id, 'rule' || n, 'user', $1,
			jsonb_build_object($1::text, jsonb_build_array($1::text)), 'reader', '{}', $1
		FROM orgs, generate_series(1, 120) n WHERE slug = 'acme'`, hostile)
	require.NoError(t, err)
	_, err = w.pool.Exec(t.Context(), `
		INSERT INTO service_tokens (org_id, name, hash, kind, role, org_roles, created_by, expires_at)
		SELECT id, 'bot' || n, sha256(n::text::bytea), 'user', 'reader', '{}', $1, now() + interval '1 day'
		FROM orgs, generate_series(1, 120) n WHERE slug = 'acme'`, hostile)
	require.NoError(t, err)
	_, err = w.pool.Exec(t.Context(), `
		INSERT INTO audit_log (id, org_id, actor, action, object, detail, request_id)
		SELECT gen_random_uuid(), id, $1, 'x.y', $1, jsonb_build_object('a', $1::text), 'r'
		FROM orgs, generate_series(1, 120) n WHERE slug = 'acme'`, hostile)
	require.NoError(t, err)

	for _, path := range pages[:5] {
		page := root.get(path)
		requireAccessible(t, page, path)
		require.Len(t, rows(page, 0), 100, path)
		require.Contains(t, text(page), hostile, path)
		var next string
		for _, a := range all(page, "a") {
			if strings.HasPrefix(attribute(a, "href"), path+"?cursor=") {
				next = attribute(a, "href")
			}
		}
		require.NotEmpty(t, next, path)
		require.NotEmpty(t, rows(root.get(next), 0), path)
		status, _, _ := root.send(path+"?cursor=x", nil)
		require.Equal(t, http.StatusUnprocessableEntity, status, path)
	}
	for _, a := range all(root.get("/users"), "a") {
		if href := attribute(a, "href"); strings.HasPrefix(href, "/users/") {
			requireAccessible(t, root.get(href), href)
			requireAccessible(t, root.get(href+"/remove"), href)
			break
		}
	}
	kept := root.refused("/users", url.Values{"email": {hostile}, "name": {hostile}}, "is not an e-mail address")
	requireAccessible(t, kept, "/users")
	require.Equal(t, hostile, field(kept, "email"))
}
