// Package evm reads chains of the Ethereum Virtual Machine from nodes that speak JSON-RPC over HTTP. It is the part
// that operators of chains share.
//
// Vocabulary: a Node is the part of a config that says which node to ask, and of which chain. A Client is what one run
// says to it. A Header is a block without its rows; Records are the kinds of rows that are read of blocks. A quantity
// is a number as JSON-RPC writes it, 0x and hexadecimal digits; none is ever a float here. It owns no tables.
package evm

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// Node is the part of a config that says what to read, and from where.
type Node struct {
	URL       string         `json:"url"`
	Headers   map[string]any `json:"headers"` // text or {secret: NAME}
	ChainID   int64          `json:"chain_id"`
	Records   []Record       `json:"records"`
	Batch     int            `json:"batch"`
	Rate      float64        `json:"requests_per_second"`
	MaxBytes  int64          `json:"max_bytes"`
	StartFrom int64          `json:"start_block"`
}

// Schema is the part of a config schema that describes Node.
const Schema = `
    "url": {"type": "string", "pattern": "^https?://",
      "description": "Where the node answers JSON-RPC. Another node of the same chain rebuilds nothing."},
    "headers": {"type": "object", "propertyNames": {"pattern": "^[A-Za-z0-9-]+$"},
      "additionalProperties": {"type": "string"}, "description": "Request headers. A value may be {secret: NAME}."},
    "chain_id": {"type": "integer", "minimum": 1,
      "description": "The id of the chain, such as 1. A node of another chain is refused."},
    "records": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"enum": ["blocks", "transactions", "logs"]},
      "description": "What to read of each block, an output each; blocks by default."},
    "start_block": {"type": "integer", "minimum": 0, "description": "The first block to read; 0 by default."},
    "batch": {"type": "integer", "minimum": 1, "maximum": 1000,
      "description": "The most calls to send in one request; 20 by default. 1: for nodes that take no batches."},
    "requests_per_second": {"type": "number", "exclusiveMinimum": 0, "maximum": 1000,
      "description": "The most requests of a run in a second, on average; no bound by default."},
    "max_bytes": {"type": "integer", "minimum": 1, "maximum": 4294967296,
      "description": "The longest answer to accept; 256 MiB by default."}`

// check checks what Schema cannot express, and sets defaults.
func (n *Node) check() *dag.ConfigError {
	// Without its operational fields, a config has no URL.
	if n.URL != "" && !operators.IsURL(n.URL) {
		return &dag.ConfigError{Key: "url", Message: "it must be a URL with a host and without a password"}
	}
	n.Records = orBlocks(n.Records)
	if n.Batch == 0 {
		n.Batch = 20
	}
	if n.MaxBytes == 0 {
		n.MaxBytes = 256 << 20
	}
	return operators.CheckRequest("", n.Headers)
}

// orBlocks returns what is to be read: blocks, if a config does not say.
func orBlocks(records []Record) []Record {
	if len(records) == 0 {
		return []Record{Blocks}
	}
	return records
}

// MaxRanges is the most partitions that a listing may have. It is in the memory of the server.
const MaxRanges = 250_000

// CheckRanges returns an error if the blocks from StartFrom up to last are more than MaxRanges ranges of a size.
func (n Node) CheckRanges(last, size int64) error {
	if ranges := (last - n.StartFrom) / size; ranges >= MaxRanges {
		return fault.New(fault.TooLarge, "the blocks %d to %d are %d partitions of %d blocks; at most %d are allowed",
			n.StartFrom, last, ranges+1, size, MaxRanges).
			WithHint("make the ranges of `partition_by` greater, or let start_block be later")
	}
	return nil
}

// CheckJob checks that a job has the outputs and the partitions that its records need.
func (n Node) CheckJob(job *dag.Job) *dag.ConfigError {
	if by := job.PartitionBy; by.Kind != dag.ByRange || by.Column != Number {
		return &dag.ConfigError{Message: fmt.Sprintf("%s makes ranges of blocks: set `partition_by: { range: 1000, "+
			"column: %s }`, or another size", job.Operator, Number)}
	}

	if len(n.Records) == 1 && len(job.Outputs) == 1 {
		return nil
	}
	names := make([]string, len(n.Records))
	for i, r := range n.Records {
		names[i] = string(r)
	}
	if !slices.Equal(names, job.Outputs) {
		return &dag.ConfigError{Key: "records", Message: "each kind of record is an output: write `outputs: [" +
			strings.Join(names, ", ") + "]`"}
	}
	return nil
}

// shape is the Shape of an operator whose config has a Node: all columns are known.
func shape(job *dag.Job, _ [][]dag.Column) (s dag.Shape, err error) {
	var records []Record
	list, _ := job.Config["records"].([]any)
	for _, r := range list {
		text, _ := r.(string)
		records = append(records, Record(text))
	}
	if records = orBlocks(records); len(records) != len(job.Outputs) {
		return s, nil
	}

	for _, r := range records {
		var columns []dag.Column
		for _, c := range r.relation() {
			columns = append(columns, dag.Column{Name: c.Name, Type: c.Type})
		}
		s.Writes = append(s.Writes, columns)
	}
	return s, nil
}

// Spec returns the spec of a source that reads a Node. parse reads its config, of the type C, and check is its
// CheckJob; operational are the fields besides those of a Node that cannot change an output.
func Spec[C any](
	name, schema string, operational []string, parse func(map[string]any) (C, *dag.ConfigError),
	check func(C, *dag.Job) *dag.ConfigError,
) dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: name, Version: "1.0.0", Source: true, Replayable: true, Effect: dag.EffectInternal,
		ConfigSchema: json.RawMessage(schema),
		Operational:  append(operational, "url", "headers", "batch", "requests_per_second", "max_bytes"),
		Shape:        shape,
		CheckFields: func(config map[string]any) *dag.ConfigError { // its URL has no placeholders
			return operators.CheckRequestOf(map[string]any{"headers": config["headers"]})
		},
		SecretsTo: func(config map[string]any) string {
			address, _ := config["url"].(string)
			return address
		},

		Canonical: func(given map[string]any) (any, *dag.ConfigError) {
			_, err := parse(given)
			return given, err
		},
		CheckJob: func(job *dag.Job) *dag.ConfigError {
			c, err := parse(job.Config)
			if err != nil {
				return err
			}
			return check(c, job)
		},
	}
}

// Decode reads a config that embeds Node.
func Decode(from map[string]any, into any, n *Node) *dag.ConfigError {
	if err := operators.DecodeConfig(from, into); err != nil {
		return &dag.ConfigError{Message: err.Error()}
	}
	return n.check()
}
