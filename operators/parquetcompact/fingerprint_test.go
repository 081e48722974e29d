package parquetcompact

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
)

// What is not the input's rows in their order is not published.
func TestOtherRowsAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	task := &operators.Task{Assignment: operators.Assignment{Outputs: []operators.AssignedOutput{{Name: "out"}}},
		OutputDirs: []string{dir}, Scratch: t.TempDir(), Progress: func(int, string) {}}
	t.Cleanup(task.Use(enginetest.Engines()))
	write := func(file, query string) string {
		t.Helper()
		_, _, err := task.Select(t.Context(), query, 0, file)
		require.NoError(t, err)
		return filepath.Join(dir, file)
	}
	rows := "SELECT n, n % 3 AS m, CASE WHEN n % 2 = 0 THEN 'x' END AS text FROM range(5000) AS r(n)"
	all := write("all.parquet", rows+" ORDER BY n")
	head, tail := write("head.parquet", rows+" WHERE n < 10 ORDER BY n"), write("tail.parquet", rows+
		" WHERE n >= 10 ORDER BY n")
	first := write("first.parquet", rows+" WHERE n = 0")
	swapped := write("swapped.parquet", "SELECT n, m, text FROM ("+rows+
		") ORDER BY CASE n WHEN 7 THEN 8 WHEN 8 THEN 7 ELSE n END")
	other := write("other.parquet", "SELECT n, m, CASE n WHEN 4999 THEN 'y' ELSE text END AS text FROM ("+rows+
		") ORDER BY n")
	columns := write("columns.parquet", "SELECT n, m AS k, text FROM ("+rows+") ORDER BY n")

	task.Inputs, task.InputFiles = []operators.AssignedInput{{As: "in"}}, [][]string{{all}}
	want, err := fingerprintOf(t.Context(), task, "in")
	require.NoError(t, err)
	require.Equal(t, int64(5000), want.rows)
	_, kept, err := task.Rows(t.Context(), 0)
	require.NoError(t, err)
	require.NoError(t, same(t.Context(), task, want, kept, []string{all}))
	require.NoError(t, same(t.Context(), task, want, kept, []string{head, tail}))

	for name, files := range map[string][]string{"lost": {tail}, "doubled": {first, all},
		"the other way round": {tail, head},
		"two swapped":         {swapped}, "another value": {other}} {
		require.ErrorContains(t, same(t.Context(), task, want, kept, files), "what was written has", name)
	}
	require.ErrorContains(t, same(t.Context(), task, want, kept, []string{columns}), "has the columns")
}
