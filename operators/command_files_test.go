package operators_test

import (
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
