package server

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/attention"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
)

func TestASecretWithoutItsKeyIsLogged(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	org, err := authz.CreateOrg(t.Context(), pool, "acme", "Acme")
	require.NoError(t, err)
	key, other := authz.NewVaultKey(), authz.NewVaultKey()
	warnings := func(key string) string {
		vault, err := authz.NewVault(authz.VaultConfig{Owner: pool, Requests: pool, Keys: []string{key}})
		require.NoError(t, err)
		var log strings.Builder
		watch := keyWatch{vault: vault, log: slog.New(slog.NewTextHandler(&log, nil))}
		require.NoError(t, watch.look(t.Context()))
		require.NoError(t, watch.look(t.Context()), "it says it once")
		require.Equal(t, len(vault.Lacking()), strings.Count(log.String(), "\n"))
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

// A server that lacks a key serves nevertheless; its readiness, the log, and what needs somebody say so.
func TestAServerThatLacksAKeySaysSo(t *testing.T) {
	t.Parallel()
	address := testdb.URL(t)
	pool, err := pg.Open(t.Context(), address, pg.WithMaxConns(2))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	token, org, err := authz.Bootstrap(t.Context(), pool, authz.FirstToken{OrgSlug: "acme", TokenName: "admin"})
	require.NoError(t, err)
	caller := authz.Caller{OrgID: org.ID, OrgSlug: "acme", Actor: "system", Role: authz.RoleAdmin}
	vault, err := authz.NewVault(authz.VaultConfig{Owner: pool, Requests: pool, Keys: []string{authz.NewVaultKey()}})
	require.NoError(t, err)
	_, err = vault.SetSecret(t.Context(), caller, "a", "its value")
	require.NoError(t, err)

	cfg, lines := servedConfig(t, address), new(logLines)
	cfg.SecretKeys = []string{authz.NewVaultKey()}
	serveLogged(t, cfg, slog.New(slog.NewTextHandler(lines, nil)))
	waitUntil(t, "the server is ready", isReady(t, cfg.Listen))
	status, text := ask(t, http.MethodGet, "http://"+cfg.Listen+"/readyz")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, text, `"status":"ok"`)
	require.Contains(t, text, "which this server does not have: webhooks and tasks that use them fail here")
	require.Len(t, lines.with("secrets are under a key that this server does not have"), 1)

	client := cli.NewClient(cli.Target{URL: "http://" + cfg.Listen, Token: token})
	waitUntil(t, "somebody is told", func() (bool, error) {
		var found attention.Attention
		err := client.Get(t.Context(), "/v1/attention", nil, &found)
		return err == nil && len(found.Items) == 1 && found.Items[0].Kind == attention.KeyMissing, err
	})

	// The vault looks again and again: what was set anew is not missed any more.
	own, err := authz.NewVault(authz.VaultConfig{Owner: pool, Requests: pool, Keys: cfg.SecretKeys})
	require.NoError(t, err)
	_, err = own.SetSecret(t.Context(), caller, "a", "its value")
	require.NoError(t, err)
	watch := keyWatch{vault: own, log: slog.New(slog.NewTextHandler(lines, nil)), said: []string{"gone"}}
	require.NoError(t, watch.look(t.Context()))
	require.Len(t, lines.with("has the keys of all secrets again"), 1)
	require.Empty(t, watch.warnings())
}
