package ranges

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
)

func TestPartsByKey(t *testing.T) {
	t.Parallel()
	in := operators.AssignedInput{As: "blocks", PartitionBy: dag.Partitioning{Kind: dag.ByCursor, Column: "n"},
		Partitions: []storage.Partition{{Key: "20-25"}, {Key: "0-7"}}}
	parts, err := byKey(in)
	require.NoError(t, err)
	require.Equal(t, []Range{{20, 25}, {0, 7}}, parts)

	in.Where = []dag.Condition{{Column: "n", Values: []any{"1"}}}
	_, err = byKey(in)
	require.ErrorContains(t, err, "`where` would leave rows out")
	require.True(t, operators.IsPermanent(err))

	require.NoError(t, elsewhere(in))
	in.PartitionBy = dag.Partitioning{}
	require.ErrorContains(t, elsewhere(in), "a worker is not told")
	in.Partitions = []storage.Partition{{Key: dag.WholeKey}, {Key: "2026-01-31"}, {Key: "monday"}}
	require.NoError(t, elsewhere(in))
}
