package identity_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/internal/testoidc"
)

var ada = testoidc.User{Subject: "ada", Email: "Ada@example.com", EmailVerified: true, Name: "Ada"}

func TestBrowsersSignIn(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada,
		{Subject: "eve", Email: "ada@example.com"}, // says so, and nobody has verified it
		{Subject: "ben", Email: "ben@example.com", EmailVerified: true}}})
	w := newWorld(t, map[string]*testoidc.Provider{"corp": p})
	w.invite(w.acme, identity.NewUser{Email: "ada@example.com", Role: authz.RoleWriter})

	b := w.browser()
	away := b.get("/?x=1")
	require.Equal(t, http.StatusSeeOther, away.status)
	require.Equal(t, "/signin?next=%2F%3Fx%3D1", away.location)
	require.Contains(t, b.get(away.location).body, "/signin/with/corp?next=%2F%3Fx%3D1")

	there := b.start("corp", "next=%2F%3Fx%3D1")
	asked, err := url.Parse(there)
	require.NoError(t, err)
	require.Equal(t, "S256", asked.Query().Get("code_challenge_method"))
	back := p.SignIn(t, there, "ada")
	stranger := w.browser().get(back) // with the address, and without the cookie
	require.Equal(t, http.StatusUnprocessableEntity, stranger.status, stranger.body)
	home := b.get(back)
	require.Equal(t, http.StatusSeeOther, home.status, home.body)
	require.Equal(t, "/?x=1", home.location)
	require.Equal(t, "home of ada@example.com in acme", b.get("/").body)
	status, me := b.me()
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, authz.RoleWriter, me.Role)
	require.Equal(t, http.StatusUnprocessableEntity, b.get(back).status, "a flow is good for one answer")

	require.Equal(t, http.StatusForbidden, w.browser().signIn(p, "corp", "eve", "").status)
	require.Equal(t, http.StatusForbidden, w.browser().signIn(p, "corp", "ben", "").status)
	refused := w.browser()
	require.Equal(t, http.StatusForbidden, refused.get(p.Cancel(t, refused.start("corp", ""))).status)
}

// Several tabs sign in, each by its own flow, and a page of somebody else cancels none.
func TestSeveralTabsSignIn(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	w := newWorld(t, map[string]*testoidc.Provider{"corp": p})
	w.invite(w.acme, identity.NewUser{Email: "ada@example.com", Role: authz.RoleWriter})
	b := w.browser()
	first, second := b.start("corp", "next=%2Ffirst"), b.start("corp", "next=%2Fsecond")
	stray := b.get("/signin/callback/corp?code=x&state=y")
	require.Equal(t, http.StatusUnprocessableEntity, stray.status)

	backs := map[string]string{"/first": p.SignIn(t, first, "ada"), "/second": p.SignIn(t, second, "ada")}
	for next, back := range backs {
		done := b.get(back)
		require.Equal(t, []any{http.StatusSeeOther, next}, []any{done.status, done.location}, done.body)
		require.Equal(t, http.StatusUnprocessableEntity, b.get(back).status, "a flow is good for one answer")
	}

	// As many as a cookie can have: the oldest go.
	long := "next=%2F" + strings.Repeat("x", 2000)
	oldest := b.start("corp", "")
	b.start("corp", long)
	latest := b.start("corp", long)
	require.Equal(t, http.StatusUnprocessableEntity, b.get(p.SignIn(t, oldest, "ada")).status)
	require.Equal(t, http.StatusSeeOther, b.get(p.SignIn(t, latest, "ada")).status)
}

func TestSigningOut(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	w := newWorld(t, map[string]*testoidc.Provider{"corp": p})
	u := w.invite(w.acme, identity.NewUser{Email: "ada@example.com", Role: authz.RoleReader})
	signedIn := func() *browser {
		b := w.browser()
		require.Equal(t, http.StatusSeeOther, b.signIn(p, "corp", "ada", "").status)
		status, _ := b.me()
		require.Equal(t, http.StatusOK, status)
		return b
	}
	out := func(b *browser) {
		t.Helper()
		status, _ := b.me()
		require.Equal(t, http.StatusUnauthorized, status)
	}

	first, second, third := signedIn(), signedIn(), signedIn()
	form := url.Values{"csrf_token": {first.csrf("/account")}}
	require.Equal(t, http.StatusForbidden, second.post("/signout", form).status, "the token of another session")
	require.Equal(t, http.StatusForbidden, first.do(http.MethodPost, "/signout", form,
		http.Header{"Origin": {"http://elsewhere.example"}}).status)
	old, _ := url.Parse(w.url)
	kept := first.client.Jar.Cookies(old)
	require.Equal(t, "/signin?out=1", first.post("/signout", form).location)
	first.client.Jar.SetCookies(old, kept) // somebody has a copy
	out(first)

	everywhere := url.Values{"csrf_token": {second.csrf("/account")}, "everywhere": {"1"}}
	require.Equal(t, http.StatusSeeOther, second.post("/signout", everywhere).status)
	out(third)

	fourth := signedIn()
	before := fourth.client.Jar.Cookies(old)[0].Value
	require.Equal(t, http.StatusSeeOther, fourth.signIn(p, "corp", "ada", "").status)
	require.NotEqual(t, before, fourth.client.Jar.Cookies(old)[0].Value, "every sign-in makes a new session")
	status, _ := w.ask(http.Header{"Cookie": {authz.SessionCookie + "=" + before}})
	require.Equal(t, http.StatusUnauthorized, status, "and ends the old one of the browser")

	require.NoError(t, w.identity.SignOutUser(t.Context(), w.acme, u.Email))
	out(fourth)
	fifth, yes, no := signedIn(), true, false
	_, err := w.identity.ChangeUser(t.Context(), w.acme, u.Email, identity.UserChange{Disabled: &yes})
	require.NoError(t, err)
	out(fifth)
	require.Equal(t, http.StatusForbidden, w.browser().signIn(p, "corp", "ada", "").status)
	var refused int
	require.NoError(t, w.owner.QueryRow(t.Context(), `
		SELECT count(*) FROM audit_log WHERE actor = $1 AND action = 'user.sign_in' AND outcome = 'refused'`,
		"user:"+u.ID.String()).Scan(&refused))
	require.Equal(t, 1, refused)
	_, err = w.identity.ChangeUser(t.Context(), w.acme, u.Email, identity.UserChange{Disabled: &no})
	require.NoError(t, err)
	out(fifth)
	require.NoError(t, w.identity.RemoveUser(t.Context(), w.acme, u.ID.String()))
	require.Equal(t, http.StatusForbidden, w.browser().signIn(p, "corp", "ada", "").status)
}

func TestACookieAndATokenTogetherAreRefused(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	w := newWorld(t, map[string]*testoidc.Provider{"corp": p})
	w.invite(w.acme, identity.NewUser{Email: "ada@example.com", Role: authz.RoleReader})
	b := w.browser()
	require.Equal(t, http.StatusSeeOther, b.signIn(p, "corp", "ada", "").status)

	base, _ := url.Parse(w.url)
	cookie := b.client.Jar.Cookies(base)[0].String()
	status, _ := w.ask(http.Header{"Cookie": {cookie}, "Authorization": {"Bearer " + w.tokens["globex"]}})
	require.Equal(t, http.StatusUnauthorized, status)
	token := strings.TrimPrefix(cookie, authz.SessionCookie+"=")
	status, _ = w.whoami(token)
	require.Equal(t, http.StatusUnauthorized, status, "the secret of a cookie is no bearer token")
}

func TestOnlyTheServersOwnHostAnswersBrowsers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	ask := func(path, host, token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+path, nil)
		require.NoError(t, err)
		request.Host = host
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	own := strings.TrimPrefix(w.url, "http://")
	require.Equal(t, http.StatusOK, ask("/signin", own, ""))
	require.Equal(t, http.StatusForbidden, ask("/signin", "rebound.example", ""))
	require.Equal(t, http.StatusForbidden, ask("/v1/whoami", "rebound.example", ""))
	require.Equal(t, http.StatusOK, ask("/v1/whoami", "dagctl.internal:7070", w.tokens["acme"]),
		"no page can send a token")
}
