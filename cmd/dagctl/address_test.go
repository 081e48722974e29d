package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/views"
)

func TestAddressesOfTasks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	env := w.env(t, writer)
	of := decode[[]views.Task](t, env, "tasks", "list", "--job", "daily", "--partition", "2026-01-01")[0]
	id := of.ID.String()
	for _, address := range []string{id, id[:35], strings.ToUpper(id[:35]), "readings/daily@2026-01-01"} {
		require.Equal(t, of.ID, decode[views.TaskDetail](t, env, "tasks", "get", address).ID, address)
		must(t, env, "tasks", "logs", address)
		must(t, env, "tasks", "events", address)
		must(t, env, "why", address)
		require.Contains(t, dagctl(t, env, "tasks", "retry", address).err, "Completed", address)
	}
	for _, dataset := range []string{"daily_highest", "readings/landing/0"} {
		require.Contains(t, must(t, env, "why", dataset+"@2026-01-01"), "it has been published", dataset)
	}
	newest := decode[[]views.Task](t, env, "tasks", "list", "--job", "daily", "--limit", "1")[0]
	require.Equal(t, newest.ID, decode[views.TaskDetail](t, env, "tasks", "get", "readings/daily").ID)

	several := dagctl(t, env, "tasks", "get", id[:4])
	require.Equal(t, cli.ExitFailed, several.code)
	require.Contains(t, several.err, "the ids of several tasks begin with "+id[:4])
	require.Contains(t, several.err, id+": readings/daily@2026-01-01 Completed")
	for address, want := range map[string]string{
		"ffffffff":                  "there is no task whose id begins with ffffffff",
		"abc":                       "too short",
		"readings/nope":             "no job",
		"raedings/daily":            "there is no DAG raedings",
		"readings/daily@1999-01-01": "there is no task of readings/daily@1999-01-01",
		"readings/daily@":           "is not the id of a task",
	} {
		for _, verb := range []string{"get", "events", "logs", "retry", "cancel"} {
			r := dagctl(t, env, "tasks", verb, address)
			require.Equal(t, cli.ExitFailed, r.code, address)
			require.Contains(t, r.err, want, "%s %s", verb, address)
		}
	}
	require.Contains(t, dagctl(t, env, "tasks", "list", "--dag", "readings", "--job", "nope").err,
		"there is no job readings/nope")
	require.Contains(t, dagctl(t, env, "tasks", "retry", "--dag", "raedings", "--yes").err, "there is no DAG raedings")
	require.Contains(t, dagctl(t, env, "tasks", "list", "--created-after", "2026-02-01", "--created-before",
		"2026-01-01").err, "is not before")
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	second := filepath.Join(t.TempDir(), "dag.yaml")
	text := strings.Replace(readingsDAG, "name: readings\n", "name: readings\ndescription: Of two stations.\n", 1)
	require.NoError(t, os.WriteFile(second, []byte(text), 0o600))
	must(t, w.env(t, writer), "deploy", second)
	must(t, w.env(t, writer), "pin", "readings", "v1")

	env := w.env(t, reader)
	env["DAGCTL_COMPLETION_TIME"] = "1m"
	for line, want := range map[string]string{
		"status r":           "readings",
		"run ":               "readings/",
		"run readings/d":     "readings/daily",
		"datasets preview d": "daily_highest",
		"datasets preview daily_highest --partition ": "2026-01-01 2026-01-02",
		"tasks list --dag ":                           "readings",
		"tasks list --dag readings --job n":           "note",
		"tasks get readings/daily@":                   "readings/daily@2026-01-01 readings/daily@2026-01-02",
		"tasks list --partition ":                     "",
		"why-not daily_highest 2026-01-02":            "2026-01-02",
		"secrets delete ":                             "",
		"diff readings v1 ":                           "v1 v2",
		"why readings/d":                              "readings/daily",
		"why daily_h":                                 "daily_highest",
		"why daily_highest@2026-01-02":                "daily_highest@2026-01-02",
		"promote readings v":                          "",
		"pin readings v":                              "v1 v2",
		"unpin readings ":                             "v1",
		"rollback readings --to ":                     "v1",
	} {
		words := strings.Split(line, " ")
		out := must(t, env, append([]string{"__completeNoDesc"}, words...)...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.Equal(t, want, strings.Join(lines[:len(lines)-1], " "), line)
	}
	for _, caller := range []map[string]string{{}, {"DAGCTL_URL": "http://127.0.0.1:1"}, w.env(t, nobody)} {
		r := dagctl(t, caller, "__completeNoDesc", "status", "")
		require.Zero(t, r.code)
		require.NotContains(t, r.err, "Error")
		require.Equal(t, ":4", strings.TrimSpace(r.out))
	}
}

func TestErrorsForPrograms(t *testing.T) {
	t.Parallel()
	env := map[string]string{"DAGCTL_URL": "http://127.0.0.1:1"}
	for line, code := range map[string]string{
		"tasks get zz -o json":       "invalid",
		"status --output json":       "unavailable",
		"status --wach -o=json":      "invalid",
		"target use nowhere -o json": "not_found",
		"datasets purge x -o json":   "invalid",
	} {
		r := dagctl(t, env, strings.Fields(line)...)
		require.NotZero(t, r.code, line)
		require.Empty(t, r.out, line)
		var said struct{ Code, Message, Hint string }
		require.NoError(t, json.Unmarshal([]byte(r.err), &said), "%s: %s", line, r.err)
		require.Equal(t, code, said.Code, line)
		require.NotEmpty(t, said.Message, line)
		require.NotEmpty(t, said.Hint, line)
	}
}

func TestMistypedWords(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"deplyo":                  "did you mean `dagctl deploy`?",
		"tasks evnts":             "did you mean `dagctl tasks events`?",
		"datasets frobnicate":     "`dagctl datasets --help` lists the commands",
		"tasks list --partiton x": "did you mean --partition?",
	} {
		r := dagctl(t, nil, strings.Fields(line)...)
		require.Equal(t, cli.ExitFailed, r.code, line)
		require.Contains(t, r.err, want, line)
	}
	require.True(t, strings.HasPrefix(must(t, nil, "--version"), "dagctl "))
}

// Whatever asks asks alike: it refuses without a terminal, names --yes, and does not ask with it.
func TestEverythingThatAsksHasYes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, admin)
	asks := map[string]string{
		"dagctl tasks retry":        "readings/note",
		"dagctl tasks cancel":       "--dag readings --status Completed",
		"dagctl tasks skip":         "--dag readings --status Completed --reason x",
		"dagctl tasks purge":        "--dag readings --reason x",
		"dagctl timers delete":      "--dag readings --group g",
		"dagctl trust remove":       "nothing",
		"dagctl secrets delete":     "nothing",
		"dagctl users remove":       "nobody@example.com",
		"dagctl tokens revoke":      "reader",
		"dagctl admin revoke-token": "reader --org acme --database-url x",
		"dagctl datasets purge":     "daily_highest --reason x --all",
		"dagctl deploy":             "",
		"dagctl delete":             "readings",
		"dagctl promote":            "readings",
		"dagctl rollback":           "readings",
		"dagctl abandon":            "readings",
		"dagctl workers drain":      "nothing",
	}
	found := map[string]bool{}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if f := cmd.Flags().Lookup("yes"); f != nil {
			found[cmd.CommandPath()] = true
			require.Equal(t, "do not ask", f.Usage, cmd.CommandPath())
			require.Contains(t, asks, cmd.CommandPath(), "a command that asks is not in this table")
		}
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(rootCommand(&cli.CLI{Environment: cli.Environment{Getenv: func(string) string { return "" }}}))
	require.Len(t, found, len(asks))

	for _, command := range []string{"tasks purge", "secrets delete", "tokens revoke", "delete", "workers drain",
		"users remove", "trust remove", "tasks cancel"} {
		args := append(strings.Fields(command), strings.Fields(asks["dagctl "+command])...)
		r := dagctl(t, env, args...)
		require.NotZero(t, r.code, command)
		if strings.Contains(r.err, "confirmation") {
			require.Contains(t, r.err, "Next: pass --yes", command)
		}
		require.NotContains(t, dagctl(t, env, append(args, "--yes")...).err, "confirmation", command)
	}
}
