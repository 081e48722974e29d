// Package blockfollower has the operator block_follower, a source that follows the tip of an EVM chain: it makes
// partitions of ranges of blocks, fills gaps, and makes exactly those ranges anew that a re-organisation changed.
//
// Vocabulary: the safe tip is the highest block with as many blocks after it as the config says. A span is a range as
// it was made last; it is stale if the node's chain has other blocks there. A chain is a run of spans of which each
// begins with the hash that the one before ends with: if its last block is on the node's chain, so are all others. It
// owns no tables.
package blockfollower

import (
	"context"
	"encoding/json"
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
  "required": ["url", "chain_id"],
  "properties": {` + evm.Schema + `,
    "confirmations": {"type": "integer", "minimum": 0, "maximum": 1000000,
      "description": "How many blocks have to follow one before it is read; 0 by default."},
    "max_reorg": {"type": "integer", "minimum": 1, "maximum": 1000000,
      "description": "How many of the last blocks a re-organisation may replace; 64 by default. A deeper one stops the source with an error."},
    "partial": {"type": "boolean",
      "description": "Whether to read the range at the tip before it is complete, each time it has grown; true by default."}
  }
}`

const defaultMaxReorg = 64

type config struct {
	evm.Node
	Confirmations int64 `json:"confirmations"`
	MaxReorg      int64 `json:"max_reorg"`
	Partial       *bool `json:"partial"`
}

func parse(from map[string]any) (c config, err *dag.ConfigError) {
	if err := evm.Decode(from, &c, &c.Node); err != nil {
		return c, err
	}
	if c.MaxReorg == 0 {
		c.MaxReorg = defaultMaxReorg
	}
	return c, nil
}

// anchor returns the number of the highest block that no re-organisation may replace if to is the last one.
func (c config) anchor(to int64) int64 { return max(0, to-c.MaxReorg) }

// operator lists the ranges whose blocks are not, or not as they are now, those of the dataset. It keeps no state: what
// it knows of the past is in the versions of the partitions.
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
	return evm.Spec("block_follower", configSchema, []string{"confirmations", "max_reorg", "partial"}, parse,
		config.CheckJob)
}

// unit is the payload of a task. The anchor is that of the version that was listed.
type unit struct {
	To         int64  `json:"to"`
	Anchor     int64  `json:"anchor"`
	AnchorHash string `json:"anchor_hash,omitempty"`
}

// Run implements operators.Operator. It reads the blocks that the range has now: if they are no longer those that were
// listed, its version says so, and the next listing compares.
func (o *operator) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	c, configFault := parse(t.Config)
	if configFault != nil {
		return operators.Result{}, operators.Permanent(operators.ConfigError(configFault))
	}
	client, err := evm.NewClient(t, c.Node, o.client)
	if err != nil {
		return operators.Result{}, err
	}
	t.Progress(0, "asking the node")
	from, u, err := c.what(ctx, client, t)
	if err != nil {
		return operators.Result{}, err
	}

	read, err := client.ReadRange(ctx, t, o.options.Engines, from, u.To)
	if err != nil {
		return operators.Result{}, err
	}
	anchor, err := client.Headers(ctx, []int64{u.Anchor})
	if err != nil {
		return operators.Result{}, err
	}
	h, ok := anchor[u.Anchor]
	switch {
	case !ok:
		return operators.Result{}, fault.New(fault.Unavailable, "the node does not have block %d", u.Anchor)
	case u.AnchorHash != "" && evm.Short(h.Hash) != u.AnchorHash:
		return operators.Result{}, tooDeep(u.Anchor, c.MaxReorg)
	}

	v := evm.Version{To: u.To, Hash: evm.Short(read.Last.Hash), Parent: evm.Short(read.First.Parent), Anchor: u.Anchor,
		AnchorHash: evm.Short(h.Hash)}
	summary, err := json.Marshal(map[string]any{"first_block": from, "last_block": u.To, "rows": read.Rows})
	return operators.Result{SourceVersion: v.String(), Result: summary}, err
}

// what returns what a task is to read: the unit that was listed or, where nobody listed one, as much of the partition
// as is there.
func (c config) what(ctx context.Context, client *evm.Client, t *operators.Task) (from int64, u unit, err error) {
	if t.Partition == nil {
		return 0, u, operators.Permanent(fault.New(fault.Invalid, "block_follower makes partitions of ranges"))
	}
	from, end, err := t.PartitionBy.Range(t.Partition.Key)
	if err != nil {
		return 0, u, operators.Permanent(err)
	}
	tip, err := client.Tip(ctx) // also refuses a node of another chain
	if err != nil {
		return 0, u, err
	}

	if from = max(from, c.StartFrom); from >= end {
		return 0, u, operators.Permanent(fault.New(fault.Invalid, "partition %s lies before start_block",
			t.Partition.Key))
	}
	if len(t.Payload) > 0 {
		if err := json.Unmarshal(t.Payload, &u); err != nil {
			return 0, u, operators.Permanent(fault.New(fault.Invalid, "payload: %w", err))
		}
	}
	if u.To < from || u.To >= end {
		u = unit{To: min(end-1, tip-c.Confirmations)}
		u.Anchor = c.anchor(u.To)
	}
	switch {
	case u.To < from:
		return 0, u, fault.New(fault.NotFound, "the chain has not come to partition %s yet: its last block with %d "+
			"confirmations is %d", t.Partition.Key, c.Confirmations, tip-c.Confirmations)
	case u.To > tip:
		return 0, u, fault.New(fault.Unavailable, "the node lags behind: its last block is %d, and block %d is known",
			tip, u.To)
	}
	return from, u, nil
}

// tooDeep is the error of a re-organisation that replaced a block that none may replace.
func tooDeep(block, most int64) error {
	return fault.New(fault.Conflict, "a re-organisation replaced more than the last %d blocks that were read: the "+
		"node has another block %d, so nothing is read from it", most, block).
		WithHint("if the node is right, raise config.max_reorg and deploy: what changed is read anew, the rest stays")
}
