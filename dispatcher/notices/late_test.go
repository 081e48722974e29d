package notices_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/registry"
)

func TestADatasetIsLateUntilItsPartitionIsThere(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(`name: lists
jobs:
` + dispatchertest.Raw + `publish: { raw: { from: { job: raw }, due: { within: 1s } } }
`)
	late := func() *registry.Late {
		one, err := w.D.Registry.Dataset(t.Context(), w.Caller, "raw")
		require.NoError(t, err)
		all, err := w.D.Registry.Datasets(t.Context(), w.Caller, registry.DatasetFilter{Limit: 10})
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Equal(t, one.Late, all[0].Late)
		only, err := w.D.Registry.Datasets(t.Context(), w.Caller, registry.DatasetFilter{Late: true, Limit: 10})
		require.NoError(t, err)
		require.Equal(t, one.Late != nil, len(only) == 1)
		return one.Late
	}
	missing := late()
	require.NotNil(t, missing)
	day, err := time.Parse(time.DateOnly, missing.Partition)
	require.NoError(t, err)
	require.Equal(t, day.Add(24*time.Hour+time.Second), missing.DueAt)
	// Midnight may pass during the test, so the next day's file is there as well.
	w.Probe.Put("raw", missing.Partition, "b")
	w.Probe.Put("raw", day.Add(24*time.Hour).Format(time.DateOnly), "c")
	w.Poll()
	w.Settle()
	require.Nil(t, late())
}
