package sources_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/registry"
)

// slicing is a DAG with a source of ranges, and a job that reads, for each range, a cursor's rows in it.
const slicing = `
name: slicing
jobs:
  - name: chain
    operator: hook
    source: { kind: poll, every: 1h }
    partition_by: { cursor: height }
    config: { tag: c }
  - name: asked
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { range: 10, column: height }
    config: { list: asked }
  - name: sliced
    operator: sql
    inputs:
      - { from: { job: asked } }
      - { from: { job: chain }, map: slice }
    config: { query: "SELECT min(height) AS low, max(height) AS high, count(*) AS n FROM chain" }
publish:
  sliced: { from: { job: sliced } }
`

func TestSlicesOfACursor(t *testing.T) {
	t.Parallel()
	w, l := dispatchertest.NewWorld(t), &dispatchertest.Ledger{Blocks: "abcdefgh"}
	w.Probe.On("chain", l.Read)
	w.Probe.Put("asked", "0-10", "x")
	w.Serve(slicing)
	require.Empty(t, w.Read("sliced"), "the cursor has not come to the end of the range")
	target := func(key string) string {
		t.Helper()
		why, err := json.Marshal(w.WhyNot("sliced", key))
		require.NoError(t, err)
		return string(why)
	}
	require.Contains(t, target("0-10"), "slicing/chain has come to 7, and 9 is needed")

	grow := func(blocks string) {
		t.Helper()
		l.Set(blocks)
		w.Poll()
		w.Settle()
	}
	grow("abcdefghij")
	require.Equal(t, map[string][]string{"0-10": {"0,9,10"}}, w.Read("sliced"),
		"the segment that completes the range has it made")
	grow("abcdefghijklm")
	require.Equal(t, 1, w.Attempts("sliced"), "a slice triggers nothing")

	w.Probe.Put("asked", "10-20", "x")
	w.Probe.Put("asked", "20-30", "x")
	grow("abcdefghijklmnopq")
	require.Contains(t, target("10-20"), "has come to 16, and 19 is needed")
	require.Contains(t, target("20-30"), "has no rows from 20 on")
	grow("abcdefghijklmnopqrstuvwxyz")
	require.Equal(t, map[string][]string{"0-10": {"0,9,10"}, "10-20": {"10,19,10"}}, w.Read("sliced"))
	w.Probe.Put("asked", "0-10", "y")
	w.Poll()
	w.Settle()
	require.Equal(t, 3, w.Attempts("sliced"), "what triggers has changed")

	// A plan counts only partitions that are computed, which excludes a range whose end the cursor has not reached.
	changed := dispatchertest.Edit(slicing, "count(*) AS n", "count(*) + 1 AS n")
	plan, err := w.D.Views.Plan(t.Context(), w.Caller, "slicing", registry.DeployRequest{YAML: changed})
	require.NoError(t, err)
	require.Equal(t, 2, *plan.Changes[2].Partitions)
	w.Serve(changed)
	require.Equal(t, map[string][]string{"0-10": {"0,9,11"}, "10-20": {"10,19,11"}}, w.Read("sliced"))

	// Each range reads only its part of a segment that is far wider.
	w.Probe.Put("asked", "30-40", "x")
	long := make([]byte, 50)
	for i := range long {
		long[i] = 'z'
	}
	grow(string(long))
	require.Equal(t, []string{"30,39,11"}, w.Read("sliced")["30-40"])
	require.Equal(t, []string{"20,29,11"}, w.Read("sliced")["20-30"])
}
