package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
)

func TestASecretOverlapsWithTheOneBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, admin)
	set := func(value string, more ...string) result {
		return dagctlWithInput(t, env, value, append([]string{"secrets", "set", "KEY"}, more...)...)
	}
	require.Zero(t, set("first value").code)
	second := set("second value", "--overlap", "24h")
	require.Zero(t, second.code, second.err)
	require.Contains(t, second.err, "The value before counts until 2")
	listed := decode[[]authz.Secret](t, env, "secrets", "list")
	require.NotNil(t, listed[0].PreviousUntil)
	require.Contains(t, must(t, env, "secrets", "list"), listed[0].PreviousUntil.UTC().Format("2006-01-02T15:04:05Z"))

	require.NotZero(t, set("x", "--overlap", "721h").code)
	require.NotZero(t, set("x", "--overlap", "-1h").code)
	require.Contains(t, set("x", "--overlap", "1ms").err, "no whole number of seconds")
	require.Zero(t, set("third value").code)
	require.Nil(t, decode[[]authz.Secret](t, env, "secrets", "list")[0].PreviousUntil)
}

func TestAdminRotatesTheKeyOfSecrets(t *testing.T) {
	t.Parallel()
	address := testdb.URL(t)
	older, newer, other := authz.NewVaultKey(), authz.NewVaultKey(), authz.NewVaultKey()
	run := func(keys string, args ...string) result {
		return dagctl(t, map[string]string{"HOME": t.TempDir(), "DAGCTL_DATABASE_URL": address,
			"DAGCTL_SECRETS_KEY": keys}, args...)
	}
	doctor := func(keys string) string {
		for line := range strings.Lines(run(keys, "doctor").out) {
			if strings.Contains(line, " secrets ") {
				return line
			}
		}
		return ""
	}
	require.Zero(t, run("", "admin", "bootstrap", "--org", "acme").code)
	require.Contains(t, doctor(newer), "there are none")
	pool, err := pg.Open(t.Context(), address, pg.WithMaxConns(2))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	org, err := authz.OrgBySlug(t.Context(), pool, "acme")
	require.NoError(t, err)
	set := func(key, name string) {
		vault, err := authz.NewVault(authz.VaultConfig{Owner: pool, Requests: pool, Keys: []string{key}})
		require.NoError(t, err)
		_, err = vault.SetSecret(t.Context(), authz.Caller{OrgID: org.ID, Actor: "system"}, name, "its value")
		require.NoError(t, err)
	}
	set(older, "a")
	set(older, "b")
	require.Contains(t, doctor(newer+","+older), "2 of 2 secrets need an old key")

	require.NotZero(t, run("", "admin", "rotate-secrets").code, "there is no key")
	first := run(newer+","+older, "admin", "rotate-secrets")
	require.Zero(t, first.code, first.err)
	require.Contains(t, first.out, "2 secrets now encrypted with the newest key")
	require.Contains(t, first.err, "No secret needs an older key")
	require.Contains(t, run(newer, "admin", "rotate-secrets").out, "0 secrets")
	require.Contains(t, doctor(newer), "no older key is needed")
	require.Contains(t, doctor(""), "whose key is not known here")

	set(other, "lost")
	unreadable := run(newer, "admin", "rotate-secrets")
	require.NotZero(t, unreadable.code)
	require.Contains(t, unreadable.err, "lost of org acme stays as it is")
	require.Contains(t, doctor(newer), "FAIL")
}
