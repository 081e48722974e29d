package integritycheck

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/operatortest"
	"github.com/dagctl/dagctl/storage"
)

func TestIntegrityCheckConforms(t *testing.T) {
	t.Parallel()
	op, err := New(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	row := func(kind, place, expected, found string) string {
		return "'kind': " + kind + ", 'place': " + place + ", 'expected': " + expected + ", 'found': " + found
	}
	// Of rows in Postgres, so that there are no files to compare; see TestFilesAndTheCatalogue for those.
	check := func(name, rows string, config map[string]any, want ...string) operatortest.Case {
		config["on_findings"] = "warn"
		return operatortest.Case{Name: name, Config: config,
			Want: map[string][]string{"out": append([]string{}, want...)},
			Inputs: []operatortest.Input{{As: "in", Kind: storage.Postgres,
				Query: "SELECT * FROM (VALUES " + rows + ")"}}}
	}
	fails := check("findings fail", "(1), (1)", map[string]any{"unique": []string{"col0"}})
	fails.Config["on_findings"], fails.Want = "fail", nil
	fails.Fails, fails.Permanent = "1 findings, the first: unique: col0 1: expected 1 row, found 2 rows", true
	lacks := check("no such column", "(1)", map[string]any{"unique": []string{"x"}})
	lacks.Fails, lacks.Permanent, lacks.Want = `no column "x"`, true, nil
	texts := check("no whole numbers", "(0.5)", map[string]any{"sequence": "col0"})
	texts.Fails, texts.Permanent, texts.Want = "no whole numbers", true, nil
	empty := check("no rows", "(1)",
		map[string]any{"unique": []string{"col0"}, "sequence": "col0", "monotonic": "col0"})
	empty.Inputs[0].Empty = true

	operatortest.Run(t, op, fails, lacks, texts, empty,
		check("nothing is asked", "(1), (1)", map[string]any{}),
		check("unique", "(1, 'a'), (1, 'b'), (2, NULL), (2, NULL), (1, 'a'), (1, 'a')",
			map[string]any{"unique": []string{"col0", "col1"}},
			row("unique", "'col0 1, col1 a'", "1 row", "3 rows"),
			row("unique", "'col0 2, col1 NULL'", "1 row", "2 rows")),
		check("unique and sound", "(1, 'a'), (1, 'b')", map[string]any{"unique": []string{"col0", "col1"}}),
		check("monotonic", "(1), (1), (3), (2), (5), (4)", map[string]any{"monotonic": "col0"},
			row("monotonic", "row 4", "at least 3", "2"), row("monotonic", "row 6", "at least 5", "4")),
		check("sequence", "(5), (3), (4), (7), (7), (NULL)", map[string]any{"sequence": "COL0"},
			row("sequence", "'NULL'", "a number", "'NULL'"), row("sequence", "after 5", "6", "7"),
			row("sequence", "after 7", "8", "7")),
		check("a sound sequence", "(5), (3), (4)", map[string]any{"sequence": "col0"}),
		check("ranges", "(10, 20), (0, 10), (15, 18), (25, 30), (40, 40)",
			map[string]any{"start_column": "col0", "end_column": "col1"},
			row("ranges", "range 15-18", "start 20", "an overlap"), row("ranges", "range 25-30", "start 20", "a gap"),
			row("ranges", "range 40-40", "start < end", "none")),
		check("sound ranges", "(10, 20), (0, 10), (20, 21)",
			map[string]any{"start_column": "col0", "end_column": "col1"}),
		operatortest.Case{Name: "half a range", Config: map[string]any{"start_column": "a"},
			Refused: "need each other"},
		operatortest.Case{Name: "an unknown field", Config: map[string]any{"uniqe": "a"}, Refused: "uniqe"},
	)
}

func TestIntegrityCheckRefusesJobs(t *testing.T) {
	t.Parallel()
	check := func(j *dag.Job) *dag.ConfigError { return operator{}.Spec().CheckJob(j) }
	require.Nil(t, check(&dag.Job{Outputs: []string{"out"}, Inputs: make([]dag.Input, 1)}))
	require.Contains(t, check(&dag.Job{Inputs: make([]dag.Input, 1)}).Message, "one output")
	require.Contains(t, check(&dag.Job{Outputs: []string{"out"}, Inputs: make([]dag.Input, 1),
		UpdateStrategy: dag.Append}).Message, "append")
}

// What storage has is compared with what the catalogue says, file by file.
func TestFilesAndTheCatalogue(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	task := &operators.Task{Assignment: operators.Assignment{Outputs: []operators.AssignedOutput{{Name: "out"}}},
		OutputDirs: []string{dir}, Scratch: t.TempDir(), Progress: func(int, string) {}}
	t.Cleanup(task.Use(enginetest.Engines()))
	_, _, err := task.Select(t.Context(), "SELECT 1 AS n", 0, "a.parquet")
	require.NoError(t, err)
	file := filepath.Join(dir, "a.parquet")
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	sum := sha256.Sum256(content)
	known := storage.File{Path: "x/a.parquet", Bytes: int64(len(content)), Rows: 1, SHA256: hex.EncodeToString(sum[:])}

	found := func(f storage.File) []finding {
		t.Helper()
		task.Inputs = []operators.AssignedInput{{As: "in", Partitions: []storage.Partition{{Key: "k", Revision: 3,
			Files: []storage.File{f}}}}}
		task.InputFiles = [][]string{{file}}
		all, compared, err := filesOf(t.Context(), task)
		require.NoError(t, err)
		require.Equal(t, 1, compared)
		return all
	}
	require.Empty(t, found(known))
	other := known
	other.Rows, other.SHA256 = 2, "abc"
	require.Equal(t, []finding{{"rows", "partition k, revision 3, a.parquet", "2", "1"},
		{"sha256", "partition k, revision 3, a.parquet", "abc", known.SHA256}}, found(other))

	require.NoError(t, os.WriteFile(file, content[:len(content)-1], 0o600))
	require.Len(t, found(known), 3)
	task.Inputs[0].Partitions[0].Files = nil
	_, _, err = filesOf(t.Context(), task)
	require.ErrorContains(t, err, "is not known here")
}
