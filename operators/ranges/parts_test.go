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

	_, server := any(Operator("range_aggregator")).(operators.ServerOnly)
	require.True(t, server, "workers are not told how inputs are partitioned")
}
