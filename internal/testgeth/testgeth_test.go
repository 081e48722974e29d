package testgeth_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testgeth"
)

// hash returns the hash of a block.
func hash(n *testgeth.Node, block string) string {
	var b struct{ Hash string }
	n.Call(&b, "eth_getBlockByNumber", block, false)
	return b.Hash
}

func TestAHeadSetBackGetsOtherBlocks(t *testing.T) {
	t.Parallel()
	n := testgeth.Start(t)
	n.MineTo(5)
	two, three := hash(n, "0x2"), hash(n, "0x3")

	n.SetHead(2)
	n.MineTo(6)
	require.Equal(t, two, hash(n, "0x2"))
	require.NotEqual(t, three, hash(n, "0x3"))
}
