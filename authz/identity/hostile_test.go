package identity_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/internal/testoidc"
)

// A provider that sends a browser on to another gets nothing by the answer: each has an address of its own to come back
// to, and the answer names who gave it.
func TestAnAnswerOfAnotherProviderIsRefused(t *testing.T) {
	t.Parallel()
	one := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	two := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	w := newWorld(t, map[string]*testoidc.Provider{"one": one, "two": two})
	w.invite(w.acme, identity.NewUser{Email: ada.Email, Issuer: one.Issuer, Role: authz.RoleAdmin})

	b := w.browser()
	begun, err := url.Parse(b.start("two", ""))
	require.NoError(t, err)
	require.Equal(t, w.url+"/signin/callback/two", begun.Query().Get("redirect_uri"))
	back := w.browser().start("one", "")
	answer, err := url.Parse(one.SignIn(t, back, "ada"))
	require.NoError(t, err)
	require.Equal(t, "/signin/callback/one", answer.Path)
	query := answer.Query()
	query.Set("state", begun.Query().Get("state")) // the browser's own
	require.Equal(t, http.StatusUnprocessableEntity, b.get("/signin/callback/one?"+query.Encode()).status)

	c := w.browser()
	answer, err = url.Parse(one.SignIn(t, c.start("one", ""), "ada"))
	require.NoError(t, err)
	query = answer.Query()
	query.Set("iss", two.Issuer)
	require.Equal(t, http.StatusUnprocessableEntity, c.get(answer.Path+"?"+query.Encode()).status)
}

// An ID token that a provider made for another sign-in signs nobody in: its nonce is not the one that was asked for.
func TestATokenOfAnotherSignInIsRefused(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	w := newWorld(t, map[string]*testoidc.Provider{"corp": p})
	w.invite(w.acme, identity.NewUser{Email: ada.Email, Role: authz.RoleReader})
	for _, nonce := range []string{"another", ""} {
		b := w.browser()
		asked, err := url.Parse(b.start("corp", ""))
		require.NoError(t, err)
		query := asked.Query()
		require.NotEmpty(t, query.Get("nonce"))
		query.Set("nonce", nonce)
		if nonce == "" {
			query.Del("nonce")
		}
		asked.RawQuery = query.Encode()

		refused := b.get(p.SignIn(t, asked.String(), "ada"))
		require.Equal(t, http.StatusUnauthorized, refused.status, refused.body)
		status, _ := b.me()
		require.Equal(t, http.StatusUnauthorized, status)
	}
	require.Equal(t, http.StatusSeeOther, w.browser().signIn(p, "corp", "ada", "").status)
}

func TestAddressesThatOnlyLookAlikeAreOthers(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{
		{Subject: "eve", Email: "\u212aim@wor\u212a.com", EmailVerified: true},
		{Subject: "nul", Email: "a\x00b@example.com", EmailVerified: true}}})
	w := newWorld(t, map[string]*testoidc.Provider{"corp": p})
	w.invite(w.acme, identity.NewUser{Email: "kim@work.com", Role: authz.RoleAdmin})
	require.Equal(t, http.StatusForbidden, w.browser().signIn(p, "corp", "eve", "").status)
	require.Equal(t, http.StatusUnauthorized, w.browser().signIn(p, "corp", "nul", "").status)
}

func TestALapsedInvitationIsRepeated(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	w := newWorld(t, map[string]*testoidc.Provider{"corp": p})
	u := w.invite(w.acme, identity.NewUser{Email: ada.Email, Role: authz.RoleReader})
	_, err := w.identity.Invite(t.Context(), w.acme, identity.NewUser{Email: ada.Email, Role: authz.RoleReader})
	require.ErrorContains(t, err, "already")
	_, err = w.owner.Exec(t.Context(), `UPDATE users SET invited_until = now() - interval '1 day' WHERE id = $1`, u.ID)
	require.NoError(t, err)
	require.Contains(t, w.browser().signIn(p, "corp", "ada", "").body, "the invitation has lapsed")
	w.invite(w.acme, identity.NewUser{Email: ada.Email, Role: authz.RoleWriter})
	b := w.browser()
	require.Equal(t, http.StatusSeeOther, b.signIn(p, "corp", "ada", "").status)
	_, me := b.me()
	require.Equal(t, authz.RoleWriter, me.Role)
}

// odd is an issuer that says what a test wants it to say.
type odd struct {
	*httptest.Server
	keys  atomic.Pointer[string] // its JWKS
	moved atomic.Bool            // the keys are at another address
	key   jose.JSONWebKey
}

func newOdd(t *testing.T) *odd {
	o := &odd{key: testoidc.NewKey(t)}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := "/old"
		if o.moved.Load() {
			at = "/new"
		}
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			fmt.Fprintf(w, `{"issuer": %q, "jwks_uri": %q, "authorization_endpoint": %q, "token_endpoint": %q}`,
				o.URL, o.URL+at, o.URL+"/a", o.URL+"/t")
		case at:
			fmt.Fprint(w, *o.keys.Load())
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(o.Close)
	o.serve(t)
	return o
}

// serve makes the issuer say its key, and others.
func (o *odd) serve(t *testing.T, others ...string) {
	own, err := json.Marshal(o.key.Public())
	require.NoError(t, err)
	text := `{"keys": [` + strings.Join(append(others, string(own)), ", ") + `]}`
	o.keys.Store(&text)
}

func TestIssuersMayHaveKeysOfOtherSortsAndMove(t *testing.T) {
	t.Parallel()
	w, o := newWorld(t, nil), newOdd(t)
	o.serve(t, `{"kty": "AKP", "alg": "ML-DSA-44", "pub": "AAAA", "kid": "pq"}`,
		`{"kty": "OKP", "crv": "X25519", "x": "AAAA", "use": "enc"}`,
		`{"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"}`)
	o.moved.Store(true) // first, the keys are where it says
	rule := w.trust(w.acme, identity.NewRule{Name: "odd", Kind: identity.ForWorkloads, Issuer: o.URL,
		Role: authz.RoleReader, Claims: identity.Conditions{"job": {"x"}}})
	sign := func() string {
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: o.key}, nil)
		require.NoError(t, err)
		claims, err := json.Marshal(map[string]any{"iss": o.URL, "sub": "s", "aud": rule.Audience, "job": "x",
			"exp": time.Now().Add(time.Hour).Unix()})
		require.NoError(t, err)
		signed, err := signer.Sign(claims)
		require.NoError(t, err)
		text, err := signed.CompactSerialize()
		require.NoError(t, err)
		return text
	}
	status, _ := w.whoami(sign())
	require.Equal(t, http.StatusOK, status)

	// It moves its keys to another address, and has new ones: the old address is asked in vain, and then the issuer
	// itself.
	o.moved.Store(false)
	o.key = testoidc.NewKey(t)
	o.serve(t)
	require.Eventually(t, func() bool {
		status, _ := w.whoami(sign())
		return status == http.StatusOK
	}, 30*time.Second, 200*time.Millisecond)
}

func TestAddressesAreAsBrowsersWriteThem(t *testing.T) {
	t.Parallel()
	for written, want := range map[string]string{
		"https://Dagctl.Example.com": "https://dagctl.example.com",
		"https://x.example.com:443/": "https://x.example.com",
		"http://127.0.0.1:80":        "http://127.0.0.1", "https://x.example.com:8443": "https://x.example.com:8443",
		"": ""} {
		require.Equal(t, want, identity.Canonical(written))
	}
	good := identity.Provider{Name: "x", Issuer: "https://issuer.example", ClientID: "c"}
	require.NoError(t, good.Check("http://LOCALHOST:7070"))
	require.Error(t, good.Check("https://x.example.com/dagctl"))
	require.Error(t, good.Check("http://x.example.com"))
}
