//go:build linux && (amd64 || arm64)

package operators_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
)

// withCode is a carrier of this process that has code, as a worker's carrier fetches it from the server.
type withCode struct {
	*operators.Runner
	files map[string]string
}

func (c withCode) Fetch(
	ctx context.Context, in operators.AssignedInput, _ bool, dir string,
) (files, keys []string, err error) {
	partitions, err := c.Storage.Open(ctx, in.Generation, in.Partitions, dir)
	for _, p := range partitions {
		files = append(files, p...)
	}
	return files, nil, err
}

func (c withCode) Deliver(
	ctx context.Context, a operators.Assignment, dirs []string, result operators.Result, scratch string,
) (operators.Outcome, error) {
	return c.Seal(ctx, a, dirs, result, scratch)
}

func (c withCode) FetchCode(_ context.Context, _ operators.Assignment, dir string) error {
	for name, text := range c.files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func udfWorld(t *testing.T, options operators.UDFOptions, files map[string]string) (world, *bytes.Buffer) {
	w := newWorld(t)
	registry, err := operators.Builtin(operators.Options{Engines: enginetest.Engines(),
		Threads: 1, Command: anyProgram, UDF: options})
	require.NoError(t, err)
	var log bytes.Buffer
	w.Runner.Log = slog.New(slog.NewTextHandler(&log, nil))
	w.Runner.Registry = registry
	w.Runner.Carrier = withCode{w.Runner, files}
	return w, &log
}

// confines reports whether this machine can confine users' code. If it cannot, it checks that a task fails for good
// with an error that names what is missing, before it has fetched the code.
func confines(t *testing.T) bool {
	t.Helper()
	missing := sandbox.Available()
	if missing == nil {
		return true
	}
	w, _ := udfWorld(t, operators.UDFOptions{}, nil)
	out := w.Runner.Run(t.Context(), udfAssignment("run.sh", nil), nil)
	require.ErrorContains(t, out.Err, "this machine cannot confine programs: ")
	require.ErrorContains(t, out.Err, missing.Error())
	require.False(t, out.Retryable)
	return false
}

func udfAssignment(entrypoint string, config map[string]any) operators.Assignment {
	a := assignment("udf", config)
	a.UDF = &dag.UDF{Folder: "f", Entrypoint: entrypoint, Hash: "h"}
	a.TimeoutAt = time.Now().Add(time.Minute)
	return a
}

const counting = `#!/bin/sh
read -r task
echo "looking at $1"
echo "$task" | grep -q '"params":{"unit":"files"}' || exit 64
echo n > outputs/out/n.csv
ls inputs/given/*.parquet | wc -l >> outputs/out/n.csv
. "$(dirname "$0")/lib/finish.sh"
`

var countingCode = map[string]string{"count.sh": counting,
	"lib/finish.sh": `echo '{"result": {"who": "me"}, "operator_state": 7}'`}

func TestUDFsReadFilesAndWriteFiles(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]operators.UDFOptions{"confined": {}, "without namespaces": {Bare: true},
		"unconfined": {Unconfined: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !options.Unconfined && !confines(t) {
				return
			}
			w, log := udfWorld(t, options, countingCode)
			given := assignment("command", self(t, "csv", nil))
			made := w.Runner.Run(t.Context(), given, nil)
			require.NoError(t, made.Err)
			a := udfAssignment("count.sh", map[string]any{"args": []string{"inputs"},
				"params": map[string]any{"unit": "files"}})
			a.Inputs = []operators.AssignedInput{input("given", given, made.Written[0])}
			out := w.Runner.Run(t.Context(), a, nil)
			require.NoError(t, out.Err, log)
			require.Equal(t, [][]any{{int64(1)}}, w.rows(t, a, out.Written[0]))
			require.JSONEq(t, `{"who": "me"}`, string(out.Result.Result))
			require.JSONEq(t, `7`, string(out.State))
			require.Contains(t, log.String(), `msg="looking at inputs"`)
		})
	}
}

func TestUDFsReadTheirInputsInAFormat(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"csv": "a\n2\n", "ndjson": `{"a":2}` + "\n"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			if !confines(t) {
				return
			}
			code := map[string]string{"run.sh": `grep -q '"files":\["[^"]*/inputs/given/0.` + format + `"\]' || exit 64
printf '{"unchanged": true, "result": "%s"}' "$(base64 -w0 inputs/given/0.` + format + `)"`}
			w, log := udfWorld(t, operators.UDFOptions{}, code)
			made := assignment("command", map[string]any{"argv": []string{"sh", "-c",
				`dir=$(sed 's/.*"dir":"\([^"]*\)".*/\1/'); printf 'a\n1\n2\n' > "$dir/out.csv"`}})
			given := w.mustRun(t, made)

			a := udfAssignment("run.sh", map[string]any{"input_format": format})
			a.Inputs = []operators.AssignedInput{input("given", made, given.Written[0])}
			a.Inputs[0].Where = []dag.Condition{{Column: "a", Values: []any{2}}}
			out := w.Runner.Run(t.Context(), a, nil)
			require.NoError(t, out.Err, log)
			var text []byte
			require.NoError(t, json.Unmarshal(out.Result.Result, &text))
			require.Equal(t, want, string(text))
		})
	}
}

func TestUDFsFailPlainly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script    string
		config    map[string]any
		want      string
		retryable bool
	}{
		"by themselves": {"echo oh no >&2; exit 1", nil, "oh no", true},
		"for good":      {"exit 65", nil, "exit code 65", false},
		"for memory": {"x=$(head -c 200000000 /dev/zero | tr '\\0' x); sleep 5",
			map[string]any{"memory_mb": 32}, "32 MiB of memory", false},
		"for asking much":     {"exit 0", map[string]any{"memory_mb": 65536}, "this worker allows 4096 at most", false},
		"for what they wrote": {"echo 'no json' > outputs/out/x.ndjson", nil, `output "out"`, false},
		"for a link away":     {"rmdir outputs/out; ln -s /etc outputs/out", nil, "was removed or replaced", false},
		"for no network":      {"cat < /dev/tcp/127.0.0.1/80", nil, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !confines(t) {
				return
			}
			w, log := udfWorld(t, operators.UDFOptions{}, map[string]string{"run.sh": c.script})
			out := w.Runner.Run(t.Context(), udfAssignment("run.sh", c.config), nil)
			require.ErrorContains(t, out.Err, c.want, log)
			require.Equal(t, c.retryable, out.Retryable)
		})
	}

	w, _ := udfWorld(t, operators.UDFOptions{}, nil)
	w.Runner.Carrier = nil
	out := w.Runner.Run(t.Context(), udfAssignment("run.sh", nil), nil)
	require.ErrorContains(t, out.Err, "cannot run here")
	require.False(t, out.Retryable)
}

// Links that untrusted code leaves among its files lead nowhere.
func TestUDFsCannotHandOverOtherFiles(t *testing.T) {
	t.Parallel()
	if !confines(t) {
		return
	}
	w, log := udfWorld(t, operators.UDFOptions{}, map[string]string{"run.sh": `ln -s /etc/passwd outputs/out/a.csv
ln -s ../../../../../../../../etc/passwd outputs/out/b.ndjson
printf 'a\n1\n' > outputs/out/c.csv`})
	a := udfAssignment("run.sh", nil)
	out := w.Runner.Run(t.Context(), a, nil)
	require.NoError(t, out.Err, log)
	require.Equal(t, [][]any{{int64(1)}}, w.rows(t, a, out.Written[0]))
}

// hadColumns are the columns that every output had last.
type hadColumns []storage.Column

func (c hadColumns) Standing(context.Context, int, string) ([]storage.Column, error) { return c, nil }
func (c hadColumns) Columns(context.Context, int) ([]storage.Column, error)          { return c, nil }
func (c hadColumns) RowsHash(context.Context, int, string) (string, error)           { return "", nil }
func (c hadColumns) Stays(context.Context, int) (bool, error)                        { return false, nil }

// A UDF that writes no row empties its partition: what it hands over has the columns that the output had last.
func TestUDFsWithoutRowsHandOverAnEmptyPartition(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"no file":              "exit 0",
		"a line of names":      "echo n > outputs/out/n.csv",
		"an empty ndjson file": ": > outputs/out/n.ndjson",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !confines(t) {
				return
			}
			w, log := udfWorld(t, operators.UDFOptions{}, map[string]string{"run.sh": script})
			a := udfAssignment("run.sh", nil)
			a.NoRows = hadColumns{{Name: "n", Type: "BIGINT"}}
			out := w.Runner.Run(t.Context(), a, nil)
			require.NoError(t, out.Err, log)
			require.False(t, out.Unchanged)
			require.Len(t, out.Written, 1)
			require.Zero(t, out.Written[0].Manifest.Rows)
			require.Equal(t, []storage.Column{{Name: "n", Type: "BIGINT"}}, out.Written[0].Manifest.Schema)
			require.Empty(t, w.rows(t, a, out.Written[0]))
		})
	}
}
