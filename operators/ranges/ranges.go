// Package ranges cuts what is known to be there into aligned ranges, each of them once. It is what range_aggregator,
// which makes big ranges of small ones, and range_splitter, which makes small ones of big ones, have in common.
//
// Vocabulary: a range is half-open, [start, end), and made of positions, whole numbers from 0 on. A part is a range
// that an input says is there; parts come in any order, overlap and repeat. What all parts so far cover is the operator
// state of the job. An aligned range begins at a multiple of its size and is whole once all of its positions are
// covered.
//
// A run writes the whole ranges that its own parts reach into, those too that were whole before: the output, which has
// one row for each start, is then the same however often a part is read again, because a check rejected what was made
// of it or because it was published anew. It owns no tables.
package ranges

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
)

const (
	// maxPosition and maxSize bound positions so that computing with them does not overflow.
	maxPosition = 1 << 62
	maxSize     = 1 << 40

	// maxSpans is how many ranges that do not touch each other a state may have, and maxRows how many aligned ranges
	// one run may write.
	maxSpans = 20_000
	maxRows  = 10_000_000
)

// startColumn and endColumn are the columns of the output, and by default those of inputs.
const startColumn, endColumn = "range_start", "range_end"

// Schema is the JSON Schema of the config.
const Schema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["size"],
  "properties": {
    "size": {"type": "integer", "minimum": 1, "maximum": 1099511627776,
      "description": "How many positions an aligned range has; it begins at a multiple of that."},
    "start": {"type": "integer", "minimum": 0, "maximum": 4611686018427387904,
      "description": "The first position that there is; 0 by default. The range around it is whole without those before."},
    "end": {"type": "integer", "minimum": 1, "maximum": 4611686018427387904,
      "description": "The position behind the last one that there will be; by default there is no last one."},
    "start_column": {"type": "string", "minLength": 1,
      "description": "The column of inputs with the first position of a part; range_start by default."},
    "end_column": {"type": "string", "minLength": 1,
      "description": "The column of inputs with the position behind the last one of a part; range_end by default."}
  }
}`

type config struct {
	Size        int64  `json:"size"`
	Start       int64  `json:"start"`
	End         int64  `json:"end"` // 0: there is none
	StartColumn string `json:"start_column"`
	EndColumn   string `json:"end_column"`
}

func parseConfig(given map[string]any) (config, *dag.ConfigError) {
	c := config{StartColumn: startColumn, EndColumn: endColumn}
	if err := operators.DecodeConfig(given, &c); err != nil {
		return c, &dag.ConfigError{Message: err.Error()}
	}
	if c.End != 0 && c.End <= c.Start {
		return c, &dag.ConfigError{Key: "end", Message: fmt.Sprintf("it is the position behind the last one, so it is "+
			"greater than start, %d", c.Start)}
	}
	return c, nil
}

// bounds is the positions that there are.
func (c config) bounds() Range {
	if c.End == 0 {
		return Range{c.Start, maxPosition}
	}
	return Range{c.Start, c.End}
}

// Operator is range_aggregator or range_splitter, by its name. Both do the same, with ranges that are greater or
// smaller than the parts.
type Operator string

// Spec implements operators.Operator.
func (name Operator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: string(name), Version: "1.0.0", Reactive: true, Effect: dag.EffectInternal,
		ConfigSchema:    json.RawMessage(Schema),
		CheckJob:        func(job *dag.Job) *dag.ConfigError { return checkJob(string(name), job) },
		CheckPartitions: func(job *dag.Job) *dag.ConfigError { return checkPartitions(string(name), job) },
		Shape: func(*dag.Job, [][]dag.Column) (dag.Shape, error) {
			return dag.Shape{Writes: [][]dag.Column{{{Name: startColumn, Type: "BIGINT"},
				{Name: endColumn, Type: "BIGINT"}}}}, nil
		},
		Canonical: func(given map[string]any) (any, *dag.ConfigError) {
			c, err := parseConfig(given)
			return c, err
		},
	}
}

// ServerOnly implements operators.ServerOnly: a worker elsewhere is not told how inputs are partitioned, and their
// partitions may be parts themselves.
func (Operator) ServerOnly() {}

// checkJob refuses jobs whose output would not have each range once.
func checkJob(name string, job *dag.Job) *dag.ConfigError {
	refuse := func(format string, args ...any) *dag.ConfigError {
		return &dag.ConfigError{Message: name + " " + fmt.Sprintf(format, args...)}
	}
	switch {
	case len(job.Outputs) != 1:
		return refuse("has one output")
	case job.UpdateStrategy != dag.Append || !slices.Equal(job.UniqueKey, []string{startColumn}):
		return refuse("adds ranges to those that there are: set `update_strategy: append` and `unique_key: [%s]`",
			startColumn)
	}

	for _, in := range job.Inputs {
		if in.Map.Kind != dag.MapSame {
			return refuse("reads the parts of input %q as they come: leave `map` out", in.As)
		}
	}
	return nil
}

// checkPartitions refuses jobs that would list ranges as partitions, or mix what is there of several partitions.
func checkPartitions(name string, job *dag.Job) *dag.ConfigError {
	switch kind := job.PartitionBy.Kind; {
	case kind == dag.ByRange || kind == dag.ByCursor:
		return &dag.ConfigError{Message: name + " " + noRanges}
	case kind != dag.Unpartitioned && !strings.Contains(job.StateKey, "{partition}"):
		return &dag.ConfigError{Message: name + " " + ownState}
	}
	return nil
}

const (
	noRanges = "lists ranges as rows, of one output or one for each key or time: set `partition_by: none` and " +
		"`execution_strategy: PerUpdate`"
	ownState = "remembers what is there for each partition apart: set `state_key: \"{partition}\"`"
)

// state is what the job remembers of a partition.
type state struct {
	Partition string `json:"partition"`
	Covered   Set    `json:"covered"`
}

// Run implements operators.Operator.
func (Operator) Run(ctx context.Context, t *operators.Task) (result operators.Result, err error) {
	c, configFault := parseConfig(t.Config)
	if configFault != nil {
		return result, operators.Permanent(operators.ConfigError(configFault))
	}
	if err := ctx.Err(); err != nil {
		return result, err
	}
	known, err := remembered(t)
	if err != nil {
		return result, operators.Permanent(err)
	}

	t.Progress(0, "reading parts")
	fresh, err := c.parts(ctx, t)
	if err != nil {
		return result, err
	}
	fresh = fresh.Within(c.bounds())
	known.Covered = known.Covered.With(fresh...)
	if len(known.Covered) > maxSpans {
		return result, operators.Permanent(fault.New(fault.TooLarge, "what is there has %d gaps, and %d can be "+
			"remembered", len(known.Covered)-1, maxSpans).
			WithHint("publish the parts between them, or give each source of parts a partition and a `state_key`"))
	}

	whole := c.whole(known.Covered, fresh)
	rows := whole.Length() / c.Size
	if rows > maxRows {
		return result, operators.Permanent(fault.New(fault.TooLarge, "these parts have %d ranges of %d positions; a "+
			"task writes at most %d", rows, c.Size, maxRows).WithHint("set a greater `size`, or publish smaller parts"))
	}

	t.Progress(50, "writing ranges")
	if _, _, err = t.Select(ctx, listing(whole, c.Size), 0, "part.parquet"); err != nil {
		return result, err
	}
	var failed [2]error
	result.State, failed[0] = json.Marshal(known)
	result.Result, failed[1] = json.Marshal(map[string]int64{"ranges": rows, "spans": int64(len(known.Covered))})
	return result, errors.Join(failed[:]...)
}

// remembered returns the state that earlier runs have left. A version that an older server has accepted may have
// partitions that checkPartitions refuses.
func remembered(t *operators.Task) (known state, err error) {
	partition := dag.WholeKey
	if t.Partition != nil {
		partition = t.Partition.Key
	}
	if kind := t.PartitionBy.Kind; kind == dag.ByRange || kind == dag.ByCursor {
		return known, fault.New(fault.Invalid, "%s %s", t.Operator, noRanges)
	}

	if len(t.State) == 0 {
		if len(t.Outputs) == 1 && t.Outputs[0].Base != nil {
			// Another definition of the job has made its rows, and what that had read is not known here.
			return known, fault.New(fault.Invalid, "the output has ranges, but this job does not know which parts "+
				"were read before").WithHint("`dagctl rematerialize` the dataset: one that is kept (`--forward-only`)" +
				" keeps its rows, and not what was read for them")
		}
		return state{Partition: partition}, nil
	}
	if err := json.Unmarshal(t.State, &known); err != nil {
		return known, fault.New(fault.Internal, "the operator state cannot be read: %w", err)
	}
	if known.Partition != partition {
		return known, fault.New(fault.Invalid, "%s %s", t.Operator, ownState)
	}
	return known, nil
}

// whole returns the aligned ranges that are covered and that fresh reaches into. What lies outside of the bounds is
// missing nowhere.
func (c config) whole(covered, fresh Set) Set {
	bounds := c.bounds()
	there := covered.With(Range{down(bounds.Start(), c.Size), bounds.Start()})
	if c.End != 0 {
		there = there.With(Range{c.End, up(c.End, c.Size)})
	}
	return there.Aligned(fresh, c.Size)
}

// listing returns the SELECT of aligned ranges as rows.
func listing(whole Set, size int64) string {
	columns := fmt.Sprintf("s AS %s, s + %d AS %s", sqltext.Quote(startColumn), size, sqltext.Quote(endColumn))
	if len(whole) == 0 {
		return "SELECT " + columns + " FROM (SELECT 0::BIGINT AS s) WHERE false"
	}

	values := make([]string, len(whole))
	for i, r := range whole {
		values[i] = fmt.Sprintf("(%d::BIGINT, %d::BIGINT)", r.Start(), r.End())
	}
	return fmt.Sprintf("SELECT %s FROM (SELECT unnest(range(first, past, %d)) AS s FROM (VALUES %s) AS v(first, past)"+
		") ORDER BY s", columns, size, strings.Join(values, ", "))
}
