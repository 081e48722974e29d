package proof_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
	"github.com/dagctl/dagctl/storage"
)

// BenchmarkSQLTask runs a small query in turn in a session of DuckDB that is open, and as a task in an engine of its
// job that runs: from the pinned input to the sealed output. It reports the median of each, and of what the task takes
// beside its query.
func BenchmarkSQLTask(b *testing.B) {
	const query = "SELECT k, count(*) AS n, avg(v) AS mean FROM facts GROUP BY k ORDER BY k"
	dir, ctx := b.TempDir(), b.Context()
	session, err := duck.Open(ctx, duck.Config{AnyPath: true, Threads: 1})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, session.Close()) })
	file := filepath.Join(dir, "facts.parquet")
	_, err = session.CopyToParquet(ctx, "SELECT hash(range) % 300 AS k, sqrt(range) AS v FROM range(16000)", file)
	require.NoError(b, err)

	builtin, err := standard.New(operators.Options{Engines: engines(b), Threads: 1})
	require.NoError(b, err)
	st, err := storage.New(storage.Config{Root: filepath.Join(dir, "root")})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, st.Close()) })
	runner := operators.Runner{Registry: builtin, Storage: st, ScratchDir: dir}

	g := storage.Generation{OrgID: uuid.New(), OrgSlug: "acme", Dataset: uuid.New(), Version: uuid.New(),
		Kind: storage.Parquet}
	facts, err := st.Seal(ctx, storage.Attempt{Generation: g, Partition: "all", Task: uuid.New(), Number: 1},
		[]string{file})
	require.NoError(b, err)
	input := operators.AssignedInput{As: "facts", Generation: g, Schema: facts.Schema,
		Partitions: []storage.Partition{{Key: "all", Revision: 1, Files: facts.Files}}}
	output := operators.AssignedOutput{Name: "means", UpdateStrategy: dag.Replace, Generation: g}

	var alone, task, beside []time.Duration
	for i := 0; b.Loop(); i++ {
		relation := duck.Relation{Name: "facts", Files: []string{filepath.Join(dir, "root", facts.Files[0].Path)}}
		require.NoError(b, session.Create(ctx, relation))
		began := time.Now()
		_, err := session.CopyToParquet(ctx, query, filepath.Join(dir, fmt.Sprintf("alone%d.parquet", i)))
		alone = append(alone, time.Since(began))
		require.NoError(b, err)
		require.NoError(b, session.Drop(ctx, "facts"))

		began = time.Now()
		out := runner.Run(ctx, operators.Assignment{OrgID: g.OrgID, OrgSlug: g.OrgSlug, DAG: "d", Job: "means",
			Operator: "sql", TaskID: uuid.New(), Attempt: 1, Config: map[string]any{"query": query},
			Inputs: []operators.AssignedInput{input}, Outputs: []operators.AssignedOutput{output}}, nil)
		task = append(task, time.Since(began))
		require.NoError(b, out.Err)
		beside = append(beside, task[i]-alone[i])
	}

	for name, all := range map[string][]time.Duration{"query-ms": alone, "task-ms": task, "beside-ms": beside} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name)
	}
}
