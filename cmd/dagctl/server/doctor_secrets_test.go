package server

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/testdb"
)

func TestASecretWithoutItsKeyIsLoggedAtTheStart(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	org, err := authz.CreateOrg(t.Context(), pool, "acme", "Acme")
	require.NoError(t, err)
	key, other := authz.NewVaultKey(), authz.NewVaultKey()
	warnings := func(key string) string {
		vault, err := authz.NewVault(authz.VaultConfig{Owner: pool, Requests: pool, Keys: []string{key}})
		require.NoError(t, err)
		var log strings.Builder
		require.NoError(t, warnOfKeys(t.Context(), vault, slog.New(slog.NewTextHandler(&log, nil))))
		return log.String()
	}
	require.Empty(t, warnings(key), "there are none")

	vault, err := authz.NewVault(authz.VaultConfig{Owner: pool, Requests: pool, Keys: []string{key}})
	require.NoError(t, err)
	caller := authz.Caller{OrgID: org.ID, OrgSlug: "acme", Actor: "system", Role: authz.RoleAdmin}
	_, err = vault.SetSecret(t.Context(), caller, "a", "its value")
	require.NoError(t, err)
	require.Empty(t, warnings(key))
	require.Contains(t, warnings(other), "level=WARN")
	require.Contains(t, warnings(other), "secrets=1 of=1")
}
