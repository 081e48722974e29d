// Package evmrangeingest has the operator evm_range_ingest, a source that reads a fixed range of blocks of an EVM chain
// once, as the start of what block_follower goes on with. It owns no tables.
package evmrangeingest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/evm"
)

const configSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["url", "chain_id", "end_block"],
  "properties": {` + evm.Schema + `,
    "end_block": {"type": "integer", "minimum": 1,
      "description": "The block at which to end: it is not read any more."},
    "confirmations": {"type": "integer", "minimum": 0, "maximum": 1000000,
      "description": "How many blocks have to follow the last one before anything is read; 64 by default."}
  }
}`

type config struct {
	evm.Node
	EndBlock      int64  `json:"end_block"`
	Confirmations *int64 `json:"confirmations"`
}

const defaultConfirmations = 64

func parse(from map[string]any) (c config, err *dag.ConfigError) {
	if err := evm.Decode(from, &c, &c.Node); err != nil {
		return c, err
	}
	if c.EndBlock <= c.StartFrom {
		return c, &dag.ConfigError{Key: "end_block", Message: fmt.Sprintf("the range [%d, %d) has no blocks",
			c.StartFrom, c.EndBlock)}
	}
	return c, nil
}

// settled returns an error unless all blocks of the range are there, with as many after them as the config says.
func (c config) settled(ctx context.Context, client *evm.Client) error {
	tip, err := client.Tip(ctx) // also refuses a node of another chain
	if err != nil {
		return err
	}
	after := int64(defaultConfirmations)
	if c.Confirmations != nil {
		after = *c.Confirmations
	}
	if tip < c.EndBlock-1+after {
		return fault.New(fault.Unavailable, "the range ends before block %d, which needs %d confirmations, and the "+
			"node's last block is %d", c.EndBlock, after, tip).
			WithHint("end earlier, or wait: it is read once it is there")
	}
	return nil
}

// operator lists the parts of the range. Their versions are the hashes of their last blocks, which do not change any
// more, so a part is read once for each definition of the job.
type operator struct {
	options operators.Options
	client  *http.Client
}

// New returns the operator.
func New(o operators.Options) (operators.Operator, error) {
	d, err := dial.New(dial.Config{Allowed: o.AllowedAddresses})
	if err != nil {
		return nil, err
	}
	return &operator{o, d.StrictClient(0)}, nil // the task's own timeout bounds the requests
}

// Spec implements operators.Operator.
func (*operator) Spec() dag.OperatorSpec {
	spec := evm.Spec("evm_range_ingest", configSchema, []string{"confirmations"}, parse, config.checkJob)
	spec.Extent = func(given map[string]any) (start, end int64) {
		c, _ := parse(given) // Canonical refuses what it cannot read
		return c.StartFrom, c.EndBlock
	}
	return spec
}

func (c config) checkJob(job *dag.Job) *dag.ConfigError {
	if err := c.CheckJob(job); err != nil {
		return err
	}
	if err := c.CheckRanges(c.EndBlock-1, job.PartitionBy.Size); err != nil {
		return &dag.ConfigError{Key: "end_block", Message: err.Error()}
	}
	return nil
}

// Enumerate implements operators.Enumerator. Once all parts are read, the node is not asked any more.
func (o *operator) Enumerate(ctx context.Context, e operators.Enumeration) ([]operators.Unit, error) {
	c, configFault := parse(e.Config)
	if configFault != nil {
		return nil, operators.ConfigError(configFault)
	}
	var units []operators.Unit
	var last []int64 // of the units that are not read yet
	for at := c.StartFrom - c.StartFrom%e.PartitionBy.Size; at < c.EndBlock; at += e.PartitionBy.Size {
		u := operators.Unit{Partition: e.PartitionBy.RangeAt(at)}
		if u.Version = e.Known[u.Partition]; u.Version == "" {
			last = append(last, min(at+e.PartitionBy.Size, c.EndBlock)-1)
		}
		units = append(units, u)
	}
	if len(last) == 0 {
		return units, nil
	}

	client, err := evm.NewListing(e, c.Node, o.client)
	if err != nil {
		return nil, err
	}
	if err := c.settled(ctx, client); err != nil {
		return nil, err
	}
	headers, err := client.Headers(ctx, last)
	if err != nil {
		return nil, err
	}

	for i := range units {
		if units[i].Version != "" {
			continue
		}
		h, ok := headers[last[0]]
		if !ok {
			return nil, fault.New(fault.Unavailable, "the node does not have block %d", last[0])
		}
		units[i].Version, last = version(h), last[1:]
	}
	return units, nil
}

// version returns the version of a part of the range that ends with a block.
func version(last evm.Header) string { return fmt.Sprintf("%d:%s", last.Number, last.Hash) }

// Run implements operators.Operator.
func (o *operator) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	c, configFault := parse(t.Config)
	if configFault != nil {
		return operators.Result{}, operators.Permanent(operators.ConfigError(configFault))
	}
	if t.Partition == nil {
		return operators.Result{}, operators.Permanent(fault.New(fault.Invalid, "evm_range_ingest makes partitions of "+
			"ranges"))
	}
	from, end, err := t.PartitionBy.Range(t.Partition.Key)
	if err != nil {
		return operators.Result{}, operators.Permanent(err)
	}
	if from, end = max(from, c.StartFrom), min(end, c.EndBlock); from >= end {
		return operators.Result{}, operators.Permanent(fault.New(fault.Invalid, "partition %s lies outside of [%d, %d)",
			t.Partition.Key, c.StartFrom, c.EndBlock))
	}

	client, err := evm.NewClient(t, c.Node, o.client)
	if err != nil {
		return operators.Result{}, err
	}
	t.Progress(0, "asking the node")
	if err := c.settled(ctx, client); err != nil {
		return operators.Result{}, err
	}
	read, err := client.ReadRange(ctx, t, o.options.Engines, from, end-1)
	if err != nil {
		return operators.Result{}, err
	}
	summary, err := json.Marshal(map[string]any{"first_block": from, "last_block": end - 1, "rows": read.Rows})
	return operators.Result{SourceVersion: version(read.Last), Result: summary}, err
}
