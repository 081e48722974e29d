package testoidc_test

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"

	"github.com/dagctl/dagctl/internal/testoidc"
)

var (
	ada = testoidc.User{Subject: "ada", Email: "ada@example.com", EmailVerified: true, Name: "Ada Lovelace",
		Groups: []string{"analysts", "admins"}, Claims: map[string]any{"tenant": "t1"}}
	web = testoidc.Client{ID: "dagctl", Secret: "a secret/with+signs",
		RedirectURIs: []string{"http://127.0.0.1:9/callback"}}
	cli = testoidc.Client{ID: "cli", RedirectURIs: []string{"http://127.0.0.1/callback"}}
	ci  = testoidc.Client{ID: "ci", Secret: "another"}
)

func start(t *testing.T) *testoidc.Provider {
	return testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada},
		Clients: []testoidc.Client{web, cli, ci}})
}

// party is a client's side, in Go's own libraries.
type party struct {
	oauth2.Config
	verifier *oidc.IDTokenVerifier
}

// discover finds a provider by its issuer.
func discover(t *testing.T, issuer string, client testoidc.Client) party {
	provider, err := oidc.NewProvider(t.Context(), issuer)
	require.NoError(t, err)
	return party{oauth2.Config{ClientID: client.ID, ClientSecret: client.Secret, RedirectURL: client.RedirectURIs[0],
		Endpoint: provider.Endpoint(), Scopes: []string{"openid", "email", "profile", "groups", "offline_access"}},
		provider.VerifierContext(t.Context(), &oidc.Config{ClientID: client.ID})}
}

// signIn goes through code and PKCE, and verifies the ID token and its nonce.
func (p party) signIn(t *testing.T, visit func(authURL string) (callbackURL string)) (*oauth2.Token, *oidc.IDToken) {
	state, nonce, verifier := rand.Text(), rand.Text(), oauth2.GenerateVerifier()
	callback, err := url.Parse(visit(p.AuthCodeURL(state, oidc.Nonce(nonce), oauth2.S256ChallengeOption(verifier),
		oauth2.SetAuthURLParam("prompt", "consent"))))
	require.NoError(t, err)
	require.Equal(t, "/callback", callback.Path)
	require.Equal(t, state, callback.Query().Get("state"))
	require.NotEmpty(t, callback.Query().Get("code"), callback)

	token, err := p.Exchange(t.Context(), callback.Query().Get("code"), oauth2.VerifierOption(verifier))
	require.NoError(t, err)
	id, err := p.verify(t.Context(), token)
	require.NoError(t, err)
	require.Equal(t, nonce, id.Nonce)
	return token, id
}

func (p party) verify(ctx context.Context, token *oauth2.Token) (*oidc.IDToken, error) {
	raw, _ := token.Extra("id_token").(string)
	return p.verifier.Verify(ctx, raw)
}

// refresh trades a refresh token for new ones.
func (p party) refresh(t *testing.T, old *oauth2.Token) (*oauth2.Token, error) {
	require.NotEmpty(t, old.RefreshToken)
	return p.TokenSource(t.Context(), &oauth2.Token{RefreshToken: old.RefreshToken}).Token()
}

func claimsOf(t *testing.T, id *oidc.IDToken) map[string]any {
	var claims map[string]any
	require.NoError(t, id.Claims(&claims))
	return claims
}

func TestAUserSignsInByCode(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, client := range []testoidc.Client{web, cli} {
		dagctl := discover(t, p.Issuer, client)
		token, id := dagctl.signIn(t, func(u string) string { return p.SignIn(t, u, "ada") })
		require.Equal(t, "ada", id.Subject)
		claims := claimsOf(t, id)
		for name, want := range map[string]any{"email": "ada@example.com", "email_verified": true, "tenant": "t1",
			"name": "Ada Lovelace", "groups": []any{"analysts", "admins"}} {
			require.Equal(t, want, claims[name], name)
		}

		renewed, err := dagctl.refresh(t, token)
		require.NoError(t, err)
		_, err = dagctl.verify(t.Context(), renewed)
		require.NoError(t, err)
		require.NotEqual(t, token.AccessToken, renewed.AccessToken)
	}
}

func TestCodeWithoutPKCEIsRefused(t *testing.T) {
	t.Parallel()
	p := start(t)
	dagctl := discover(t, p.Issuer, web)
	callback, err := url.Parse(p.SignIn(t, dagctl.AuthCodeURL("s"), "ada"))
	require.NoError(t, err)
	require.Equal(t, "invalid_request", callback.Query().Get("error"))
}

func TestAUserCancels(t *testing.T) {
	t.Parallel()
	p := start(t)
	dagctl := discover(t, p.Issuer, web)
	callback, err := url.Parse(p.Cancel(t, dagctl.AuthCodeURL("s", oauth2.S256ChallengeOption("v"))))
	require.NoError(t, err)
	require.Equal(t, "access_denied", callback.Query().Get("error"))
	require.Equal(t, "s", callback.Query().Get("state"))
}

func TestADeviceIsApproved(t *testing.T) {
	t.Parallel()
	p := start(t)
	dagctl := discover(t, p.Issuer, cli)
	code, err := dagctl.DeviceAuth(t.Context())
	require.NoError(t, err)
	p.ApproveDevice(t, code.VerificationURIComplete, "ada")
	code.Interval = 1
	token, err := dagctl.DeviceAccessToken(t.Context(), code)
	require.NoError(t, err)
	id, err := dagctl.verify(t.Context(), token)
	require.NoError(t, err)
	require.Equal(t, "ada", id.Subject)
}

func TestKeysRotate(t *testing.T) {
	t.Parallel()
	p := start(t)
	dagctl := discover(t, p.Issuer, web)
	visit := func(u string) string { return p.SignIn(t, u, "ada") }
	first, _ := dagctl.signIn(t, visit)

	p.OverlapKeys()
	second, _ := dagctl.signIn(t, visit) // the verifier fetches the new key
	_, err := discover(t, p.Issuer, web).verify(t.Context(), first)
	require.NoError(t, err)

	old := p.Key()
	p.RotateKeys()
	third, err := dagctl.refresh(t, second) // tokens outlive keys
	require.NoError(t, err)
	fresh := discover(t, p.Issuer, web)
	_, err = fresh.verify(t.Context(), third)
	require.NoError(t, err)
	for _, gone := range []*oauth2.Token{first, second} {
		_, err = fresh.verify(t.Context(), gone)
		require.ErrorContains(t, err, "failed to verify signature")
	}
	_, err = fresh.verifier.Verify(t.Context(), p.Sign(p.Claims("ada", web.ID), testoidc.Signing{Key: &old}))
	require.ErrorContains(t, err, "failed to verify signature")
}

func TestForgedTokens(t *testing.T) {
	t.Parallel()
	p := start(t)
	verifier := discover(t, p.Issuer, web).verifier
	id, err := verifier.Verify(t.Context(), p.Sign(p.Claims("ada", web.ID), testoidc.Signing{}))
	require.NoError(t, err)
	require.Equal(t, "ada@example.com", claimsOf(t, id)["email"])

	stranger := testoidc.NewKey(t)
	stranger.KeyID = p.Key().KeyID
	for name, forged := range map[string]struct {
		claim string
		value any
		how   testoidc.Signing
		says  string
	}{
		"another key":      {how: testoidc.Signing{Key: &stranger}, says: "failed to verify signature"},
		"no signature":     {how: testoidc.Signing{Algorithm: testoidc.None}, says: "malformed jwt"},
		"public key":       {how: testoidc.Signing{Algorithm: testoidc.PublicKeyHS256}, says: "malformed jwt"},
		"another client":   {claim: "aud", value: "other", says: "expected audience"},
		"another issuer":   {claim: "iss", value: "http://127.0.0.1:1", says: "issued by a different provider"},
		"expired":          {claim: "exp", value: time.Now().Add(-time.Hour).Unix(), says: "token is expired"},
		"not valid so far": {claim: "nbf", value: time.Now().Add(time.Hour).Unix(), says: "before the nbf"},
	} {
		claims := p.Claims("ada", web.ID)
		if forged.claim != "" {
			claims[forged.claim] = forged.value
		}
		_, err := verifier.Verify(t.Context(), p.Sign(claims, forged.how))
		require.ErrorContains(t, err, forged.says, name)
	}
}

func TestAWorkloadHasClaimsOfItsOwn(t *testing.T) {
	t.Parallel()
	p := start(t)
	provider, err := oidc.NewProvider(t.Context(), p.Issuer)
	require.NoError(t, err)
	id, err := provider.Verifier(&oidc.Config{ClientID: "https://dagctl.example"}).Verify(t.Context(),
		p.ClientCredentials(t, ci, map[string]any{"aud": "https://dagctl.example", "event_name": "push",
			"sub": "repo:acme/flights:ref:refs/heads/main", "repository": "acme/flights"}))
	require.NoError(t, err)
	require.Equal(t, "repo:acme/flights:ref:refs/heads/main", id.Subject)
	require.Equal(t, "acme/flights", claimsOf(t, id)["repository"])
	require.Equal(t, "push", claimsOf(t, id)["event_name"])
}

func TestUsersAndClientsChange(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{IDTokens: time.Minute})
	p.SetClient(web)
	p.SetUser(ada)
	dagctl := discover(t, p.Issuer, web)
	token, id := dagctl.signIn(t, func(u string) string { return p.SignIn(t, u, "ada") })
	require.WithinDuration(t, time.Now().Add(time.Minute), id.Expiry, 10*time.Second)

	less := ada
	less.Groups = []string{"analysts"}
	p.SetUser(less)
	token, err := dagctl.refresh(t, token)
	require.NoError(t, err)
	id, err = dagctl.verify(t.Context(), token)
	require.NoError(t, err)
	require.Equal(t, []any{"analysts"}, claimsOf(t, id)["groups"])

	p.RemoveUser("ada")
	_, err = dagctl.refresh(t, token)
	require.ErrorContains(t, err, "invalid_grant")
}

func TestOutages(t *testing.T) {
	t.Parallel()
	p, other := start(t), start(t)
	dagctl := discover(t, p.Issuer, web)
	token, _ := dagctl.signIn(t, func(u string) string { return p.SignIn(t, u, "ada") })

	p.Stop()
	_, err := http.Get(p.Issuer + "/jwks")
	require.ErrorContains(t, err, "connection refused")
	discover(t, other.Issuer, web)

	p.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	hanging, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Issuer+"/jwks", nil)
	require.NoError(t, err)
	_, err = http.DefaultClient.Do(hanging)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	p.Resume()
	_, err = dagctl.refresh(t, token)
	require.NoError(t, err)
}
