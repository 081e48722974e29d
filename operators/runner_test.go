package operators_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
)

// world is a runner on real storage.
type world struct {
	*operators.Runner
	scratch string
}

func newWorld(t *testing.T, ops ...operators.Operator) world {
	t.Helper()
	registry, err := operators.Builtin(operators.Options{Engines: enginetest.Engines(),
		Threads: 1, Command: anyProgram})
	if ops != nil {
		registry, err = operators.NewRegistry(enginetest.Engines(), ops...)
	}
	require.NoError(t, err)
	st, err := storage.New(storage.Config{Root: t.TempDir(), Rows: enginetest.Engines()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	scratch := t.TempDir()
	return world{&operators.Runner{Registry: registry, Storage: st, ScratchDir: scratch,
		Log: slog.New(slog.DiscardHandler)}, scratch}
}

func generation() storage.Generation {
	return storage.Generation{OrgID: uuid.New(), OrgSlug: "acme", Dataset: uuid.New(), Version: uuid.New(),
		Kind: storage.Parquet}
}

func assignment(operator string, config map[string]any) operators.Assignment {
	return operators.Assignment{
		TaskID: uuid.New(), Attempt: 1, OrgSlug: "acme", DAG: "d", Job: "j", Operator: operator,
		OperatorVersion: "1.0.0", Config: config,
		Outputs: []operators.AssignedOutput{{Index: 0, Name: "out", Generation: generation(),
			UpdateStrategy: dag.Replace}},
	}
}

// input returns the output of a run as the input of another.
func input(as string, a operators.Assignment, written operators.Written) operators.AssignedInput {
	return operators.AssignedInput{
		As: as, Generation: a.Outputs[written.Output].Generation, Schema: written.Manifest.Schema,
		Partitions: []storage.Partition{{Key: written.Partition, Revision: 1, Files: written.Manifest.Files}},
	}
}

func (w world) rows(t *testing.T, a operators.Assignment, written operators.Written) [][]any {
	t.Helper()
	in := input("x", a, written)
	_, rows, err := w.Storage.Preview(t.Context(), in.Generation, in.Partitions, 1000, 0)
	require.NoError(t, err)
	return rows
}

func (w world) run(t *testing.T, a operators.Assignment) operators.Outcome {
	t.Helper()
	out := w.Run(t.Context(), a, nil)
	left, err := os.ReadDir(w.scratch)
	require.NoError(t, err)
	require.Empty(t, left, "the scratch folder is removed")
	return out
}

func (w world) mustRun(t *testing.T, a operators.Assignment) operators.Outcome {
	t.Helper()
	out := w.run(t, a)
	require.NoError(t, out.Err)
	for _, written := range out.Written {
		require.NoError(t, w.Storage.Verify(t.Context(), written.Manifest))
	}
	return out
}

func TestFileToSQL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "2024-01-31.csv"), []byte("iata,delay\nSFO,10\nSFO,20\nLAX,\n"),
		0o600))

	source := assignment("file_source", map[string]any{"path": ".", "pattern": "{date}.csv", "format": "csv"})
	source.Roots = []string{root}
	source.PartitionBy = dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day}
	op, _ := w.Registry.Get("file_source")
	units, err := op.(operators.Enumerator).Enumerate(t.Context(), operators.Enumeration{
		Config: source.Config, PartitionBy: source.PartitionBy, Roots: source.Roots, Now: time.Now(),
	})
	require.NoError(t, err)
	require.Len(t, units, 1)
	require.Equal(t, "2024-01-31", units[0].Partition)

	start, end := time.Date(2024, 1, 31, 0, 0, 0, 0, time.UTC), time.Date(2024, 2, 1, 0, 0, 0, 0, time.UTC)
	source.Payload = units[0].Payload
	source.Partition = &operators.PartitionRange{Key: "2024-01-31", Start: &start, End: &end}
	read := w.mustRun(t, source)
	require.Equal(t, units[0].Version, read.SourceVersion)
	require.Len(t, read.Written, 1)
	require.Equal(t, int64(3), read.Written[0].Manifest.Rows)
	require.Equal(t, []storage.Column{{Name: "iata", Type: "VARCHAR"}, {Name: "delay", Type: "BIGINT"}},
		read.Written[0].Manifest.Schema)

	query := assignment("sql", map[string]any{"query": `
		SELECT iata, avg(delay) AS delay, getvariable('partition') AS day, getvariable('start') AS starts
		FROM flights GROUP BY iata ORDER BY iata; -- the end`})
	query.Partition = source.Partition
	query.Inputs = []operators.AssignedInput{input("flights", source, read.Written[0])}
	result := w.mustRun(t, query)
	require.Equal(t, [][]any{
		{"LAX", nil, "2024-01-31", "2024-01-31 00:00:00+00"},
		{"SFO", int64(15), "2024-01-31", "2024-01-31 00:00:00+00"},
	}, w.rows(t, query, result.Written[0]))

	require.Equal(t, []operators.ColumnOrigin{
		{OutputColumn: "iata", InputColumn: "iata", Transform: "identity"},
		{OutputColumn: "delay", InputColumn: "delay", Transform: "aggregate"},
	}, result.Columns)
}

// broken is an operator that fails as its config says.
type broken struct {
	run func(context.Context, *operators.Task) (operators.Result, error)
}

func (broken) Spec() dag.OperatorSpec { return dag.OperatorSpec{Name: "broken", Version: "1.0.0"} }

func (b broken) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	return b.run(ctx, t)
}

func TestRunnerFailures(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		run       func(context.Context, *operators.Task) (operators.Result, error)
		message   string
		retryable bool
	}{
		"panic": {func(context.Context, *operators.Task) (operators.Result, error) {
			panic("boom")
		}, "operator broken panicked: boom", false},
		"error": {func(context.Context, *operators.Task) (operators.Result, error) {
			return operators.Result{}, boom
		}, "boom", true},
		"permanent error": {func(context.Context, *operators.Task) (operators.Result, error) {
			return operators.Result{}, operators.Permanent(boom)
		}, "boom", false},
		"not Parquet": {func(_ context.Context, t *operators.Task) (operators.Result, error) {
			return operators.Result{}, os.WriteFile(filepath.Join(t.OutputDirs[0], "x.parquet"), []byte("no"), 0o600)
		}, `output "out": x.parquet cannot be read as Parquet`, false},
		"a link": {func(_ context.Context, t *operators.Task) (operators.Result, error) {
			return operators.Result{}, os.Symlink("/etc/hostname", filepath.Join(t.OutputDirs[0], "x.parquet"))
		}, `output "out": x.parquet is not a regular file`, false},
		"result too large": {func(context.Context, *operators.Task) (operators.Result, error) {
			return operators.Result{Result: make([]byte, 70_000)}, nil
		}, "the result has 70000 bytes; 65536 are allowed", false},
		"many values": {func(context.Context, *operators.Task) (operators.Result, error) {
			return operators.Result{Result: []byte("[" + strings.Repeat("1,", 20_000) + "1]")}, nil
		}, "the result takes 240020 bytes in the database; 65536 are allowed", false},
		"a deep state": {func(context.Context, *operators.Task) (operators.Result, error) {
			return operators.Result{State: []byte(strings.Repeat("[", 501) + strings.Repeat("]", 501))}, nil
		}, "the run's result: is nested too deeply", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := newWorld(t, broken{test.run}).run(t, assignment("broken", nil))
			require.ErrorContains(t, out.Err, test.message)
			require.Equal(t, test.retryable, out.Retryable)
			require.Empty(t, out.Written)
		})
	}
}

func TestSliceOfACursorInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	blocks := assignment("sql", map[string]any{"query": "SELECT range AS height FROM range(100)"})
	written := w.mustRun(t, blocks).Written[0]
	a := assignment("sql", map[string]any{"query": "SELECT min(height) AS low, max(height) AS high FROM blocks"})
	a.PartitionBy = dag.Partitioning{Kind: dag.ByRange, Size: 10, Column: "height"}
	a.Partition = &operators.PartitionRange{Key: "20-30"}
	a.Inputs = []operators.AssignedInput{input("blocks", blocks, written)}
	a.Inputs[0].Map, a.Inputs[0].PartitionBy = dag.MapSlice, dag.Partitioning{Kind: dag.ByCursor, Column: "height"}
	require.Equal(t, [][]any{{int64(20), int64(29)}}, w.rows(t, a, w.mustRun(t, a).Written[0]))
}
