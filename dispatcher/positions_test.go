package dispatcher_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/testgeth"
	"github.com/dagctl/dagctl/registry"
)

// positions returns "key start end" of each published partition of a dataset, as readers are told.
func positions(w *dispatchertest.World, name string, position int64) (found []string) {
	w.T.Helper()
	list, err := w.D.Registry.Partitions(w.T.Context(), w.Caller, name, registry.PartitionFilter{Position: position,
		Limit: 100})
	require.NoError(w.T, err)
	for _, p := range list {
		if p.RangeStart == nil {
			found = append(found, p.Key)
			continue
		}
		found = append(found, fmt.Sprintf("%s %d %d", p.Key, *p.RangeStart, *p.RangeEnd))
	}
	return found
}

// Partitions that are ranges, and segments of cursors, have their positions, half-open; others have none.
func TestPositionsOfPartitions(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	for _, key := range []string{"0-10", "10-20", "50-60"} {
		w.Probe.Put("parts", key, "x")
	}
	w.Serve(tiling + "  tiling_parts: { from: { job: parts } }\n")
	require.Equal(t, []string{"0-10 0 10", "10-20 10 20", "50-60 50 60"},
		positions(w, "tiling_parts", registry.AllPositions))
	require.Equal(t, []string{"all"}, positions(w, "tiling_big", registry.AllPositions))
	require.Equal(t, []string{"0-10 0 10", "10-20 10 20", "50-60 50 60"}, dispatchertest.Texts(t, w.Pool, `
		SELECT format('%s %s %s', partition_key, range_start, range_end) FROM partition_versions
		WHERE range_end IS NOT NULL ORDER BY range_end`))

	for position, want := range map[int64][]string{0: {"0-10 0 10"}, 9: {"0-10 0 10"}, 10: {"10-20 10 20"}, 20: nil,
		59: {"50-60 50 60"}, 60: nil, math.MaxInt64: nil} {
		require.Equal(t, want, positions(w, "tiling_parts", position), position)
	}
	_, err := w.D.Registry.Partitions(t.Context(), w.Caller, "tiling_big", registry.PartitionFilter{Position: 3,
		Limit: 9})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.ErrorContains(t, err, `dataset "tiling_big" has no partitions, and only ranges and segments of cursors have`)

	// Rows of before have no positions of their own. Their keys have them.
	w.Exec(`UPDATE partition_versions SET range_start = NULL, range_end = NULL`)
	require.Equal(t, []string{"10-20 10 20"}, positions(w, "tiling_parts", 15))
	versions, err := w.D.Registry.Generations(t.Context(), w.Caller, "tiling_parts")
	require.NoError(t, err)
	require.EqualValues(t, 0, *versions[0].FirstPosition)
	require.EqualValues(t, 60, *versions[0].EndPosition)
	require.Nil(t, versions[0].RangeStart, "the definition has no end")
	whole, err := w.D.Registry.Generations(t.Context(), w.Caller, "tiling_big")
	require.NoError(t, err)
	require.Nil(t, whole[0].FirstPosition)
}

func TestPositionsOfACursor(t *testing.T) {
	t.Parallel()
	w, l := chainWorld(t, "abc")
	l.Set("abcde")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"0-3 0 3", "3-5 3 5"}, positions(w, "chained_chain", registry.AllPositions))
	require.Equal(t, []string{"3-5 3 5"}, positions(w, "chained_chain", 3))
	require.Empty(t, positions(w, "chained_chain", 5))
	versions, err := w.D.Registry.Generations(t.Context(), w.Caller, "chained_chain")
	require.NoError(t, err)
	require.EqualValues(t, 5, *versions[0].EndPosition)
}

// A definition that reads a fixed range of blocks has it as its version's.
func TestTheRangeOfAVersion(t *testing.T) {
	t.Parallel()
	node := testgeth.Start(t)
	node.MineTo(12)
	w := dispatchertest.NewWorld(t)
	w.Serve(fmt.Sprintf(`
name: history
jobs:
  - name: blocks
    operator: evm_range_ingest
    source: { kind: poll, every: 1h }
    partition_by: { range: 4, column: block_number }
    config: { url: "%s", chain_id: 1337, start_block: 2, end_block: 10, confirmations: 0 }
publish: { old_blocks: { from: { job: blocks } } }
`, node.URL))
	require.Equal(t, []string{"2 10"}, dispatchertest.Texts(t, w.Pool,
		`SELECT format('%s %s', range_start, range_end) FROM dataset_versions`))
	versions, err := w.D.Registry.Generations(t.Context(), w.Caller, "old_blocks")
	require.NoError(t, err)
	require.EqualValues(t, 2, *versions[0].RangeStart)
	require.EqualValues(t, 10, *versions[0].RangeEnd)
	require.EqualValues(t, 12, *versions[0].EndPosition, "its last partition is 8-12")
	require.Equal(t, []string{"8-12 8 12"}, positions(w, "old_blocks", 9))
}
