package testoidc_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testoidc"
)

func TestAUserSignsInWithDex(t *testing.T) {
	t.Parallel()
	public := testoidc.Client{ID: "page", RedirectURIs: web.RedirectURIs}
	dex := testoidc.StartDex(t, testoidc.DexOptions{
		Users: []testoidc.DexUser{{ID: "1", Email: "grace@example.com", Name: "Grace Hopper"},
			{ID: "2", Email: "ada@example.com", Name: "Ada Lovelace"}},
		Clients: []testoidc.Client{web, public},
	})

	subjects := map[string]bool{}
	for _, client := range []testoidc.Client{web, public} {
		dagctl := discover(t, dex.Issuer, client)
		token, id := dagctl.signIn(t, func(u string) string { return dex.SignIn(t, u, "ada@example.com") })
		subjects[id.Subject] = true
		claims := claimsOf(t, id)
		require.Equal(t, "ada@example.com", claims["email"])
		require.Equal(t, true, claims["email_verified"])
		require.Equal(t, "Ada Lovelace", claims["name"])
		require.NotContains(t, claims, "groups")

		renewed, err := dagctl.refresh(t, token)
		require.NoError(t, err)
		again, err := dagctl.verify(t.Context(), renewed)
		require.NoError(t, err)
		require.Equal(t, id.Subject, again.Subject)
	}
	require.Len(t, subjects, 1)
}
