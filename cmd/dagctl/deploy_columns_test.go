package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
)

// Columns that a computed input does not have are refused when they are planned, and not by each task of the build.
func TestColumnsThatAnInputLacksAreRefusedAtThePlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, writer)
	w.deployReadings(t, "2026-01-01")

	file := filepath.Join(t.TempDir(), "dag.yaml")
	plan := func(query, where string) result {
		text := strings.Replace(readingsDAG, "SELECT station, max(celsius) AS highest FROM landing GROUP BY station "+
			"ORDER BY station", query, 1)
		text = strings.Replace(text, "- from: { job: landing }\n", "- { from: { job: landing }"+where+" }\n", 1)
		text = strings.Replace(text, "    checks:\n      - not_null: [station]\n", "", 1)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return dagctl(t, env, "plan", file)
	}

	for what, c := range map[string]struct{ query, where, says string }{
		"named alone": {"SELECT station, celsus FROM landing", "", "job daily: config.query: it names the column " +
			`"celsus" (line 1), which is not in the output of job landing; did you mean "celsius"?`},
		"qualified":  {"SELECT landing.staton FROM landing", "", `did you mean "station"?`},
		"in a join":  {"SELECT a.station FROM landing a JOIN landing b USING (sensor)", "", `the column "sensor"`},
		"in a where": {"SELECT station FROM landing WHERE temperature > 1", "", "the columns are station, celsius"},
		"of the input": {"SELECT station FROM landing", ", where: { staton: harbour }",
			`job daily: where of input "landing": the output of job landing has no column "staton"; ` +
				`did you mean "station"?`},
	} {
		refused := plan(c.query, c.where)
		require.Equal(t, cli.ExitFailed, refused.code, what)
		require.Contains(t, refused.err, c.says, what)
		require.Contains(t, dagctl(t, env, "deploy", file).err, c.says, what)
	}

	for what, query := range map[string]string{
		"a name of its own":       "WITH l AS (SELECT station AS place FROM landing) SELECT place FROM l",
		"another case":            "SELECT STATION FROM Landing",
		"a name of a subquery":    "SELECT l.celsius FROM (SELECT station FROM landing) l",
		"what may be a text":      `SELECT \"station\" FROM landing`,
		"a variable of the run":   "SELECT station, getvariable('start') AS day FROM landing",
		"what is wrong otherwise": "SELECT station + celsius AS x FROM landing",
	} {
		planned := plan(query, "")
		require.Zero(t, planned.code, "%s: %s", what, planned.err)
	}
	require.Zero(t, plan("SELECT station FROM landing", ", where: { station: harbour }").code)
}

// Of an input that is not computed yet, nothing is sure.
func TestColumnsOfAnInputThatIsNotComputedAreNotRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "dag.yaml")
	text := strings.Replace(readingsDAG, "max(celsius)", "max(whatever)", 1)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	must(t, w.env(t, writer), "plan", file)
}

// A job without outputs is looked at, too: nothing else would say what is at fault before its tasks.
func TestColumnsThatAnExportCannotHaveAreRefusedAtThePlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, writer)
	w.deployReadings(t, "2026-01-01")

	file := filepath.Join(t.TempDir(), "dag.yaml")
	plan := func(path, where string) result {
		text := strings.Replace(readingsDAG, "publish:\n", `  - name: shared
    operator: parquet_export
    inputs: [{ from: { job: daily }`+where+` }]
    outputs: 0
    config: { bucket: acme-shared, region: eu-central-1, path: "`+path+`" }
publish:
`, 1)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return dagctl(t, env, "plan", file)
	}
	for path, says := range map[string]string{
		"station={partition}": `job shared: config.path: column "station" is in the rows`,
		"all":                 "day partitions would overwrite each other: it needs {partition}",
	} {
		refused := plan(path, "")
		require.Equal(t, cli.ExitFailed, refused.code, path)
		require.Contains(t, refused.err, says)
		require.Contains(t, dagctl(t, env, "deploy", file).err, says)
	}
	require.Contains(t, plan("day={partition}", ", where: { staton: harbour }").err, `did you mean "station"?`)
	planned := plan("day={partition}", ", where: { station: harbour }")
	require.Zero(t, planned.code, planned.err)
}
