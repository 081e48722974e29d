package parquetcompact

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/footer"
	"github.com/dagctl/dagctl/operators"
)

// filled returns a task whose input has files with so many rows each.
func filled(t testing.TB, column string, sizes ...int) *operators.Task {
	t.Helper()
	source := &operators.Task{Assignment: operators.Assignment{Outputs: []operators.AssignedOutput{{Name: "out"}}},
		OutputDirs: []string{t.TempDir()}, Scratch: t.TempDir(), Progress: func(int, string) {}}
	t.Cleanup(source.Use(enginetest.Engines()))
	var files []string
	next := 0
	for i, size := range sizes {
		name := fmt.Sprintf("in%d.parquet", i)
		_, _, err := source.Select(t.Context(), fmt.Sprintf("SELECT %d + n AS %s, md5((n // 7)::VARCHAR) AS m "+
			"FROM range(%d) AS r(n) ORDER BY n", next, column, size), 0, name)
		require.NoError(t, err)
		next += size
		files = append(files, source.OutputDirs[0]+"/"+name)
	}
	return &operators.Task{Assignment: operators.Assignment{Outputs: source.Outputs,
		Inputs: []operators.AssignedInput{{As: "in"}}}, InputFiles: [][]string{files},
		OutputDirs: []string{t.TempDir()}, Scratch: t.TempDir(), Progress: func(int, string) {}}
}

// compact runs the operator, which itself compares what it wrote with what it read, and returns the rows of its files.
func compact(t testing.TB, task *operators.Task, targetBytes int64) (sizes []int64) {
	t.Helper()
	task.OutputDirs = []string{t.TempDir()}
	defer task.Use(enginetest.Engines())()
	task.Config = dag.Config{"target_bytes": targetBytes}
	result, err := operator{}.Run(t.Context(), task)
	require.NoError(t, err)
	var done compacted
	require.NoError(t, json.Unmarshal(result.Result, &done))
	for n := range done.FilesWritten {
		have, err := footer.Read(fmt.Sprintf("%s/part-%05d.parquet", task.OutputDirs[0], n))
		require.NoError(t, err)
		sizes = append(sizes, have.Rows)
	}
	return sizes
}

// Files of random sizes, some without rows, become files of equal ones, wherever they are cut.
func TestManyFiles(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 5))
	sizes, total := []int{0, 9000, 0}, int64(9000)
	for range 12 {
		size := random.IntN(900) * random.IntN(2)
		sizes, total = append(sizes, size), total+int64(size)
	}
	for _, column := range []string{"n", "File_Row_Number"} {
		written := compact(t, filled(t, column, sizes...), 10_000)
		require.Greater(t, len(written), 3)
		sum := int64(0)
		for _, rows := range written[:len(written)-1] {
			require.Equal(t, written[0], rows)
			sum += rows
		}
		require.Equal(t, total, sum+written[len(written)-1])
	}
	require.Equal(t, []int64{0}, compact(t, filled(t, "n", 0, 0), 20_000))
}

// BenchmarkCompact makes 20 files of 200 small ones, and 20 of one large one.
func BenchmarkCompact(b *testing.B) {
	small := make([]int, 200)
	for i := range small {
		small[i] = 10_000
	}
	for name, sizes := range map[string][]int{"200 files": small, "one file": {2_000_000}} {
		b.Run(name, func(b *testing.B) {
			task := filled(b, "n", sizes...)
			bytes, err := sizeOf(task.InputFiles[0])
			require.NoError(b, err)
			for b.Loop() {
				require.Len(b, compact(b, task, (bytes+19)/20), 20)
			}
		})
	}
}
