package blockfollower_test

import (
	"testing"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/testgeth"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/operatortest"
)

func TestBlockFollowerConforms(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	n.mine(6)
	config := func(more map[string]any) map[string]any {
		c := map[string]any{"url": n.URL, "chain_id": testgeth.ChainID}
		for name, value := range more {
			c[name] = value
		}
		return c
	}
	run := func(name, key string, more map[string]any) operatortest.Case {
		return operatortest.Case{Name: name, Config: config(more), Partition: &operators.PartitionRange{Key: key},
			PartitionBy: dag.Partitioning{Kind: dag.ByRange, Size: 4, Column: "block_number"}}
	}
	fails := func(c operatortest.Case, message string, permanent bool) operatortest.Case {
		c.Fails, c.Permanent = message, permanent
		return c
	}
	refused := func(message string, more map[string]any) operatortest.Case {
		return operatortest.Case{Name: "refused: " + message, Config: config(more), Refused: message}
	}
	all := run("all records", "0-4", map[string]any{"records": []any{"blocks", "transactions", "logs"}, "batch": 3})
	all.Outputs = []string{"blocks", "transactions", "logs"}

	operatortest.Run(t, operator(t, loopback),
		run("whole", "0-4", nil), run("partial", "4-8", nil), all,
		fails(run("not there yet", "8-12", nil), "the chain has not come to partition 8-12 yet", false),
		fails(run("another chain", "0-4", map[string]any{"chain_id": 5}), "is a node of chain 1337", true),
		fails(run("before the start", "0-4", map[string]any{"start_block": 4}), "lies before start_block", true),
		refused("host", map[string]any{"url": "http://"}),
		refused("without a password", map[string]any{"url": "http://a:b@example.com"}),
		refused("url", map[string]any{"url": "ws://example.com"}),
		refused("chain_id", map[string]any{"chain_id": 0}),
		refused("records", map[string]any{"records": []any{"traces"}}),
	)
	t.Run("private addresses", func(t *testing.T) {
		operatortest.Run(t, operator(t), fails(run("loopback", "0-4", nil), "127.0.0.1", true))
	})
}
