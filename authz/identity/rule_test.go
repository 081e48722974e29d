package identity_test

import (
	"maps"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/testoidc"
)

func TestRulesAdmitGroups(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{
		{Subject: "ada", Email: "ada@example.com", EmailVerified: true, Groups: []string{"data", "finance"}},
		{Subject: "ben", Email: "ben@other.example", EmailVerified: true, Groups: []string{"sales"}},
		{Subject: "eve", Email: "eve@example.com", Groups: []string{"sales"}}}})
	w := newWorld(t, map[string]*testoidc.Provider{"corp": p})
	_, err := authz.CreateOrgRole(t.Context(), w.requests, w.acme, "finance", "")
	require.NoError(t, err)
	w.trust(w.acme, identity.NewRule{Name: "data", Kind: identity.ForUsers, Issuer: p.Issuer, Role: authz.RoleReader,
		Claims: identity.Conditions{"groups": {"data"}}, Grants: []authz.Grant{{Role: authz.RoleWriter,
			DAGs: "sales-*"}}})
	w.trust(w.acme, identity.NewRule{Name: "finance", Kind: identity.ForUsers, Issuer: p.Issuer,
		Role:   authz.RoleProposer,
		Claims: identity.Conditions{"groups": {"finance", "audit"}}, OrgRoles: []string{"role:finance"}})
	w.trust(w.globex, identity.NewRule{Name: "domain", Kind: identity.ForUsers, Issuer: p.Issuer,
		Role:   authz.RoleReader,
		Claims: identity.Conditions{"email_domain": {"example.com"}}})

	// Both orgs let her in, so she is asked, and neither knows of her before she has chosen it.
	b := w.browser()
	asked := b.signIn(p, "corp", "ada", "next=%2Ftasks")
	require.Equal(t, http.StatusOK, asked.status)
	require.Contains(t, asked.body, "/signin/with/corp?next=%2Ftasks&amp;org=globex")
	require.Equal(t, http.StatusSeeOther, b.signIn(p, "corp", "ada", "org=acme").status)
	list, err := w.identity.ListUsers(t.Context(), w.globex, rest.PageInput{Limit: 10})
	require.NoError(t, err)
	require.Empty(t, list.Items)
	require.Equal(t, http.StatusSeeOther, w.browser().signIn(p, "corp", "ada", "").status, "where she was last")
	status, me := b.me()
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "acme", me.Org)
	require.Equal(t, authz.RoleProposer, me.Role)
	require.Equal(t, []authz.Grant{{Role: authz.RoleWriter, DAGs: "sales-*"}}, me.Grants)
	require.Equal(t, []string{"role:finance"}, me.OrgRoles)

	// A rule that goes takes what it gave at once, and whoever came by rules alone is out with the last.
	p.SetUser(testoidc.User{Subject: "ada", Email: "ada@example.com", EmailVerified: true, Groups: []string{"data"}})
	require.Equal(t, http.StatusSeeOther, w.browser().signIn(p, "corp", "ada", "org=acme").status)
	_, me = b.me()
	require.Equal(t, authz.RoleReader, me.Role, "a sign-in elsewhere tells what she is in no more")
	require.NoError(t, w.identity.DeleteRule(t.Context(), w.acme, "finance"))
	_, me = b.me()
	require.Equal(t, authz.RoleReader, me.Role)
	require.Empty(t, me.OrgRoles)
	require.NoError(t, w.identity.DeleteRule(t.Context(), w.acme, "data"))
	status, _ = b.me()
	require.Equal(t, http.StatusUnauthorized, status)

	// The same person is in another org, by another rule, and switches there.
	require.Equal(t, http.StatusSeeOther, b.signIn(p, "corp", "ada", "org=globex").status)
	_, me = b.me()
	require.Equal(t, "globex", me.Org)
	require.Equal(t, http.StatusForbidden, w.browser().signIn(p, "corp", "ada", "org=acme").status)
	require.Equal(t, http.StatusForbidden, w.browser().signIn(p, "corp", "ben", "").status, "no rule, no way in")
	require.Equal(t, http.StatusForbidden, w.browser().signIn(p, "corp", "eve", "").status,
		"nobody has verified the address")
}

func TestAPersonIsInSeveralOrgs(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	other := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	w := newWorld(t, map[string]*testoidc.Provider{"corp": p, "other": other}, func(c *identity.Config) {
		for i := range c.Providers {
			if c.Providers[i].Name == "other" {
				c.Providers[i].Orgs = []string{"globex"}
			}
		}
	})
	for org, caller := range map[string]authz.Caller{"acme": w.acme, "globex": w.globex} {
		role := map[string]authz.Role{"acme": authz.RoleReader, "globex": authz.RoleAdmin}[org]
		w.invite(caller, identity.NewUser{Email: ada.Email, Issuer: p.Issuer, Role: role})
	}
	_, err := w.identity.Invite(t.Context(), w.acme, identity.NewUser{Email: ada.Email, Issuer: other.Issuer,
		Role: authz.RoleAdmin})
	require.ErrorContains(t, err, "is no provider of this server at which people of acme sign in")

	b := w.browser()
	require.Equal(t, http.StatusOK, b.signIn(p, "corp", "ada", "").status)
	require.Equal(t, http.StatusSeeOther, b.signIn(p, "corp", "ada", "org=acme").status)
	_, me := b.me()
	require.Equal(t, "acme", me.Org)
	require.Equal(t, authz.RoleReader, me.Role)
	require.Equal(t, http.StatusSeeOther, b.signIn(p, "corp", "ada", "org=globex").status)
	_, me = b.me()
	require.Equal(t, authz.RoleAdmin, me.Role)
	require.Contains(t, b.get("/account").body, "/signin/with/corp?next=%2F&amp;org=acme")

	// The second provider has the same subject and address, and it vouches for nobody in acme.
	require.Equal(t, http.StatusForbidden, w.browser().signIn(other, "other", "ada", "").status)
}

func TestWorkloadsComeByTrustAlone(t *testing.T) {
	t.Parallel()
	ci, stranger := testoidc.Start(t, testoidc.Options{}), testoidc.Start(t, testoidc.Options{})
	w := newWorld(t, nil)
	rule := w.trust(w.acme, identity.NewRule{Name: "deploy", Kind: identity.ForWorkloads, Issuer: ci.Issuer,
		Role: authz.RoleReader, Grants: []authz.Grant{{Role: authz.RoleWriter, DAGs: "sales-*"}},
		Claims: identity.Conditions{"repository_id": {"42"}, "ref": {"refs/heads/main", "refs/heads/release-*"}}})
	require.Equal(t, w.url+"/acme", rule.Audience)

	of := func(change map[string]any) map[string]any {
		now := time.Now().Unix()
		claims := map[string]any{"iss": ci.Issuer, "sub": "repo:acme/pipelines", "aud": rule.Audience, "iat": now,
			"nbf": now, "exp": now + 600, "repository_id": 42, "ref": "refs/heads/main"}
		maps.Copy(claims, change)
		for name, v := range claims {
			if v == nil {
				delete(claims, name)
			}
		}
		return claims
	}
	status, me := w.whoami(ci.Sign(of(nil), testoidc.Signing{}))
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "acme", me.Org)
	require.Equal(t, "workload:deploy", me.Actor)
	require.Equal(t, "repo:acme/pipelines", me.Name)
	require.Equal(t, []authz.Grant{{Role: authz.RoleWriter, DAGs: "sales-*"}}, me.Grants)
	status, _ = w.whoami(ci.Sign(of(map[string]any{"ref": "refs/heads/release-1.2"}), testoidc.Signing{}))
	require.Equal(t, http.StatusOK, status)

	seconds := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	for name, times := range map[string]map[string]any{
		"expired within the leeway": {"exp": seconds(-30 * time.Second)},
		"issued within the leeway":  {"iat": seconds(30 * time.Second)},
		"a day":                     {"exp": seconds(24 * time.Hour)},
		"as a fraction":             {"exp": float64(seconds(time.Hour)) + 0.5},
	} {
		status, _ = w.whoami(ci.Sign(of(times), testoidc.Signing{}))
		require.Equal(t, http.StatusOK, status, name)
	}
	for says, times := range map[string]map[string]any{
		"the token has expired":                 {"exp": seconds(-2 * time.Minute)},
		"the token was issued in the future":    {"iat": seconds(5 * time.Minute)},
		"the token lasts 48h0m0s: 24h0m0s is":   {"exp": seconds(48 * time.Hour)},
		"the token lasts 25h0m0s: 24h0m0s is":   {"exp": seconds(25 * time.Hour), "iat": nil},
		"the token lasts 72h0m0s: 24h0m0s is":   {"exp": seconds(time.Hour), "iat": seconds(-71 * time.Hour)},
		"clocks of this server and of the issu": {"exp": seconds(-2 * time.Minute), "iat": seconds(-time.Hour)},
	} {
		refused := w.browser().do(http.MethodGet, "/v1/whoami", nil, http.Header{
			"Authorization": {"Bearer " + ci.Sign(of(times), testoidc.Signing{})}, "Accept": {"application/json"}})
		require.Equal(t, http.StatusUnauthorized, refused.status, says)
		require.Contains(t, refused.body, says)
	}

	past, future := time.Now().Add(-time.Hour).Unix(), time.Now().Add(time.Hour).Unix()
	for name, token := range map[string]string{
		"another repository": ci.Sign(of(map[string]any{"repository_id": 43}), testoidc.Signing{}),
		"another branch":     ci.Sign(of(map[string]any{"ref": "refs/heads/feature"}), testoidc.Signing{}),
		"a pattern's star":   ci.Sign(of(map[string]any{"ref": "refs/heads/release-1/x"}), testoidc.Signing{}),
		"no branch":          ci.Sign(of(map[string]any{"ref": nil}), testoidc.Signing{}),
		"expired":            ci.Sign(of(map[string]any{"exp": past}), testoidc.Signing{}),
		"without an end":     ci.Sign(of(map[string]any{"exp": nil}), testoidc.Signing{}),
		"not yet valid":      ci.Sign(of(map[string]any{"nbf": future}), testoidc.Signing{}),
		"another org":        ci.Sign(of(map[string]any{"aud": w.url + "/globex"}), testoidc.Signing{}),
		"another audience":   ci.Sign(of(map[string]any{"aud": "https://dagctl.example/acme"}), testoidc.Signing{}),
		"two audiences": ci.Sign(of(map[string]any{"aud": []string{rule.Audience, "https://else.example"}}),
			testoidc.Signing{}),
		"another issuer": stranger.Sign(of(map[string]any{"iss": stranger.Issuer}), testoidc.Signing{}),
		"re-signed":      stranger.Sign(of(nil), testoidc.Signing{}),
		"unsigned":       ci.Sign(of(nil), testoidc.Signing{Algorithm: testoidc.None}),
		"public key":     ci.Sign(of(nil), testoidc.Signing{Algorithm: testoidc.PublicKeyHS256}),
		"no subject":     ci.Sign(of(map[string]any{"sub": nil}), testoidc.Signing{}),
	} {
		status, _ := w.whoami(token)
		require.Equal(t, http.StatusUnauthorized, status, name)
	}

	run := testoidc.Client{ID: "run", Secret: "x"}
	ci.SetClient(run)
	token := ci.ClientCredentials(t, run, of(map[string]any{"iss": nil, "exp": nil,
		"iat": nil, "nbf": nil}))
	status, _ = w.whoami(token)
	require.Equal(t, http.StatusOK, status, "as the issuer itself makes it")
	require.NoError(t, w.identity.DeleteRule(t.Context(), w.acme, "deploy"))
	status, _ = w.whoami(token)
	require.Equal(t, http.StatusUnauthorized, status)
}

func TestIssuersChangeTheirKeysAndGoAway(t *testing.T) {
	t.Parallel()
	ci := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	w := newWorld(t, map[string]*testoidc.Provider{"corp": ci})
	w.invite(w.acme, identity.NewUser{Email: ada.Email, Role: authz.RoleReader})
	rule := w.trust(w.acme, identity.NewRule{Name: "ci", Kind: identity.ForWorkloads, Issuer: ci.Issuer,
		Role: authz.RoleReader, Claims: identity.Conditions{"job": {"x"}}})
	sign := func() string {
		return ci.Sign(map[string]any{"iss": ci.Issuer, "sub": "s", "aud": rule.Audience, "job": "x",
			"exp": time.Now().Add(time.Hour).Unix()}, testoidc.Signing{})
	}
	eventually := func(token string, want int) {
		t.Helper()
		require.Eventually(t, func() bool {
			status, _ := w.whoami(token)
			return status == want
		}, 20*time.Second, 100*time.Millisecond)
	}

	old := sign()
	eventually(old, http.StatusOK)
	b := w.browser()
	require.Equal(t, http.StatusSeeOther, b.signIn(ci, "corp", "ada", "").status)
	ci.RotateKeys()
	eventually(sign(), http.StatusOK) // the new key is asked for
	eventually(old, http.StatusUnauthorized)
	require.Equal(t, http.StatusSeeOther, w.browser().signIn(ci, "corp", "ada", "").status)

	fresh := sign()
	for _, away := range []func(){ci.Stop, ci.Pause} {
		away()
		status, _ := w.whoami(fresh)
		require.Equal(t, http.StatusOK, status, "known keys verify without the issuer")
		status, _ = b.me()
		require.Equal(t, http.StatusOK, status, "whoever is signed in stays so")
		ci.Resume()
	}

	// A server that has just started knows no keys yet.
	late := newWorld(t, map[string]*testoidc.Provider{"corp": ci})
	ci.Stop()
	require.Equal(t, http.StatusServiceUnavailable, late.browser().get("/signin/with/corp").status)
	ci.Resume()
	require.Eventually(t, func() bool {
		return late.browser().get("/signin/with/corp").status == http.StatusSeeOther
	}, 20*time.Second, 100*time.Millisecond)
}

func TestRulesThatTrustTooMuchAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	good := identity.NewRule{Name: "x", Kind: identity.ForWorkloads,
		Issuer: "https://token.actions.githubusercontent.com",
		Role:   authz.RoleReader, Claims: identity.Conditions{"repository_owner_id": {"7"}, "ref": {"refs/heads/*"}}}
	for name, change := range map[string]func(r *identity.NewRule){
		"no claims":     func(r *identity.NewRule) { r.Claims = nil },
		"claims of all": func(r *identity.NewRule) { r.Claims = identity.Conditions{"aud": {"x"}, "iss": {"y"}} },
		"punctuation":   func(r *identity.NewRule) { r.Claims["email"] = []string{"*@*.*"} },
		"an enterprise": func(r *identity.NewRule) {
			r.Issuer, r.Claims = r.Issuer+"/acme", identity.Conditions{"ref": {"x"}}
		},
		"people of others": func(r *identity.NewRule) { r.Kind = identity.ForUsers },
		"any value":        func(r *identity.NewRule) { r.Claims = identity.Conditions{"repository_owner_id": {"*"}} },
		"a pattern of ids": func(r *identity.NewRule) { r.Claims = identity.Conditions{"repository_owner_id": {"7*"}} },
		"a name only":      func(r *identity.NewRule) { r.Claims = identity.Conditions{"repository": {"acme/x"}} },
		"plain http":       func(r *identity.NewRule) { r.Issuer = "http://issuer.example" },
		"no issuer":        func(r *identity.NewRule) { r.Issuer = "" },
		"no role":          func(r *identity.NewRule) { r.Role = "" },
		"no kind":          func(r *identity.NewRule) { r.Kind = "" },
		"an admin of some": func(r *identity.NewRule) { r.Grants = []authz.Grant{{Role: authz.RoleAdmin, DAGs: "x"}} },
	} {
		r := good
		r.Claims = maps.Clone(good.Claims)
		change(&r)
		_, err := w.identity.CreateRule(t.Context(), w.acme, r)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
	}
	w.trust(w.acme, good)
	_, err := w.identity.CreateRule(t.Context(), w.acme, good)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
}

// A role that something gives, or that new datasets get, is not deleted: a new one of the name would have its readers.
func TestAnOrgRoleInUseStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	ctx, workload := t.Context(), identity.NewRule{Name: "nightly", Kind: identity.ForWorkloads,
		Issuer: "https://ci.example.com", Claims: identity.Conditions{"sub": {"nightly"}}, Role: authz.RoleReader}
	group := identity.NewRule{Name: "staff", Kind: identity.ForGroups, Issuer: "https://idp.example.com",
		Claims: identity.Conditions{"group": {"staff"}}, Role: authz.RoleReader}
	for _, rule := range []*identity.NewRule{&workload, &group} {
		rule.OrgRoles = []string{"role:finance"}
	}
	_, err := authz.CreateOrgRole(ctx, w.requests, w.acme, "finance", "")
	require.NoError(t, err)
	refused := func(uses string) {
		t.Helper()
		err := authz.DeleteOrgRole(ctx, w.requests, w.acme, "finance")
		require.True(t, fault.Is(err, fault.Conflict), "%v", err)
		require.ErrorContains(t, err, "role:finance is in use: "+uses)
	}

	w.trust(w.acme, workload)
	refused("trust rules nightly")
	w.trust(w.acme, group)
	require.NoError(t, authz.SetOrgSettings(ctx, w.owner, w.acme,
		authz.Settings{DefaultReadRoles: []string{"role:finance"}}))
	w.invite(w.acme, identity.NewUser{Email: "ada@example.com", Role: authz.RoleReader, OrgRoles: group.OrgRoles})
	refused("1 users; trust rules nightly, staff; the org's default for new datasets")
	require.NoError(t, w.identity.DeleteRule(ctx, w.acme, "nightly"))
	require.NoError(t, w.identity.RemoveUser(ctx, w.acme, "ada@example.com"))
	require.NoError(t, authz.SetOrgSettings(ctx, w.owner, w.acme, authz.Settings{}))
	refused("trust rules staff")
	require.NoError(t, w.identity.DeleteRule(ctx, w.acme, "staff"))

	// Of a rule that begins to give it and its deletion at the same moment, only one is done.
	made := make(chan error, 1)
	go func() {
		_, err := w.identity.CreateRule(ctx, w.acme, group)
		made <- err
	}()
	deleted := authz.DeleteOrgRole(ctx, w.requests, w.acme, "finance")
	require.NotEqual(t, deleted == nil, <-made == nil, "%v", deleted)
}

func TestLinksSignInOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	u := w.invite(w.acme, identity.NewUser{Email: "root@example.com", Role: authz.RoleAdmin})
	require.Equal(t, identity.Local, u.Issuer)
	lost, err := w.identity.CreateLink(t.Context(), w.acme, u.Email)
	require.NoError(t, err)
	link, err := w.identity.CreateLink(t.Context(), w.acme, u.Email)
	require.NoError(t, err)

	tokenOf := func(l identity.Link) url.Values {
		u, err := url.Parse(l.URL)
		require.NoError(t, err)
		return url.Values{"token": {u.Query().Get("token")}}
	}
	b := w.browser()
	require.Contains(t, b.get(link.URL).body, "Sign in")
	require.Contains(t, b.get(link.URL).body, "Sign in", "to look at it does not use it up")
	require.Equal(t, http.StatusForbidden, b.do(http.MethodPost, "/signin/link", tokenOf(link),
		http.Header{"Origin": {"https://evil.example"}}).status, "another page signs nobody in")
	require.Equal(t, http.StatusSeeOther, b.post("/signin/link", tokenOf(link)).status)
	status, me := b.me()
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, authz.RoleAdmin, me.Role)
	for _, l := range []identity.Link{link, lost} {
		require.Equal(t, http.StatusForbidden, w.browser().post("/signin/link", tokenOf(l)).status)
	}

	first, err := identity.FirstLink(t.Context(), w.owner, authz.Org{ID: w.globex.OrgID, Slug: "globex"},
		"first@example.com", w.url)
	require.NoError(t, err)
	require.Equal(t, http.StatusSeeOther, b.post("/signin/link", tokenOf(first)).status)
	_, me = b.me()
	require.Equal(t, "globex", me.Org)
}
