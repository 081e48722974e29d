package operators_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/operatortest"
)

func TestCommandReadsFilteredInputs(t *testing.T) {
	t.Parallel()
	const query = "SELECT n, n % 2 = 0 AS even FROM range(4) AS t(n) ORDER BY n"
	reads := func(name string, where ...dag.Condition) caseOf {
		return caseOf{Name: name, Config: self(t, "copy", nil),
			Inputs: []operatortest.Input{{As: "numbers", Query: query, Where: where}}}
	}

	odd := dag.Condition{Column: "even", Values: []any{false}}
	empty := reads("no files", odd)
	empty.Inputs[0].Empty, empty.Want = true, map[string][]string{}
	operatortest.Run(t, builtin(t, "command"),
		reads("all rows").wants("'n': 0, 'even': true", "'n': 1, 'even': false", "'n': 2, 'even': true",
			"'n': 3, 'even': false"),
		reads("where", odd).wants("'n': 1, 'even': false", "'n': 3, 'even': false"),
		reads("where of no column", dag.Condition{Column: "odd", Values: []any{true}}).fails("has no column"),
		operatortest.Case(empty))
}

func TestCommandReadsItsInputsInAFormat(t *testing.T) {
	t.Parallel()
	const query = `SELECT n, n / 2 AS half, 'say "' || n || '"' AS said FROM range(3) AS t(n) ORDER BY n`
	const program = `f=$(sed 's/.*"files":\["\([^"]*\)"\].*/\1/')
		printf '{"unchanged": true, "result": {"name": "%s", "text": "%s"}}' "${f##*/}" "$(base64 -w0 "$f")"`
	reads := func(format, name, text string, where ...dag.Condition) operatortest.Case {
		return operatortest.Case{Name: name,
			Config: map[string]any{"argv": []string{"sh", "-c", program}, "input_format": format},
			Inputs: []operatortest.Input{{As: "numbers", Query: query, Where: where}}, Want: map[string][]string{},
			Check: func(t *testing.T, r operators.Result) {
				var result struct {
					Name string
					Text []byte
				}
				require.NoError(t, json.Unmarshal(r.Result, &result))
				require.Equal(t, "input0."+format, result.Name)
				require.Equal(t, text, string(result.Text))
			}}
	}

	last, none := dag.Condition{Column: "n", Values: []any{2}}, dag.Condition{Column: "n", Values: []any{9}}
	operatortest.Run(t, builtin(t, "command"),
		reads("csv", "CSV", "n,half,said\n0,0.0,\"say \"\"0\"\"\"\n1,0.5,\"say \"\"1\"\"\"\n2,1.0,\"say \"\"2\"\"\"\n"),
		reads("csv", "where as CSV", "n,half,said\n2,1.0,\"say \"\"2\"\"\"\n", last),
		reads("csv", "no rows as CSV", "n,half,said\n", none),
		reads("ndjson", "lines of JSON", `{"n":2,"half":1.0,"said":"say \"2\""}`+"\n", last),
		reads("ndjson", "no lines of JSON", "", none),
		caseOf{Name: "a format that is none",
			Config: map[string]any{"argv": []string{"true"}, "input_format": "xml"}}.refused("must be one of"),
	)
}

func TestCommandReadsItsSlice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "blocks.csv"), []byte("height\n9\n10\n19\n20\n"), 0o600))

	source := assignment("file_source", map[string]any{"path": "blocks.csv", "format": "csv"})
	source.Roots = []string{root}
	read := w.mustRun(t, source)

	a := assignment("command", self(t, "copy", nil))
	a.Inputs = []operators.AssignedInput{input("blocks", source, read.Written[0])}
	a.Inputs[0].Map, a.Inputs[0].PartitionBy = dag.MapSlice, dag.Partitioning{Kind: dag.ByCursor, Column: "height"}
	a.PartitionBy, a.Partition = dag.Partitioning{Kind: dag.ByRange, Size: 10, Column: "height"},
		&operators.PartitionRange{Key: "10-20"}
	out := w.mustRun(t, a)
	require.Equal(t, [][]any{{int64(10)}, {int64(19)}}, w.rows(t, a, out.Written[0]))
}

func TestCommandFindsProgramsInTheOrgsFolders(t *testing.T) {
	t.Parallel()
	first, second, outside := t.TempDir(), t.TempDir(), t.TempDir()
	script := "#!/bin/sh\ncat > /dev/null\nprintf '{\"result\": {\"said\": \"%s\"}}' \"$*\"\n"
	for _, path := range []string{filepath.Join(second, "bin", "say"), filepath.Join(outside, "evil")} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(script), 0o755))
	}
	require.NoError(t, os.Symlink(filepath.Join(outside, "evil"), filepath.Join(second, "link")))

	w := newWorld(t)
	for _, c := range []struct {
		name string
		argv []string
		said string // or the error
		err  string
	}{
		{"program", []string{"./bin/say", "hello"}, "hello", ""},
		{"program without a dot", []string{"bin/say", "hello"}, "hello", ""},
		{"script of an interpreter", []string{"sh", "./bin/say", "./nothing"}, "./nothing", ""},
		{"argument that is a file", []string{"./bin/say", "./bin/say"}, filepath.Join(second, "bin", "say"), ""},
		{"program that is not there", []string{"./bin/sing"}, "", "is not in any of the folders"},
		{"a folder", []string{"./bin/"}, "", "is not in any of the folders"},
		{"program outside", []string{"../" + filepath.Base(outside) + "/evil"}, "", "lies outside"},
		{"link to the outside", []string{"./link"}, "", "escapes"},
		{"argument outside", []string{"./bin/say", "./../x"}, "", "lies outside"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := assignment("command", map[string]any{"argv": c.argv})
			a.Roots = []string{first, second}
			out := w.run(t, a)
			if c.err != "" {
				require.ErrorContains(t, out.Err, c.err)
				require.False(t, out.Retryable)
				return
			}
			require.NoError(t, out.Err)
			require.JSONEq(t, `{"said": "`+c.said+`"}`, string(out.Result.Result))
		})
	}
}
