package dispatcher_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

// keyedDAG has jobs whose SQL asks for the partitions of the rows that it reads.
const keyedDAG = `
name: keyed
jobs:
  - name: sales
    operator: file_source
    source: { kind: poll, every: 1m }
    partition_by: { time: day }
    config: { path: ".", pattern: "{date}.csv", format: csv }
  - name: trend
    operator: sql
    inputs: [{ from: { job: sales }, map: { window: { last: 2 }, require: available } }]
    config:
      query: SELECT *, _partition AS day FROM sales
    checks:
      - { name: days, sql: "SELECT * FROM sales WHERE _partition > getvariable('partition')" }
      - { name: shown, sql: "SELECT day FROM output WHERE day NOT IN (SELECT _partition FROM sales)" }
  - name: months
    operator: sql
    inputs: [{ from: { job: sales }, map: { window: month, require: available } }]
    storage: postgres
    outputs: [best, all]
    config:
      queries:
        best: SELECT max_by(_partition, price) AS day FROM sales
        all: SELECT * FROM sales
  - name: after
    operator: sql
    inputs: [{ from: { job: months, output: best }, as: best }]
    config: { query: "SELECT day, _partition AS month FROM best" }
publish:
  trend: { from: { job: trend } }
  best: { from: { job: months, output: best } }
  whole: { from: { job: months, output: all } }
  after: { from: { job: after } }
`

func TestSQLFindsThePartitionsOfRows(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2026-03-01.csv", "id,price\n1,5\n2,9\n")
	w.Drop("2026-03-02.csv", "id,price\n3,7\n")
	w.Serve(keyedDAG)
	require.Equal(t, map[string][]string{"2026-03-01": {"1,5,2026-03-01", "2,9,2026-03-01"},
		"2026-03-02": {"1,5,2026-03-01", "2,9,2026-03-01", "3,7,2026-03-02"}, "2026-03-03": {"3,7,2026-03-02"}},
		w.Read("trend"))
	require.Equal(t, map[string][]string{"2026-03": {"2026-03-01"}}, w.Read("best"))
	require.Equal(t, map[string][]string{"2026-03": {"1,5", "2,9", "3,7"}}, w.Read("whole"))
	require.Equal(t, map[string][]string{"2026-03": {"2026-03-01,2026-03"}}, w.Read("after"))
	require.Empty(t, dispatchertest.Texts(t, w.Pool, `SELECT state FROM partition_versions WHERE state = 'Rejected'`))

	// A change of what is read by column rebuilds the jobs that ask for partitions.
	for _, c := range w.Plan(dispatchertest.Edit(keyedDAG, "{date}.csv\", format: csv",
		"{date}.csv\", format: csv, types: { price: DOUBLE }")).Changes {
		require.Equal(t, "rebuild", c.Action, c.Job)
	}
}
