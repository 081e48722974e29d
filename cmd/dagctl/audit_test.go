package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/auditlog"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
)

// sealed waits until a server has sealed all entries of org acme, and returns what it says of the chain.
func (w *world) sealed(t *testing.T) (found auditlog.ChainCheck) {
	t.Helper()
	eventually(t, "all entries are sealed", func() (bool, error) {
		err := w.as(admin).Get(t.Context(), "/v1/audit/verify", nil, &found)
		return err == nil && found.Unsealed == 0, err
	})
	return found
}

func TestAuditCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	admins, readers := w.env(t, admin), w.env(t, reader)
	must(t, readers, "query", "FROM daily_highest")
	require.Equal(t, cli.ExitFailed, dagctl(t, readers, "tokens", "list").code)
	require.Contains(t, dagctl(t, readers, "audit", "list").err, "this needs the role admin")
	list := func(args ...string) (actions []string) {
		for _, e := range decode[[]authz.AuditEntry](t, admins, append([]string{"audit", "list"}, args...)...) {
			actions = append(actions, e.Action)
		}
		return actions
	}
	eventually(t, "refusals are in the log", func() (bool, error) {
		return len(list("--outcome", "refused")) == 2, nil
	})
	require.Equal(t, []string{"request.refused"}, list("--object", "GET /v1/tokens", "--actor", "token:reader"))
	require.Equal(t, []string{"query.run"}, list("--dataset", "daily_highest"))
	require.Equal(t, []string{"dag.deploy"}, list("--action", "dag.*", "--since", "1h", "--until", "2100-01-01"))
	require.Empty(t, list("--until", "2020-01-01"))
	require.Contains(t, dagctl(t, admins, "audit", "list", "--since", "yesterday").err, `"yesterday" is not a time`)
	table := must(t, admins, "audit", "list", "--action", "token.create", "--limit", "1")
	require.Regexp(t, `SEQ +AT +ACTOR +ACTION +OUTCOME +OBJECT +DETAIL\n.* token:admin +token.create +done +token:`,
		table)

	check := w.sealed(t)
	require.True(t, check.Whole, "%+v", check.Break)
	require.Equal(t, check, decode[auditlog.ChainCheck](t, admins, "audit", "verify", "--head", check.Head))
	require.Contains(t, must(t, admins, "audit", "verify"), "Head: "+check.Head)
	file, sheet := filepath.Join(t.TempDir(), "audit.ndjson"), filepath.Join(t.TempDir(), "audit.csv")
	must(t, admins, "audit", "export", "--out", file)
	must(t, admins, "audit", "export", "--out", sheet, "--format", "csv", "--action", "token.*")
	text, err := os.ReadFile(sheet)
	require.NoError(t, err)
	require.Equal(t, 6, strings.Count(string(text), "\n"), "%s", text) // with the header
	require.Equal(t, string(must(t, admins, "audit", "export")), readFile(t, file))

	nowhere := map[string]string{"HOME": t.TempDir()} // no server
	require.Equal(t, check, decode[auditlog.ChainCheck](t, nowhere, "audit", "verify", "--file", file, "--head",
		check.Head))
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(readFile(t, file), "token:reader", "token:writer", 1)),
		0o600))
	changed := dagctl(t, nowhere, "audit", "verify", "--file", file)
	require.Equal(t, cli.ExitFailed, changed.code)
	require.Contains(t, changed.out, "The audit log is broken: entry ")
	require.Contains(t, dagctl(t, nowhere, "audit", "verify", "--file", sheet).err, "is not NDJSON of")

	_, err = w.pool.Exec(t.Context(), `UPDATE audit_log SET actor = 'token:admin' WHERE action = 'query.run'`)
	require.NoError(t, err)
	broken := dagctl(t, admins, "audit", "verify", "-o", "json")
	require.Equal(t, cli.ExitFailed, broken.code)
	var found auditlog.ChainCheck
	require.NoError(t, json.Unmarshal([]byte(broken.out), &found), broken.out)
	require.Equal(t, "changed", found.Break.What)
	require.True(t, func() (whole bool) {
		var of auditlog.ChainCheck
		require.NoError(t, w.as(foreign).Get(t.Context(), "/v1/audit/verify", nil, &of))
		return of.Whole
	}(), "the other org's chain")
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// What changes something says what it was before and what it is then, and no value of a secret.
func TestAuditEntriesSayBeforeAndAfter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	admins, file := w.env(t, admin), filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(readingsDAG+"description: again\n"), 0o600))
	must(t, w.env(t, writer), "deploy", file)
	for _, command := range [][]string{
		{"roles", "create", "finance", "--name", "Finance"}, {"roles", "delete", "finance"},
		{"tokens", "create", "ci", "--role", "writer"}, {"tokens", "revoke", "ci", "--yes"},
		{"pause", "readings", "--reason", "first"}, {"pause", "readings", "--reason", "second"}, {"resume", "readings"},
		{"pin", "readings", "v1", "--reason", "audit"}, {"unpin", "readings", "v1"}, {"rollback", "readings", "--yes"},
	} {
		must(t, admins, command...)
	}
	for _, value := range []string{"first-value", "second-value"} {
		r := dagctlWithInput(t, admins, value, "secrets", "set", "api-key")
		require.Zero(t, r.code, r.err)
	}

	var list struct{ Items []authz.AuditEntry }
	require.NoError(t, w.as(admin).Get(t.Context(), "/v1/audit?limit=500", nil, &list))
	type change struct{ Before, After any }
	found := map[string][]change{} // by action, oldest first
	for _, e := range list.Items {
		require.NotContains(t, string(e.Detail), "-value")
		var c change
		require.NoError(t, json.Unmarshal(e.Detail, &c))
		found[e.Action] = append([]change{c}, found[e.Action]...)
	}
	field := func(v any, name string) any {
		m, _ := v.(map[string]any)
		return m[name]
	}
	last := func(action string) change {
		require.NotEmpty(t, found[action], action)
		return found[action][len(found[action])-1]
	}
	require.Equal(t, change{nil, map[string]any{"name": "Finance"}}, last("role.create"))
	require.Equal(t, change{map[string]any{"name": "Finance"}, nil}, last("role.delete"))
	require.Equal(t, "writer", field(last("token.create").After, "role"))
	require.Nil(t, field(last("token.revoke").Before, "revoked_at"))
	require.NotNil(t, field(last("token.revoke").After, "revoked_at"))
	require.Equal(t, "writer", field(last("token.revoke").Before, "role"))
	require.Nil(t, found["pause.set"][0].Before)
	require.Equal(t, []any{"first", "second"},
		[]any{field(last("pause.set").Before, "reason"), field(last("pause.set").After, "reason")})
	require.Equal(t, "second", field(last("pause.remove").Before, "reason"))
	require.Equal(t, []any{nil, "audit"}, []any{last("dag.pin").Before, field(last("dag.pin").After, "reason")})
	require.Equal(t, []any{"audit", nil}, []any{field(last("dag.unpin").Before, "reason"), last("dag.unpin").After})
	require.Equal(t, []change{{nil, 1.0}, {1.0, 2.0}}, found["dag.deploy"])
	require.Equal(t, change{2.0, 1.0}, last("dag.rollback"))
	require.Nil(t, found["secret.set"][0].Before)
	require.Equal(t, found["secret.set"][0].After, last("secret.set").Before)
}

// A server that ends writes the refusals that it has counted.
func TestAServerThatEndsWritesItsRefusals(t *testing.T) {
	t.Parallel()
	var cfg server.Config
	w := newWorld(t, func(c *server.Config) { cfg = *c })
	log := new(output)
	another, err := server.New(t.Context(), cfg, cfg.Folders(), nil, slog.New(slog.NewTextHandler(log, nil)))
	require.NoError(t, err)
	for range 3 {
		r := httptest.NewRequest(http.MethodGet, "/v1/tokens", nil)
		r.Header.Set("Authorization", "Bearer "+w.tokens[reader])
		answer := httptest.NewRecorder()
		another.API.Handler().ServeHTTP(answer, r)
		require.Equal(t, http.StatusForbidden, answer.Code)
	}
	another.Close() // no loop of it has run

	var list struct{ Items []authz.AuditEntry }
	require.NoError(t, w.as(admin).Get(t.Context(), "/v1/audit?outcome=refused", nil, &list))
	require.Len(t, list.Items, 1, log.String())
	require.Contains(t, string(list.Items[0].Detail), `"count":3,`)
}
