package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
)

func TestInitWritesADAGThatIsValid(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	must(t, nil, "init", dir)
	require.Contains(t, must(t, nil, "validate", dir), "DAG starter is valid: 2 jobs, 1 published dataset")
	require.Empty(t, must(t, nil, "fmt", "--check", dir), "the starter is in the usual form")

	again := dagctl(t, nil, "init", dir)
	require.Equal(t, cli.ExitConflict, again.code)
	require.Contains(t, again.err, "already exists")
	require.Contains(t, again.err, "Next: choose another folder")

	place := t.TempDir()
	odd := dagctl(t, nil, "init", filepath.Join(place, "it's new"))
	require.Zero(t, odd.code)
	require.Contains(t, odd.err, "`dagctl dev '"+place+`/it'\''s new'`+"`")
	inTheWay := filepath.Join(place, "file")
	require.NoError(t, os.WriteFile(inTheWay, nil, 0o600))
	refused := dagctl(t, nil, "init", inTheWay)
	require.Equal(t, cli.ExitFailed, refused.code)
	require.Contains(t, refused.err, filepath.Join(inTheWay, "README.md")+" cannot be written: not a directory")
	require.Contains(t, refused.err, "Next: choose a folder that you may write to")
}

func TestInitTemplates(t *testing.T) {
	t.Parallel()
	offered := must(t, nil, "__complete", "init", "--template", "")
	for _, name := range []string{"pipeline", "api", "database", "events", "dags", "operator", "worker"} {
		require.Contains(t, offered, name+"\t")
		dir := filepath.Join(t.TempDir(), name)
		must(t, nil, "init", "--template", name, dir)
		require.FileExists(t, filepath.Join(dir, "dag.schema.json"))
		files, err := filepath.Glob(filepath.Join(dir, "dag.yaml"))
		require.NoError(t, err)
		deeper, err := filepath.Glob(filepath.Join(dir, "*", "dag.yaml"))
		require.NoError(t, err)
		require.NotEmpty(t, append(files, deeper...), name)
		for _, file := range append(files, deeper...) {
			must(t, nil, "validate", file)
			require.Empty(t, must(t, nil, "fmt", "--check", file), name)
		}
	}

	dir := filepath.Join(t.TempDir(), "none")
	unknown := dagctl(t, nil, "init", "--template", "plumber", dir)
	require.Equal(t, cli.ExitFailed, unknown.code)
	require.Contains(t, unknown.err, `there is no template "plumber"`)
	require.Contains(t, unknown.err, "pipeline, api, database, events, dags, operator, worker")
	require.NoDirExists(t, dir)
}

func TestValidateTellsWhereAndWhat(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte("name: x\njobs:\n  - name: a\n    operater: sql\n"), 0o600))

	pretty := dagctl(t, nil, "validate", file)
	require.Equal(t, cli.ExitFailed, pretty.code)
	require.Contains(t, pretty.err, file+":4:5")
	require.Contains(t, pretty.err, `did you mean "operator"?`)
	require.Empty(t, pretty.out)

	machine := dagctl(t, nil, "validate", file, "-o", "json")
	require.Equal(t, cli.ExitFailed, machine.code)
	var problems []map[string]any
	require.NoError(t, json.Unmarshal([]byte(machine.out), &problems))
	require.Len(t, problems, 2)
	require.EqualValues(t, 4, problems[1]["line"])
}

func TestFmt(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte("jobs:\n    - operator: sql\n      name: a\nname: x\n"), 0o640))

	check := dagctl(t, nil, "fmt", "--check", file)
	require.Equal(t, cli.ExitFailed, check.code)
	require.Equal(t, file+"\n", check.out)

	require.Equal(t, file+"\n", must(t, nil, "fmt", file))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Regexp(t, `^name: x\n`, string(text))
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
	require.Empty(t, must(t, nil, "fmt", "--check", file))
}

func TestSchemaIsJSON(t *testing.T) {
	t.Parallel()
	var schema map[string]any
	require.NoError(t, json.Unmarshal([]byte(must(t, nil, "schema")), &schema))
	require.Equal(t, "https://json-schema.org/draft/2020-12/schema", schema["$schema"])
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	home := map[string]string{"HOME": t.TempDir()}
	tests := map[string]struct {
		args []string
		code int
		says string
	}{
		"unknown command": {[]string{"deplyo"}, cli.ExitFailed, "unknown command"},
		"unknown flag":    {[]string{"status", "--wach"}, cli.ExitFailed, "Next: `dagctl status --help`"},
		"unknown output":  {[]string{"version", "-o", "xml"}, cli.ExitFailed, "use table, json or yaml"},
		"missing file": {[]string{"validate", "/nowhere/dag.yaml"}, cli.ExitFailed,
			"there is no file /nowhere/dag.yaml"},
		"no server":    {[]string{"status", "--data", "/nowhere/.dagctl"}, cli.ExitServer, "no server to talk to"},
		"server down":  {[]string{"status", "--target", "http://127.0.0.1:1"}, cli.ExitServer, "does not answer"},
		"not a job":    {[]string{"run", "mail"}, cli.ExitFailed, "is not DAG/JOB"},
		"bad payload":  {[]string{"run", "mail/send", "--payload", "{"}, cli.ExitFailed, "is not JSON"},
		"bad variable": {[]string{"validate", "--var", "novalue", "."}, cli.ExitFailed, "is not NAME=VALUE"},
		"dev on all": {[]string{"dev", "--addr", "0.0.0.0:7070"}, cli.ExitFailed,
			"does not listen on 0.0.0.0:7070"},
		"serve unset": {[]string{"serve"}, cli.ExitFailed, "database_url: is not set"},
		"runtime not here": {[]string{"serve", "--runtime", "lambda=moon"}, cli.ExitFailed,
			`"moon" is not a kind of runtime`},
		"migrate unset":  {[]string{"migrate"}, cli.ExitFailed, "DAGCTL_DATABASE_URL"},
		"unknown target": {[]string{"status", "--target", "prod"}, cli.ExitFailed, `no target "prod"`},
		"target not a URL": {[]string{"target", "add", "prod", "--url", "prod.example.com"}, cli.ExitFailed,
			"is not the URL of a server"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := dagctl(t, home, test.args...)
			require.Equal(t, test.code, r.code, r.err)
			require.Contains(t, r.err, test.says)
		})
	}
}

// listedTarget is a target as `dagctl target list` shows it.
type listedTarget struct {
	Name    string `json:"name"`
	URL     string `json:"url"`
	Current bool   `json:"current"`
}

func TestTargets(t *testing.T) {
	t.Parallel()
	env := map[string]string{"HOME": t.TempDir()}
	r := dagctlWithInput(t, env, "dagctl_user_secret\n", "target", "add", "prod", "--url",
		"https://dagctl.example.com/", "--token-file", "-")
	require.Zero(t, r.code, r.err)
	must(t, env, "target", "add", "test", "--url", "http://127.0.0.1:1")
	require.Contains(t, must(t, env, "target", "list"), "*  prod  https://dagctl.example.com\n")
	must(t, env, "target", "use", "test")
	list := decode[[]listedTarget](t, env, "target", "list")
	require.Equal(t, []listedTarget{{"prod", "https://dagctl.example.com", false},
		{"test", "http://127.0.0.1:1", true}}, list)

	path := filepath.Join(env["HOME"], ".config", "dagctl", "config.yaml")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "it holds a token")

	c := &cli.CLI{Environment: cli.Environment{Getenv: func(name string) string { return env[name] }}}
	chosen, err := c.ResolveTarget()
	require.NoError(t, err)
	require.Equal(t, "test", chosen.Name)
	c.Target = "prod"
	chosen, err = c.ResolveTarget()
	require.NoError(t, err)
	require.Equal(t, "dagctl_user_secret", chosen.Token)
	c.Target, env["DAGCTL_URL"], env["DAGCTL_TOKEN"] = "", "http://other", "mine"
	chosen, err = c.ResolveTarget()
	require.NoError(t, err)
	require.Equal(t, cli.Target{Name: "DAGCTL_URL", URL: "http://other", Token: "mine"}, chosen)
}

func TestEmptyArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"why", ""}, {"status", ""}, {"why-not", "ds", ""}, {"tasks", "list", ""}} {
		r := dagctl(t, nil, args...)
		require.Equal(t, cli.ExitFailed, r.code, args)
		require.NotContains(t, r.err, "route", args)
	}
	r := dagctl(t, nil, "why-not", "ds", "")
	require.Contains(t, r.err, "argument 2 of `dagctl why-not` is empty")
	must(t, nil, "__complete", "pause", "") // the word that a shell completes
}
