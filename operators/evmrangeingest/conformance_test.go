package evmrangeingest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/testgeth"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/evmrangeingest"
	"github.com/dagctl/dagctl/operators/operatortest"
)

func operator(t *testing.T) operators.Enumerator {
	t.Helper()
	op, err := evmrangeingest.New(operators.Options{Engines: enginetest.Engines(),
		AllowedAddresses: []string{"127.0.0.0/8"}})
	require.NoError(t, err)
	return op.(operators.Enumerator)
}

var ranges = dag.Partitioning{Kind: dag.ByRange, Size: 4, Column: "block_number"}

func TestEVMRangeIngestConforms(t *testing.T) {
	t.Parallel()
	n := testgeth.Start(t)
	n.MineTo(12)
	config := func(more map[string]any) map[string]any {
		c := map[string]any{"url": n.URL, "chain_id": testgeth.ChainID, "start_block": 2, "end_block": 11,
			"confirmations": 2}
		for name, value := range more {
			c[name] = value
		}
		return c
	}
	run := func(name, key string, more map[string]any) operatortest.Case {
		return operatortest.Case{Name: name, Config: config(more), PartitionBy: ranges,
			Partition: &operators.PartitionRange{Key: key}}
	}
	fails := func(c operatortest.Case, message string, permanent bool) operatortest.Case {
		c.Fails, c.Permanent = message, permanent
		return c
	}
	refused := func(message string, more map[string]any) operatortest.Case {
		return operatortest.Case{Name: "refused: " + message, Config: config(more), Refused: message}
	}
	all := run("all records", "4-8", map[string]any{"records": []any{"blocks", "transactions", "logs"}, "batch": 1})
	all.Outputs = []string{"blocks", "transactions", "logs"}

	operatortest.Run(t, operator(t),
		run("first part", "0-4", nil), run("last part", "8-12", nil), all,
		fails(run("too young", "4-8", map[string]any{"end_block": 1000}), "which needs 2 confirmations", false),
		fails(run("another chain", "4-8", map[string]any{"chain_id": 5}), "is a node of chain 1337", true),
		fails(run("outside", "12-16", nil), "lies outside of [2, 11)", true),
		refused("has no blocks", map[string]any{"end_block": 2}),
		refused("records", map[string]any{"records": []any{"traces"}}),
	)
}

func TestARangeOfTooManyParts(t *testing.T) {
	t.Parallel()
	check := operator(t).Spec().CheckJob
	job := &dag.Job{Operator: "evm_range_ingest", Outputs: []string{"out"}, PartitionBy: ranges, Config: dag.Config{
		"url": "https://node.example.com", "chain_id": 1, "end_block": int64(4 * 250_000)}}
	require.Nil(t, check(job))
	job.Config["end_block"] = int64(4*250_000 + 1)
	require.Contains(t, check(job).Message, "are 250001 partitions of 4 blocks; at most 250000 are allowed")
}

func TestARangeIsListedOnce(t *testing.T) {
	t.Parallel()
	n := testgeth.Start(t)
	n.MineTo(12)
	op := operator(t)
	known := map[string]string{}
	list := func(url string) ([]operators.Unit, error) {
		config := map[string]any{"url": url, "chain_id": testgeth.ChainID, "start_block": 2, "end_block": 11,
			"confirmations": 2}
		return op.Enumerate(t.Context(), operators.Enumeration{PartitionBy: ranges, Known: known, Config: config})
	}

	units, err := list(n.URL)
	require.NoError(t, err)
	require.Len(t, units, 3)
	for i, partition := range []string{"0-4", "4-8", "8-12"} {
		require.Equal(t, partition, units[i].Partition)
	}

	known[units[1].Partition] = units[1].Version
	again, err := list(n.URL)
	require.NoError(t, err)
	require.Equal(t, units, again)

	for _, u := range units {
		known[u.Partition] = u.Version
	}
	again, err = list("http://127.0.0.1:1")
	require.NoError(t, err, "nobody is asked for what is all there")
	require.Equal(t, units, again)
}
