package dispatcher

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
)

// A range partition that slices a cursor input (`map: slice`) is made of the rows between its bounds. It is made once the
// cursor has come to its end, and not before: a slice triggers nothing, so what came later would never be read. For the
// same reason a segment that comes has the ranges it reaches into looked at.

// sliced is what an input offers a range partition that slices it.
type sliced struct {
	registry.Span
	reached int64 // where the segments that hold rows of it end; they follow each other
}

// complete reports whether the cursor has come to the end of the range.
func (s *sliced) complete() bool { return s.reached >= s.To }

// missing says how far the cursor has come.
func (s *sliced) missing(producer string) string {
	if s.reached <= s.From {
		return fmt.Sprintf("%s has no rows from %d on", producer, s.From)
	}
	return fmt.Sprintf("%s has come to %d, and %d is needed", producer, s.reached-1, s.To-1)
}

// sliceOf is the span that a target takes of an input; nil where it does not slice it.
func sliceOf(t target, in inputFacts) (*sliced, error) {
	if in.def.Map.Kind != dag.MapSlice {
		return nil, nil
	}
	from, to, err := t.job.Def.PartitionBy.Range(t.key)
	if err != nil {
		return nil, fmt.Errorf("slice of %s partition %q: %w", t.job.Address(), t.key, err)
	}
	return &sliced{Span: registry.Span{Generation: in.generation, From: from, To: to}}, nil
}

// knowSlices fills in the segments that hold rows of slices.
func knowSlices(ctx context.Context, tx pgx.Tx, wants [][]inputFacts) error {
	var spans []registry.Span
	for _, inputs := range wants {
		for _, in := range inputs {
			if in.slice != nil {
				spans = append(spans, in.slice.Span)
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
			if in.slice == nil {
				continue
			}
			in.published = found[in.slice.Span]
			ends := map[string]int64{}
			for key := range in.published {
				if _, ends[key], err = by.Range(key); err != nil {
					return err
				}
				in.wanted = append(in.wanted, key)
				in.slice.reached = max(in.slice.reached, ends[key])
			}
			slices.SortFunc(in.wanted, func(a, b string) int { return int(ends[a] - ends[b]) })
		}
	}
	return nil
}

// rangesAtOnce bounds how many ranges one segment has looked at one by one; where it reaches over more, the job's are all.
const rangesAtOnce = 1000

// hitSlices adds the ranges of a job that a new segment of an input it slices holds rows of. Its event tells where it ends.
func (d *Dispatcher) hitSlices(e Event) func(context.Context, pgx.Tx, *hits, *registry.Job) error {
	return func(ctx context.Context, tx pgx.Tx, h *hits, job *registry.Job) error {
		if e.Position == nil {
			return d.addWhole(ctx, tx, h, job)
		}
		span := registry.Span{Generation: e.Version, From: *e.Position, To: *e.Position + 1}
		found, err := registry.SegmentsOf(ctx, tx, []registry.Span{span})
		if err != nil {
			return err
		}
		for segment := range found[span] {
			keys, all, err := job.Def.PartitionBy.RangesOver(segment, rangesAtOnce)
			if err != nil {
				return fmt.Errorf("slices of %s: %w", job.Address(), err)
			}
			if !all {
				return d.addWhole(ctx, tx, h, job)
			}
			for _, key := range keys {
				h.add(target{job, key})
			}
		}
		return nil
	}
}
