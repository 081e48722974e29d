package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/views"
)

const leakyDAG = `name: leaky
jobs:
  - name: shout
    operator: command
    source: { kind: manual }
    outputs: 0
    max_attempts: 1
    config: { argv: [/bin/sh, -c, "echo \"the key is $KEY\" >&2; test -z \"$1\" && exit 64; echo \"{\\\"result\\\": \\\"$KEY\\\"}\"", sh, "%s"], env: { KEY: { secret: API_KEY } } }
`

// programOf returns the program that an error asks an admin to grant a secret to.
func programOf(t *testing.T, text string) string {
	t.Helper()
	found := regexp.MustCompile("secrets bind [A-Za-z_]+ --program ([^ `]+@[0-9a-f]{32})`").FindStringSubmatch(text)
	require.NotNil(t, found, text)
	return found[1]
}

// TestASecretIsNeverSeenAgain sets a secret, lets programs print it, and searches for it in every answer, in the log
// and in every row of the database.
func TestASecretIsNeverSeenAgain(t *testing.T) {
	t.Parallel()
	const value = "hunter2-correct-horse"
	w := newWorld(t)
	admins, writers := w.env(t, admin), w.env(t, writer)
	file := filepath.Join(t.TempDir(), "dag.yaml")
	deploy := func(argument string) result {
		require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(leakyDAG, "%s", argument)), 0o600))
		return dagctl(t, writers, "deploy", file)
	}
	require.Contains(t, deploy("").err, "dagctl secrets set API_KEY")
	set := dagctlWithInput(t, admins, value+"\n", "secrets", "set", "API_KEY")
	require.Zero(t, set.code, set.err)
	require.Contains(t, deploy("").err, "dagctl secrets bind API_KEY --program leaky/shout@")
	must(t, admins, "secrets", "bind", "API_KEY", "--job", "leaky/shout")
	program := deploy("").err
	require.Contains(t, program, "dag.yaml:3:5: leaky/shout", "where it is named")
	require.Contains(t, program, "leaky/shout: secret API_KEY may not be given to the program of leaky/shout")
	first := programOf(t, program)
	must(t, admins, "secrets", "bind", "API_KEY", "--host", "*")
	require.NotZero(t, deploy("").code, "any host is no grant")
	require.NotZero(t, dagctl(t, writers, "secrets", "bind", "API_KEY", "--program", first).code)
	unknown := dagctl(t, admins, "secrets", "bind", "API_KEY", "--program", "leaky/shout")
	require.Contains(t, unknown.err, "there is no job leaky/shout: no DAG leaky is deployed")
	must(t, admins, "secrets", "bind", "API_KEY", "--program", first)
	require.Zero(t, deploy("").code)

	outcome := func() views.TaskDetail {
		id := strings.TrimSpace(must(t, writers, "run", "leaky/shout"))
		var detail views.TaskDetail
		eventually(t, "the task ends", func() (bool, error) {
			detail = decode[views.TaskDetail](t, writers, "tasks", "get", id)
			return detail.Status == "Completed" || detail.Status == "Failed", nil
		})
		return detail
	}
	must(t, admins, "secrets", "bind", "API_KEY", "--program", "leaky/shout", "--remove")
	require.NotContains(t, must(t, admins, "secrets", "list"), "leaky/shout")
	require.Contains(t, outcome().Error, "secret API_KEY is not there any more, or is not bound to leaky/shout")
	wrong := dagctl(t, admins, "secrets", "bind", "API_KEY", "--program", "leaky/shout", "--remove")
	require.Contains(t, wrong.err, "secret API_KEY is not bound to the program leaky/shout: it has none")
	wrong = dagctl(t, admins, "secrets", "bind", "API_KEY", "--program", "leaky/whisper")
	require.Contains(t, wrong.err, "there is no job leaky/whisper: the jobs of that DAG are leaky/shout")
	wrong = dagctl(t, admins, "secrets", "bind", "API_KEY", "--program", "leaky")
	require.Contains(t, wrong.err, `"leaky" is neither DAG/JOB nor DAG/JOB@PROGRAM`)
	require.NotContains(t, wrong.err, "body")
	must(t, admins, "secrets", "bind", "API_KEY", "--program", "leaky/shout") // that which is deployed
	require.Contains(t, must(t, admins, "secrets", "list"), first)
	require.Contains(t, outcome().Error, "the key is [secret]")

	// Another program of the same job may not have it, until an admin has seen that one as well.
	changed := deploy("result")
	require.NotZero(t, changed.code)
	require.Contains(t, changed.err, "the program is another than the one that an admin granted it to")
	second := programOf(t, changed.err)
	require.NotEqual(t, first, second)
	must(t, admins, "secrets", "bind", "API_KEY", "--program", second)
	require.Zero(t, deploy("result").code)
	must(t, admins, "secrets", "bind", "API_KEY", "--program", second, "--remove")
	require.Contains(t, outcome().Error, "the program is another than the one that an admin granted it to")
	must(t, admins, "secrets", "bind", "API_KEY", "--program", "leaky/shout")
	must(t, admins, "secrets", "bind", "API_KEY", "--program", first, "--remove")
	done := outcome()
	require.Equal(t, "Completed", done.Status)

	list := decode[[]authz.Secret](t, admins, "secrets", "list")
	require.Len(t, list, 1)
	require.Equal(t, []string{"leaky/shout"}, list[0].Jobs)
	require.Equal(t, []string{"*"}, list[0].Hosts)
	require.Equal(t, []string{second}, list[0].Programs)
	for _, shown := range []string{
		must(t, admins, "secrets", "list"), must(t, writers, "plan", file, "--output", "json"),
		must(t, writers, "history", "leaky", "--output", "json"),
		must(t, writers, "tasks", "list", "--output", "json"),
		must(t, writers, "tasks", "get", done.ID.String(), "--output", "json"),
	} {
		require.NotContains(t, shown, value)
	}
	tables, err := w.pool.Query(t.Context(),
		`SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace`)
	require.NoError(t, err)
	names, err := pgx.CollectRows(tables, pgx.RowTo[string])
	require.NoError(t, err)
	for _, name := range names {
		var found int
		sql := `SELECT count(*) FROM ` + pgx.Identifier{name}.Sanitize() + ` AS t WHERE t::text LIKE '%' || $1 || '%' OR t::text LIKE '%' || $2 || '%'`
		require.NoError(t, w.pool.QueryRow(t.Context(), sql, value, encodedHex(value)).Scan(&found))
		require.Zero(t, found, "table %s holds the secret", name)
	}

	// Nobody may use it elsewhere, use it after its binding ends, or read the ciphertext under the role of requests.
	must(t, admins, "secrets", "bind", "API_KEY", "--job", "leaky/shout", "--remove")
	require.Contains(t, outcome().Error, "is not bound to leaky/shout")
	must(t, admins, "secrets", "delete", "API_KEY", "--yes")
	require.Equal(t, cli.ExitFailed, dagctl(t, admins, "secrets", "delete", "API_KEY", "--yes").code)
	_, err = w.requests.Exec(t.Context(), `SELECT ciphertext FROM secrets`)
	require.ErrorContains(t, err, "permission denied")

	audit := must(t, admins, "whoami") // the command that lists the log is the API's own
	require.NotEmpty(t, audit)
	status, log := w.send(t, admin, http.MethodGet, "/v1/audit?limit=200", "", nil)
	require.Equal(t, http.StatusOK, status)
	for _, action := range []string{"secret.set", "secret.bind", "secret.delete"} {
		require.Contains(t, log, action)
	}
	require.NotContains(t, log, value)
}

// encodedHex returns a text as a BYTEA column shows it.
func encodedHex(text string) string {
	const digits = "0123456789abcdef"
	var b strings.Builder
	for _, c := range []byte(text) {
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
	}
	return b.String()
}

func TestSecretsAreSetFromStandardInputOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, admin)
	require.NotZero(t, dagctlWithInput(t, env, "", "secrets", "set", "KEY").code, "nothing on standard input")
	require.NotZero(t, dagctl(t, env, "secrets", "set", "KEY", "value").code, "an argument is no way in")
	require.NotZero(t, dagctlWithInput(t, env, "x", "secrets", "set", "a key").code)
	require.NotZero(t, dagctl(t, env, "secrets", "bind", "KEY").code)
	require.NotZero(t, dagctl(t, env, "secrets", "bind", "KEY", "--job", "a/b").code, "there is none yet")
	require.Zero(t, dagctlWithInput(t, env, "line\n", "secrets", "set", "KEY").code)
	for _, bad := range [][]string{{"--job", "not a job"}, {"--job", "a/b/c"},
		{"--host", "https://x"}, {"--host", "x/y"}} {
		require.NotZero(t, dagctl(t, env, append([]string{"secrets", "bind", "KEY"}, bad...)...).code, bad)
	}
	for _, caller := range []string{reader, writer} {
		require.Contains(t, dagctlWithInput(t, w.env(t, caller), "x", "secrets", "set", "KEY").err, "admin")
		require.Contains(t, dagctl(t, w.env(t, caller), "secrets", "list").err, "admin")
	}
	status, body := w.send(t, foreign, http.MethodPatch, "/v1/secrets/KEY", "application/json",
		strings.NewReader(`{"add_hosts": ["*"]}`))
	require.Equal(t, http.StatusNotFound, status, body)
	// The answer to a wrong body does not repeat it.
	status, body = w.send(t, admin, http.MethodPut, "/v1/secrets/KEY", "application/json",
		strings.NewReader(`{"value": ["hunter2"]}`))
	require.Equal(t, http.StatusUnprocessableEntity, status)
	require.NotContains(t, body, "hunter2")
	require.True(t, json.Valid([]byte(body)))
}
