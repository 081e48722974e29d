package authz_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
)

func (w world) vault(t *testing.T, keys ...string) *authz.Vault {
	t.Helper()
	v, err := authz.NewVault(authz.VaultConfig{Owner: w.owner, Requests: w.requests, Keys: keys})
	require.NoError(t, err)
	return v
}

func TestVaultKeysRotate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	older, newer := authz.NewVaultKey(), authz.NewVaultKey()
	set := func(v *authz.Vault, name string) {
		_, err := v.SetSecret(t.Context(), w.admin(), name, "value of "+name)
		require.NoError(t, err)
		_, err = v.BindSecret(t.Context(), w.admin(), name, authz.Binding{AddJobs: []string{"d/j"}})
		require.NoError(t, err)
	}
	set(w.vault(t, older), "a")
	both := w.vault(t, newer, older)
	set(both, "b")
	values, err := both.Reveal(t.Context(), w.org.ID, authz.SecretUser{Name: "d/j"}, []string{"a", "b"})
	require.NoError(t, err)
	require.Equal(t, "value of a", values["a"].Reveal())
	require.Equal(t, "value of b", values["b"].Reveal())

	_, err = w.vault(t, newer).Reveal(t.Context(), w.org.ID, authz.SecretUser{Name: "d/j"}, []string{"a"})
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	_, err = w.vault(t).Reveal(t.Context(), w.org.ID, authz.SecretUser{Name: "d/j"}, []string{"a"})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	_, err = w.vault(t).SetSecret(t.Context(), w.admin(), "c", "x")
	require.ErrorContains(t, err, "keeps no secrets")
	for _, bad := range []string{"", "short", "bm90IDMyIGJ5dGVz"} {
		_, err := authz.NewVault(authz.VaultConfig{Keys: []string{bad}})
		require.Error(t, err, bad)
	}
}

func TestACiphertextIsBoundToItsName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := w.vault(t, authz.NewVaultKey())
	for _, name := range []string{"mine", "yours"} {
		_, err := v.SetSecret(t.Context(), w.admin(), name, "value of "+name)
		require.NoError(t, err)
		_, err = v.BindSecret(t.Context(), w.admin(), name, authz.Binding{AddJobs: []string{"d/j"}})
		require.NoError(t, err)
	}
	var plain int
	require.NoError(t, w.owner.QueryRow(t.Context(),
		`SELECT count(*) FROM secrets WHERE position('value of'::bytea IN ciphertext) > 0`).Scan(&plain))
	require.Zero(t, plain)
	_, err := w.owner.Exec(t.Context(), `UPDATE secrets SET ciphertext = (SELECT ciphertext FROM secrets
		WHERE name = 'yours') WHERE name = 'mine'`)
	require.NoError(t, err)
	_, err = v.Reveal(t.Context(), w.org.ID, authz.SecretUser{Name: "d/j"}, []string{"mine"})
	require.True(t, fault.Is(err, fault.Internal), "%v", err)

	for _, by := range []string{"d/other", "d", "x/j"} {
		_, err = v.Reveal(t.Context(), w.org.ID, authz.SecretUser{Name: by}, []string{"yours"})
		require.True(t, fault.Is(err, fault.Forbidden), "%s: %v", by, err)
	}
	foreign, err := authz.CreateOrg(t.Context(), w.owner, "foreign", "")
	require.NoError(t, err)
	_, err = v.Reveal(t.Context(), foreign.ID, authz.SecretUser{Name: "d/j"}, []string{"yours"})
	require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
}
