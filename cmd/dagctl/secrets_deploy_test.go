package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
)

// TestDeployChecksTheHostsOfSecrets: a deploy is refused if a job would send a secret to a host that it is not bound
// to.
func TestDeployChecksTheHostsOfSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	admins := w.env(t, admin)
	require.Zero(t, dagctlWithInput(t, admins, "hunter2", "secrets", "set", "KEY").code)
	must(t, admins, "secrets", "bind", "KEY", "--job", "d/j", "--host", "api.example.com",
		"--host", "http://127.0.0.1:9")
	for name, c := range map[string]struct {
		job   string
		lacks string // the host; empty: it is deployed
	}{
		"its own host":             {`operator: http_source, source: { kind: manual }, config: { url: "https://api.example.com/a.csv", format: csv, headers: { K: { secret: KEY } } }`, ""},
		"a partition's":            {`operator: http_source, source: { kind: manual }, config: { url: "http://127.0.0.1:9/{partition}.csv", format: csv, headers: { K: { secret: KEY } } }`, ""},
		"another host":             {`operator: http_source, source: { kind: manual }, config: { url: "https://example.com/a.csv", format: csv, headers: { K: { secret: KEY } } }`, "--host example.com"},
		"the host without TLS":     {`operator: http_source, source: { kind: manual }, config: { url: "http://api.example.com/a.csv", format: csv, headers: { K: { secret: KEY } } }`, "--host http://api.example.com"},
		"the API of a client":      {`operator: http_api, source: { kind: manual }, config: { url: "https://api.example.com/a", auth: { kind: oauth2, token_url: "http://127.0.0.1:9/t", client_id: me, client_secret: { secret: KEY } } }`, ""},
		"a token for another API":  {`operator: http_api, source: { kind: manual }, config: { url: "https://example.com/a", auth: { kind: oauth2, token_url: "http://127.0.0.1:9/t", client_id: me, client_secret: { secret: KEY } } }`, "--host example.com"},
		"another issuer of tokens": {`operator: http_api, source: { kind: manual }, config: { url: "https://api.example.com/a", auth: { kind: oauth2, token_url: "https://example.com/t", client_id: me, client_secret: { secret: KEY } } }`, "--host example.com"},
		"a worker's function":      {`operator: handler, runtime: elsewhere, source: { kind: manual }, outputs: 0, config: { handler: "email:send", key: { secret: KEY } }`, "--program d/j"},
		"a webhook's key":          {`operator: handler, runtime: elsewhere, source: { kind: webhook, path: a/b, secret: KEY }, outputs: 0, config: { handler: "email:send" }`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "dag.yaml")
			require.NoError(t, os.WriteFile(file, []byte("name: d\njobs:\n  - { name: j, "+c.job+" }\n"), 0o600))
			r := dagctl(t, w.env(t, writer), "plan", file)
			if c.lacks == "" {
				require.Zero(t, r.code, r.err)
				return
			}
			require.Equal(t, cli.ExitFailed, r.code)
			require.Contains(t, r.err, "dag.yaml:3:5: d/j: secret KEY may not be ")
			require.Contains(t, r.err, "dagctl secrets bind KEY "+c.lacks)
		})
	}
}
