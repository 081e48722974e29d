package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// writeDAG writes a DAG file into a folder of its own.
func writeDAG(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name, dagfile.FileName)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// doublesDAG reads the dataset that readings publishes.
const doublesDAG = `name: doubles
jobs:
  - name: doubled
    operator: sql
    inputs: [{ from: { dataset: daily_highest }, as: highest }]
    execution_strategy: PerPartition
    partition_by: { time: day }
    config: { query: "SELECT station, 2 * highest AS doubled FROM highest" }
publish:
  doubled: { from: { job: doubled } }
`

func TestDeployOfAFolder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.land(t, "2026-01-01")
	env, dir := w.env(t, writer), t.TempDir()
	writeDAG(t, dir, "a", doublesDAG)
	writeDAG(t, dir, "b", readingsDAG)
	out := must(t, env, "deploy", dir)
	require.Regexp(t, `^readings v1 \([0-9a-f]{7}\) is Active\ndoubles v1 \([0-9a-f]{7}\) is Active\n$`, out)
	require.Equal(t, []string{"2026-01-01"}, w.partitions(t, "doubled"))

	require.Contains(t, dagctl(t, env, "deploy", dir, "--wait=false").err, "has several DAGs in it")
	writeDAG(t, dir, "c", strings.NewReplacer("doubles", "triples", "doubled", "tripled").Replace(doublesDAG))
	writeDAG(t, dir, "a", strings.Replace(doublesDAG, "2 * highest", "2 * nothing", 1))
	r := dagctl(t, env, "deploy", dir)
	require.Contains(t, r.err, `there is no column "nothing"`)
	require.NotContains(t, r.err, "Deployed", "found before anything is deployed")
	writeDAG(t, dir, "a", strings.Replace(doublesDAG, "as: highest }", "as: highest }, "+
		"{ from: { dataset: nothing }, map: latest }", 1))
	r = dagctl(t, env, "deploy", dir)
	require.Contains(t, r.err, "Deployed: readings. Failed: doubles. Not tried: triples.")
	require.Contains(t, r.err, "nothing")
	require.Equal(t, "v1", activeOf(t, env, "doubles"))

	// Deploy finds a circle before it deploys anything.
	writeDAG(t, dir, "a", strings.Replace(doublesDAG, "dataset: daily_highest", "dataset: tripled", 1))
	writeDAG(t, dir, "c", strings.NewReplacer("doubles", "triples", "doubled", "tripled", "daily_highest",
		"doubled").Replace(doublesDAG))
	r = dagctl(t, env, "deploy", dir)
	require.Equal(t, cli.ExitConflict, r.code)
	require.Contains(t, r.err, "circle: triples reads doubles reads triples")
	r = dagctl(t, nil, "validate", dir)
	require.Equal(t, cli.ExitConflict, r.code)
	require.Contains(t, r.err, "circle: doubles reads triples reads doubles")
}

// TestAFolderIsCheckedAsItIsDeployed: validate and fmt take the folders that deploy takes; a plan is of one DAG.
func TestAFolderIsCheckedAsItIsDeployed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeDAG(t, dir, "a", doublesDAG)
	readings := writeDAG(t, dir, "b/deeper", readingsDAG)
	writeDAG(t, dir, ".hidden", "no DAG")
	out := must(t, nil, "validate", dir)
	require.Contains(t, out, "DAG doubles is valid")
	require.Contains(t, out, readings+": DAG readings is valid")

	must(t, nil, "fmt", dir)
	require.Empty(t, must(t, nil, "fmt", "--check", dir))
	r := dagctl(t, nil, "plan", dir)
	require.Equal(t, cli.ExitFailed, r.code)
	require.Contains(t, r.err, "has several DAGs in it")
	require.Contains(t, r.err, filepath.Dir(readings))

	// What one publishes is known to the others, whichever is read first.
	doubles := func(old, new string) string {
		writeDAG(t, dir, "a", strings.Replace(doublesDAG, old, new, 1))
		return dagctl(t, nil, "validate", dir).err
	}
	require.Contains(t, doubles("2 * highest ", "2 * hihgest "), `there is no column "hihgest"`)
	require.Contains(t, doubles("2 * highest ", "2 * hihgest "), `did you mean "highest"?`)
	require.Contains(t, doubles("time: day", "time: hour"), `input "highest" has day partitions`)
	require.Contains(t, must(t, nil, "validate", filepath.Join(dir, "a")), "is valid", "alone, it knows no other")

	writeDAG(t, dir, "a", strings.Replace(doublesDAG, "operator: sql", "operator: sqk", 1))
	require.Contains(t, dagctl(t, nil, "validate", dir).err, filepath.Join(dir, "a", dagfile.FileName)+":4")
	for _, command := range []string{"validate", "fmt", "plan"} {
		require.Contains(t, dagctl(t, nil, command, t.TempDir()).err, "there is no file", command)
	}
}

func activeOf(t *testing.T, env map[string]string, dag string) string {
	t.Helper()
	for _, v := range decode[[]deploy.PastVersion](t, env, "history", dag) {
		if v.Status == registry.Active {
			return "v" + string(rune('0'+v.Number))
		}
	}
	return ""
}

// TestAFailedBuildIsInspectedAndResumed follows a version whose check fails: people can see, compare and accept its
// data before it serves.
func TestAFailedBuildIsInspectedAndResumed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	env, dir := w.env(t, writer), t.TempDir()
	file := writeDAG(t, dir, "x", strings.Replace(readingsDAG, "SELECT station, max(celsius) AS highest",
		"SELECT nullif(station, 'summit') AS station, 1 + max(celsius) AS highest", 1))
	r := dagctl(t, env, "deploy", file, "--resume")
	require.Equal(t, cli.ExitConflict, r.code)
	require.Contains(t, r.err, "nothing to resume: no version of readings has failed")
	r = dagctl(t, env, "deploy", file)
	require.Equal(t, cli.ExitFailed, r.code)
	require.Contains(t, r.err, "not_null(station): 1 row")

	shown := must(t, env, "datasets", "get", "daily_highest")
	require.Regexp(t, `WITHHELD +REVISION +STATE +OF +ROWS +MADE +CHECKS\n`, shown)
	require.Regexp(t, `(?m)^2026-01-0[12] +1 +Rejected +candidate +2 .* not_null\(station\): 1 row`, shown,
		"whichever day was first")
	require.NotContains(t, must(t, w.env(t, reader), "datasets", "get", "daily_highest"), "WITHHELD")
	require.NotContains(t, must(t, env, "datasets", "preview", "daily_highest", "--version", "candidate"), "harbour")

	decide := []string{"datasets", "accept", "daily_highest", "--version", "candidate", "--reason",
		"the summit has lost its name"}
	require.Contains(t, dagctl(t, env, append(decide, "--partition", "2026-01-01")...).err, "admin")
	first := regexp.MustCompile(`(?m)^(2026-01-0[12]) +1 +Rejected`).FindStringSubmatch(shown)[1]
	accept := func(day string) {
		require.Equal(t, "revision 1 of partition "+day+" of daily_highest is Published\n",
			must(t, w.env(t, admin), append(decide, "--partition", day)...))
	}
	accept(first)

	// The build fails with its first check, so the other day may never have been computed.
	second := map[string]string{"2026-01-01": "2026-01-02", "2026-01-02": "2026-01-01"}[first]
	if !regexp.MustCompile(second + ` +1 +Rejected`).MatchString(must(t, env, "datasets", "get", "daily_highest")) {
		require.Contains(t, dagctl(t, env, "deploy", file, "--resume").err, "not_null(station): 1 row")
	}
	accept(second)
	rows := decode[query.Rows](t, env, "datasets", "preview", "daily_highest", "--version", "candidate",
		"--partition", "2026-01-01")
	require.ElementsMatch(t, [][]any{{"harbour", 6.25}, {nil, -7.0}}, rows.Rows)
	r = dagctl(t, w.env(t, reader), "datasets", "preview", "daily_highest", "--version", "candidate")
	require.Contains(t, r.err, "only writers read what does not serve")
	require.NotContains(t, must(t, env, "datasets", "preview", "daily_highest"), "6.25", "readers see nothing of it")
	require.Contains(t, must(t, env, "datasets", "diff", "daily_highest", "live", "candidate"),
		"0 partitions with different numbers of rows, 2 with the same")
	for _, wrong := range []string{"v9", "yesterday", "01a1fd91-0000-7000-8000-000000000000"} {
		require.NotZero(t, dagctl(t, env, "datasets", "preview", "daily_highest", "--version", wrong).code)
	}

	out := must(t, env, "deploy", file, "--resume")
	require.Regexp(t, `readings v2 .* is Active`, out)
	r = dagctl(t, env, "deploy", file, "--resume")
	require.Contains(t, r.err, "nothing to resume: version 2 of readings is Active")

	history := must(t, env, "history", "readings")
	require.Regexp(t, `(?m)^v2 +Active .* deploy by token:writer`, history)
	require.Regexp(t, `(?m)^v1 +Superseded .* \d{4}-\d{2}-\d{2} \d{2}:\d{2}`, history)
	versions := decode[[]deploy.PastVersion](t, env, "history", "readings")
	require.Equal(t, []deploy.Activation{{At: versions[0].Activations[0].At, Reason: "deploy", Actor: "token:writer",
		From: new(1)}}, versions[0].Activations)
	require.NotNil(t, versions[1].InstantUntil)
	diff := must(t, env, "diff", "readings", "v1", "v2")
	require.Contains(t, diff, "-    config: { query: \"SELECT station, max(celsius)")
	require.Contains(t, diff, "+    config: { query: \"SELECT nullif(station, 'summit')")
	require.Regexp(t, `> +daily_highest +swap-only`, diff)
	require.NotZero(t, dagctl(t, w.env(t, reader), "diff", "readings", "v1", "v2").code, "documents are for writers")
	require.NotZero(t, dagctl(t, env, "diff", "readings", "v1", "v7").code)
}

const skipsDAG = `name: skips
jobs:
` + landingJob + `  - name: picky
    operator: command
    inputs: [{ from: { job: landing } }]
    execution_strategy: PerPartition
    config: { argv: [/bin/sh, -c, "grep -q '\"key\":\"2026-01-02\"' && { echo not this day >&2; exit 65; }; echo"] }
`

func TestTasksAreSkipped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, writer)
	w.land(t, "2026-01-01")
	w.land(t, "2026-01-02")
	file := writeDAG(t, t.TempDir(), "x", skipsDAG)
	r := dagctl(t, env, "deploy", file)
	require.Equal(t, cli.ExitFailed, r.code)
	require.Contains(t, r.err, "not this day")
	dead := decode[[]views.Task](t, env, "tasks", "list", "--dead")
	require.Len(t, dead, 1)
	id := dead[0].ID.String()
	require.Contains(t, dagctl(t, env, "tasks", "skip", id).err, "--reason is missing")
	require.NotZero(t, dagctl(t, w.env(t, reader), "tasks", "skip", id, "--reason", "x").code)
	require.Contains(t, must(t, env, "tasks", "skip", id, "--reason", "the day is lost"), "skipped: the day is lost")
	require.Regexp(t, `picky/0 .* 2, 1 skipped|picky/0 .* 1, 1 skipped`, must(t, env, "plan", file))
	require.Regexp(t, `skips v1 .* is Active`, must(t, env, "deploy", file, "--resume"))
}

func TestDatasetDiffByKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env, dir := w.env(t, writer), t.TempDir()
	text := strings.Replace(strings.Replace(readingsDAG, "update_strategy: replace",
		"update_strategy: append\n    unique_key: [station]", 1),
		"SELECT station, max(celsius) AS highest FROM landing GROUP BY station ORDER BY station",
		"SELECT station, max(celsius) AS highest, count(*) AS n FROM landing GROUP BY station", 1)
	w.land(t, "2026-01-01")
	must(t, env, "deploy", writeDAG(t, dir, "x", text))
	next := strings.Replace(text, "SELECT station, max(celsius) AS highest, count(*) AS n",
		"SELECT replace(station, 'summit', 'peak') AS station, 10 * max(celsius) AS highest, 'x' AS note", 1)
	must(t, env, "deploy", writeDAG(t, dir, "x", next), "--no-activate")
	diff := decode[query.Diff](t, env, "datasets", "diff", "daily_highest", "live", "candidate")
	require.Equal(t, []query.ColumnDiff{{Name: "n", From: "BIGINT"}, {Name: "note", To: "VARCHAR"}}, diff.Columns)
	require.Equal(t, &query.KeyDiff{Columns: []string{"station"}, Partitions: 1, OnlyFrom: 1, OnlyTo: 1, Changed: 1,
		Sample: []query.KeyChange{
			{Change: "changed", Partition: "2026-01-01", Key: []any{"harbour"}},
			{Change: "only_from", Partition: "2026-01-01", Key: []any{"summit"}},
			{Change: "only_to", Partition: "2026-01-01", Key: []any{"peak"}},
		}}, diff.Keys)
	text = must(t, env, "datasets", "diff", "daily_highest", "v1", "v2")
	require.Contains(t, text,
		"By station, in the first 1 partition: 1 only in v1, 1 only in v2, 1 with different values.")
	require.Contains(t, must(t, env, "datasets", "diff", "daily_highest", "live", "v1"),
		"Both are the same dataset version.")
}
