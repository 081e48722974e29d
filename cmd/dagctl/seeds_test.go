package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
)

const seedsDAG = `name: shop
jobs:
  - name: countries
    operator: seed
    config: { csv_file: data/countries.csv }
  - name: rates
    operator: seed
    config: { csv: "code,rate\nDE,19\nNA,15\n" }
  - name: named
    operator: sql
    inputs: [{ from: { job: countries } }]
    config: { query: "SELECT code, upper(name) AS name FROM countries ORDER BY code" }
  - name: taxed
    operator: sql
    inputs: [{ from: { job: rates } }]
    config: { query: "SELECT code, rate / 100 AS share FROM rates ORDER BY code" }
publish:
  countries: { from: { job: named } }
  shares: { from: { job: taxed } }
`

// folder writes the files of a DAG and returns the folder.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	return dir
}

// The rows of a seed are those of the version: an edit rebuilds what reads it and nothing else, and a rollback brings
// them back. No server folder is involved.
func TestASeedChangesWithADeploy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, writer)
	dir := folder(t, map[string]string{"dag.yaml": seedsDAG, "data/countries.csv": "code,name\nNA,Namibia\n"})
	must(t, env, "deploy", dir)
	rows := func() [][]any { return decode[query.Rows](t, env, "datasets", "preview", "countries").Rows }
	require.Equal(t, [][]any{{"NA", "NAMIBIA"}}, rows())
	require.False(t, decode[registry.Deployment](t, env, "deploy", dir).Created, "the same files are the same version")

	file := filepath.Join(dir, "data", "countries.csv")
	require.NoError(t, os.WriteFile(file, []byte("code,name\nNA,Namibia\nXK,Kosovo\n"), 0o600))
	plan := must(t, env, "plan", dir)
	require.Regexp(t, `shop/countries/0 +rebuild +definition changed`, plan)
	require.Regexp(t, `countries +rebuild +upstream changed`, plan)
	require.Regexp(t, `shop/rates/0 +reuse`, plan)
	require.Regexp(t, `shares +reuse`, plan)
	before := len(w.tasks(t))
	must(t, env, "deploy", dir)
	require.Equal(t, [][]any{{"NA", "NAMIBIA"}, {"XK", "KOSOVO"}}, rows())
	require.Equal(t, before+2, len(w.tasks(t)), "the seed and its reader")

	must(t, env, "rollback", "shop", "--yes")
	require.Equal(t, [][]any{{"NA", "NAMIBIA"}}, rows())
	require.Equal(t, before+2, len(w.tasks(t)), "nothing is computed again")
	require.NotContains(t, must(t, env, "sources"), "shop/countries", "it never fires")
	require.Contains(t, dagctl(t, env, "run", "shop/countries").err, "edit them, and `dagctl deploy` makes them again")

	require.NoError(t, os.WriteFile(file, []byte("code,name\nNA,Namibia,2\n"), 0o600))
	refused := dagctl(t, env, "deploy", dir)
	require.Equal(t, cli.ExitFailed, refused.code)
	require.Contains(t, refused.err, `data/countries.csv: line 2: "NA,Namibia,2" has 3 values, not 2`)
	require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("code,name\n", 110_000)), 0o600))
	require.Contains(t, dagctl(t, env, "validate", dir).err, `it has more than 1048576 bytes`)
}

// Who may not read a seed finds its rows nowhere.
func TestRowsOfAHiddenSeedAreNotShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, writer)
	const hidden = "Atlantis"
	dir := folder(t, map[string]string{"dag.yaml": seedsDAG, "data/countries.csv": "code,name\nAT," + hidden + "\n"})
	must(t, env, "deploy", dir)
	must(t, w.env(t, admin), "roles", "create", "geo")
	must(t, w.env(t, admin), "datasets", "visibility", "shop/countries/0", "--role", "role:geo")
	file := filepath.Join(dir, "data", "countries.csv")
	require.NoError(t, os.WriteFile(file, []byte("code,name\nAT,"+hidden+"\nNA,Namibia\n"), 0o600))

	outsider := w.env(t, reader)
	for _, path := range []string{"/v1/dags/shop", "/v1/dags/shop/versions/1", "/v1/dags/shop/versions/1/definition",
		"/v1/jobs/shop/countries", "/v1/jobs/shop/named", "/v1/sources/shop/countries", "/v1/tasks", "/dags/shop",
		"/dags/shop/versions/1", "/v1/dags/shop/graph"} {
		_, body := w.send(t, reader, "GET", path, "", nil)
		require.NotContains(t, body, hidden, path)
	}
	require.NotContains(t, dagctl(t, outsider, "plan", dir).out, hidden)
}
