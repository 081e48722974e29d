package dispatcher_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

// arrivals has uploads whose numbers make tens, which are appended, and two tables that are made of those. The second
// is split by days.
const arrivals = `
name: arrivals
jobs:
  - name: uploads
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: key
    config: { path: ".", pattern: "{key}.csv", format: csv, types: { range_start: BIGINT, range_end: BIGINT } }
  - name: tens
    operator: range_aggregator
    inputs: [{ from: { job: uploads } }]
    execution_strategy: PerUpdate
    partition_by: none
    update_strategy: append
    unique_key: [range_start]
    config: { size: 10 }
  - name: whole
    operator: sql
    inputs: [{ from: { job: tens } }]
    config: { query: "SELECT * FROM tens" }
  - name: days
    operator: sql
    inputs: [{ from: { job: tens } }]
    partition_by: { time: day, column: day }
    config: { query: "SELECT range_start, DATE '2026-01-01' + (range_start // 10)::INTEGER AS day FROM tens" }
publish:
  whole: { from: { job: whole } }
`

// A file that is listed again is the same one; under another name it is another one. What is appended and computed then
// is a new revision with the same rows, but for a split, which keeps its partitions.
func TestWhatComesTwice(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", "range_start,range_end\n0,7\n")
	w.Serve(arrivals)
	drop := func(name, content string) {
		t.Helper()
		w.Drop(name, content)
		w.Poll()
		w.Settle()
		require.Equal(t, []string{"0,10"}, w.Read("whole")["all"])
	}
	drop("b.csv", "range_start,range_end\n7,10\n")
	tasks, revision := len(w.Tasks("whole")), w.Published("tens")["all"]
	days := w.Published("days")

	drop("b.csv", "range_start,range_end\n7,10\n")
	require.Equal(t, []string{"a Completed", "b Completed"}, w.Tasks("uploads"))
	require.Len(t, w.Tasks("whole"), tasks)

	drop("c.csv", "range_start,range_end\n7,10\n")
	require.Equal(t, []string{"a Completed", "b Completed", "c Completed"}, w.Tasks("uploads"))
	require.Equal(t, revision+1, w.Published("tens")["all"], "it says that c is in it")
	require.Len(t, w.Tasks("whole"), tasks+1)
	require.Len(t, w.Tasks("days"), tasks+1)
	require.Equal(t, days, w.Published("days"))
}
