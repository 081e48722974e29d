package operators_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
)

// BenchmarkSQL runs one query over three million rows, in DuckDB alone and as a task: the difference is what the
// platform costs.
func BenchmarkSQL(b *testing.B) {
	const query = "SELECT k, count(*) AS n, avg(v) AS mean FROM facts GROUP BY k ORDER BY k"
	dir := b.TempDir()
	file := filepath.Join(dir, "facts.parquet")
	session, err := duck.Open(b.Context(), duck.Config{AnyPath: true})
	require.NoError(b, err)
	defer session.Close()

	_, err = session.CopyToParquet(b.Context(), "SELECT hash(range) % 100000 AS k, sqrt(range) AS v FROM "+
		"range(3000000)", file)
	require.NoError(b, err)

	b.Run("DuckDB alone", func(b *testing.B) {
		for b.Loop() {
			alone, err := duck.Open(b.Context(), duck.Config{AnyPath: true})
			require.NoError(b, err)
			require.NoError(b, alone.Create(b.Context(), duck.Relation{Name: "facts", Files: []string{file}}))
			_, err = alone.CopyToParquet(b.Context(), query, filepath.Join(dir, "out.parquet"))
			require.NoError(b, err)
			require.NoError(b, alone.Close())
		}
	})

	b.Run("task", func(b *testing.B) {
		registry, err := operators.Builtin(operators.Options{Engines: enginetest.Engines()})
		require.NoError(b, err)
		st, err := storage.New(storage.Config{Root: filepath.Join(dir, "root")})
		require.NoError(b, err)
		defer st.Close()

		r := operators.Runner{Registry: registry, Storage: st, ScratchDir: dir}
		a := assignment("sql", map[string]any{"query": "SELECT 1 AS x"})
		source := storage.Attempt{Generation: generation(), Partition: "all", Task: a.TaskID, Number: 1}
		m, err := st.Seal(b.Context(), source, []string{file})
		require.NoError(b, err)

		a.Inputs = []operators.AssignedInput{{As: "facts", Generation: source.Generation,
			Partitions: []storage.Partition{{Key: "all", Revision: 1, Files: m.Files}}}}
		a.Config["query"] = query
		for b.Loop() {
			a.Attempt++
			require.NoError(b, r.Run(b.Context(), a, nil).Err)
		}
	})
}
