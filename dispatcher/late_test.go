package dispatcher

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/registry"
)

func TestADatasetIsLateUntilItsPartitionIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(`name: lists
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: raw }
publish: { raw: { from: { job: raw }, due: { within: 1s } } }
`)
	late := func() *registry.Late {
		one, err := w.d.Registry.Dataset(t.Context(), w.caller, "raw")
		require.NoError(t, err)
		all, err := w.d.Registry.Datasets(t.Context(), w.caller, registry.DatasetFilter{Limit: 10})
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Equal(t, one.Late, all[0].Late)
		only, err := w.d.Registry.Datasets(t.Context(), w.caller, registry.DatasetFilter{Late: true, Limit: 10})
		require.NoError(t, err)
		require.Equal(t, one.Late != nil, len(only) == 1)
		return one.Late
	}
	missing := late()
	require.NotNil(t, missing)
	day, err := time.Parse(time.DateOnly, missing.Partition)
	require.NoError(t, err)
	require.Equal(t, day.Add(24*time.Hour+time.Second), missing.DueAt)
	// Midnight may pass meanwhile: the day after is there as well.
	w.probe.put("raw", missing.Partition, "b")
	w.probe.put("raw", day.Add(24*time.Hour).Format(time.DateOnly), "c")
	w.poll()
	w.settle()
	require.Nil(t, late())
}
