package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestQuotas sets a quota in the database and watches a running server apply it, to that org and no other.
func TestQuotas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, admin)
	env["DAGCTL_DATABASE_URL"] = w.pool.Config().ConnString()
	require.Contains(t, must(t, env, "admin", "quotas", "acme"), "acme has no quotas.")
	require.Contains(t, must(t, env, "admin", "quotas", "acme", "--set", "storage_bytes=1"), "storage_bytes")
	eventually(t, "storage is full", func() (bool, error) {
		out := dagctl(t, env, "status")
		return out.code == 0 && strings.Contains(out.out, "Quota storage_bytes") &&
			strings.Contains(out.out, "dagctl admin quotas acme"), nil
	})
	usage := must(t, env, "org", "usage")
	require.Contains(t, usage, "storage_bytes")
	require.Contains(t, usage, "and may store 1")
	require.Contains(t, must(t, env, "why", "readings/landing"), "quota")

	status, body := w.send(t, foreign, "GET", "/v1/org/usage", "", nil)
	require.Equal(t, 200, status)
	require.NotContains(t, body, `"full":true`)
	_, metrics := w.send(t, admin, "GET", "/metrics", "", nil)
	require.Contains(t, metrics, `dagctl_quota{org="acme",quota="storage_bytes"} 1`)
	_, metrics = w.send(t, foreign, "GET", "/metrics", "", nil)
	require.NotContains(t, metrics, "storage_bytes")

	bad := dagctl(t, env, "admin", "quotas", "acme", "--set", "bytes=1")
	require.Equal(t, 1, bad.code)
	require.Contains(t, bad.err, "the quotas are requests_per_minute")
	for want, args := range map[string][]string{
		"the quota engines is both set and cleared": {"--set", "engines=2", "--clear", "engines"},
		"an org has at least one engine":            {"--set", "engines=0"},
	} {
		bad := dagctl(t, env, append([]string{"admin", "quotas", "acme"}, args...)...)
		require.Equal(t, 1, bad.code)
		require.Contains(t, bad.err, want)
	}
	must(t, env, "admin", "quotas", "acme", "--clear", "storage_bytes")
	eventually(t, "work goes on", func() (bool, error) {
		out := dagctl(t, env, "status")
		return out.code == 0 && !strings.Contains(out.out, "Quota"), nil
	})
}
