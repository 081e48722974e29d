package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
)

// What depends on the datasets of other DAGs is checked against a server, if asked to, as a plan checks it.
func TestValidateOnAServerSaysWhatAPlanSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env, dir := w.env(t, writer), t.TempDir()
	file := writeDAG(t, dir, "doubles", doublesDAG)
	require.Contains(t, must(t, nil, "validate", file), "DAG doubles is valid")

	// places returns where a command that refuses the file says that something is wrong.
	places := func(args ...string) (says string, found []map[string]any) {
		t.Helper()
		refused := dagctl(t, env, append(args, file)...)
		require.Equal(t, cli.ExitFailed, refused.code, refused.err)
		machine := dagctl(t, env, "validate", "--server", file, "-o", "json")
		require.Equal(t, cli.ExitFailed, machine.code)
		require.NoError(t, json.Unmarshal([]byte(machine.out), &found))
		return refused.err, found
	}

	planned, _ := places("plan")
	require.Contains(t, planned, "dag.yaml:5:")
	says, found := places("validate", "--server")
	require.Contains(t, says, file+":5:")
	require.Contains(t, says, `job doubled reads dataset "daily_highest", which no DAG publishes`)
	require.Contains(t, says, "deploy the producing DAG first")
	require.Contains(t, says, "^^^")
	require.Len(t, found, 1)
	require.EqualValues(t, 5, found[0]["line"])
	require.Equal(t, file, found[0]["file"])

	w.land(t, "2026-01-01")
	must(t, env, "deploy", writeDAG(t, dir, "readings", readingsDAG))
	require.Contains(t, must(t, env, "validate", "--server", file), "DAG doubles is valid")
	require.NotContains(t, must(t, env, "status"), "doubles", "nothing was deployed")

	// Partitions that do not fit have the plan's line and suggestion.
	writeDAG(t, dir, "doubles", strings.Replace(doublesDAG, "{ time: day }", "{ time: hour }", 1))
	require.Contains(t, must(t, nil, "validate", file), "DAG doubles is valid")
	planned, _ = places("plan")
	_, found = places("validate", "--server")
	require.NotEmpty(t, found)
	require.Contains(t, planned, found[0]["message"])
	require.Contains(t, planned, found[0]["suggestion"])

	// A server is asked only if that is said.
	require.NotZero(t, dagctl(t, map[string]string{"HOME": dir}, "validate", "--server", file).code)
}

// Files that are validated together are those that will be deployed together: they are read as the files say, and not
// as the server has them.
func TestValidateOnAServerReadsTheFilesBesideAFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env, dir := w.env(t, writer), t.TempDir()
	typed := strings.Replace(readingsDAG, "format: csv }", "format: csv, columns: [station, celsius] }", 1)
	readings := writeDAG(t, dir, "readings", typed)
	doubles := writeDAG(t, dir, "doubles", doublesDAG)
	refused := func(says string, args ...string) {
		t.Helper()
		r := dagctl(t, env, append([]string{"validate", "--server"}, args...)...)
		require.Equal(t, cli.ExitFailed, r.code, r.out)
		require.Contains(t, r.err, says)
	}

	require.Contains(t, must(t, env, "validate", "--server", dir), "DAG doubles is valid")
	refused(`reads dataset "daily_highest", which no DAG publishes`, doubles)
	writeDAG(t, dir, "doubles", strings.Replace(doublesDAG, "AS doubled FROM", "AS doubled, lowest FROM", 1))
	refused("lowest", dir)
	both := strings.Replace(doublesDAG, "as: highest }", "as: highest }, { from: { dataset: unheard } }", 1)
	writeDAG(t, dir, "doubles", both)
	refused(`reads dataset "unheard", which no DAG publishes`, dir)

	// What serves is not what is going to serve.
	w.land(t, "2026-01-01")
	must(t, env, "deploy", readings)
	lowest := strings.Replace(doublesDAG, "2 * highest AS doubled", "lowest AS doubled", 1)
	writeDAG(t, dir, "doubles", lowest)
	refused("lowest", dir)
	writeDAG(t, dir, "readings", strings.Replace(typed, "AS highest", "AS highest, min(celsius) AS lowest", 1))
	require.Contains(t, must(t, env, "validate", "--server", dir), "DAG doubles is valid")
	refused("lowest", doubles)
	hourly := strings.Replace(doublesDAG, "{ time: day }", "{ time: hour }", 1)
	writeDAG(t, dir, "doubles", hourly)
	refused("hour", dir)
	require.NotContains(t, must(t, env, "status"), "doubles", "nothing was deployed")
}
