package stale

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
)

// A range partition that slices a cursor input (`map: slice`) is made of the rows between its bounds. It is made only
// once the cursor has reached its end: a slice triggers nothing, so rows that came later would never be read. For the
// same reason a new segment makes the router examine the ranges that it reaches into.

// sliced is the part of an input that a range partition takes.
type sliced struct {
	registry.Span
	reached int64 // where the last of the segments that hold rows of the range ends; they follow each other
}

// complete reports whether the cursor has reached the end of the range.
func (s *sliced) complete() bool { return s.reached >= s.To }

// Missing returns, for people, how far the cursor of the producer has come.
func (s *sliced) Missing(producer string) string {
	if s.reached <= s.From {
		return fmt.Sprintf("%s has no rows from %d on", producer, s.From)
	}
	return fmt.Sprintf("%s has come to %d, and %d is needed", producer, s.reached-1, s.To-1)
}

// sliceOf returns the span that a target takes of an input, or nil if it does not slice it.
func sliceOf(t Target, in InputFacts) (*sliced, error) {
	if in.Def.Map.Kind != dag.MapSlice {
		return nil, nil
	}
	from, to, err := t.Job.Def.PartitionBy.Range(t.Key)
	if err != nil {
		return nil, fmt.Errorf("slice of %s partition %q: %w", t.Job.Address(), t.Key, err)
	}
	return &sliced{Span: registry.Span{Generation: in.Generation, From: from, To: to}}, nil
}

// addSegments adds, to each input that a target slices, the segments that hold rows of the slice.
func addSegments(ctx context.Context, tx pgx.Tx, wants [][]InputFacts) error {
	var spans []registry.Span
	for _, inputs := range wants {
		for _, in := range inputs {
			if in.Slice != nil {
				spans = append(spans, in.Slice.Span)
			}
		}
	}

	found, err := registry.SegmentsOf(ctx, tx, spans)
	if err != nil {
		return err
	}

	by := dag.Partitioning{Kind: dag.ByCursor}
	for _, inputs := range wants {
		for n := range inputs {
			in := &inputs[n]
			if in.Slice == nil {
				continue
			}

			in.Published = found[in.Slice.Span]
			ends := map[string]int64{}
			for key := range in.Published {
				if _, ends[key], err = by.Range(key); err != nil {
					return err
				}
				in.Wanted = append(in.Wanted, key)
				in.Slice.reached = max(in.Slice.reached, ends[key])
			}
			slices.SortFunc(in.Wanted, func(a, b string) int { return int(ends[a] - ends[b]) })
		}
	}
	return nil
}
