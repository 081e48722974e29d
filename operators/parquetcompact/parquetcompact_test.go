package parquetcompact_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/operatortest"
	"github.com/dagctl/dagctl/operators/parquetcompact"
)

func TestParquetCompactConforms(t *testing.T) {
	t.Parallel()
	op, err := parquetcompact.New(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	compacts := func(name, query string, target, files int, rows ...string) operatortest.Case {
		c := operatortest.Case{Name: name, Config: map[string]any{"target_bytes": target},
			Inputs: []operatortest.Input{{As: "readings", Query: query}},
			Check: func(t *testing.T, r operators.Result) {
				t.Helper()
				var done struct {
					FilesRead    int `json:"files_read"`
					FilesWritten int `json:"files_written"`
				}
				require.NoError(t, json.Unmarshal(r.Result, &done))
				require.Equal(t, files, done.FilesWritten)
				require.LessOrEqual(t, done.FilesRead, 1)
			}}
		if rows != nil {
			c.Want = map[string][]string{"out": rows}
		}
		return c
	}
	where := compacts("where", "SELECT range AS n FROM range(5)", 1<<20, 1, "'n': 4", "'n': 1")
	where.Inputs[0].Query = "SELECT 4 - range AS n FROM range(5)"
	where.Inputs[0].Where = []dag.Condition{{Column: "n", Values: []any{"1", "4"}}}
	none := compacts("no rows", "SELECT 1 AS n", 1<<20, 1, []string{}...)
	none.Inputs[0].Empty, none.Want = true, map[string][]string{"out": {}}

	operatortest.Run(t, op,
		compacts("one file, in order", "SELECT * FROM (VALUES (3, 'c'), (1, NULL), (1, NULL)) AS v(n, text)", 1<<20, 1,
			"'n': 3, 'text': c", "'n': 1, 'text': NULL", "'n': 1, 'text': NULL"),
		compacts("types", "SELECT 0.1::DECIMAL(9,1) AS d, [1, NULL] AS l, {'a': 'nan'::DOUBLE, 'b': -0.0} AS s, "+
			"MAP {'k': DATE '2024-01-01'} AS m, INTERVAL '1 day' AS i, '\\xFF'::BLOB AS b, "+
			"TIMESTAMPTZ '2024-01-01 00:00:00+00' AS z", 1<<20, 1),
		compacts("several files", "SELECT range AS n, md5(range::VARCHAR) AS m FROM range(3000)", 20_000, 3),
		compacts("no more files than rows", "SELECT [md5((n * 1000 + x)::VARCHAR) FOR x IN range(500)] AS m "+
			"FROM range(3) AS r(n)", 1024, 3),
		where, none,
		operatortest.Case{Name: "too small", Config: map[string]any{"target_bytes": 1}, Refused: "target_bytes"},
		operatortest.Case{Name: "an unknown field", Config: map[string]any{"rows": 1}, Refused: "rows"},
	)
}

func TestParquetCompactRefusesJobs(t *testing.T) {
	t.Parallel()
	op, err := parquetcompact.New(operators.Options{})
	require.NoError(t, err)
	check := func(change func(*dag.Job)) *dag.ConfigError {
		j := &dag.Job{Outputs: []string{"out"}, Inputs: []dag.Input{{As: "in"}}}
		change(j)
		return op.Spec().CheckJob(j)
	}
	require.Nil(t, check(func(*dag.Job) {}))
	require.Contains(t, check(func(j *dag.Job) { j.Inputs = append(j.Inputs, dag.Input{}) }).Message, "one input")
	require.Contains(t, check(func(j *dag.Job) { j.UpdateStrategy = dag.Append }).Message, "append")
	require.Contains(t, check(func(j *dag.Job) { j.Storage = []dag.Storage{{Kind: "postgres"}} }).Message, "Parquet")
}
