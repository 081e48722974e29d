package operators

import (
	"context"
	"slices"
	"time"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
)

// The work of a look at values is bounded: it happens in plans and deploys, while the DAG is locked.
const (
	fitWaits  = 10 * time.Second // for an engine
	fitWithin = 3 * time.Second  // for the look itself
	fitAtOnce = 32               // parts for each question
)

// Misfit looks for a value that does not fit the column of its name, in parts that are given by their Parquet files.
// Looked is how many parts have none: it is lower than their number where the time was over, or where one was found.
func (r *Registry) Misfit(
	ctx context.Context, org string, parts [][]string, columns []relations.Column,
) (found *relations.Misfit, looked int, err error) {
	waiting, cancel := context.WithTimeoutCause(ctx, fitWaits, errTimeIsOver)
	defer cancel()
	g, err := r.engines.Take(waiting, engine.Purpose{Kind: engine.Job, Org: org, Of: "kept values", Limits: r.limits})
	if err != nil {
		return nil, 0, unlessOver(waiting, err)
	}
	defer g.Release()

	looking, cancel := context.WithTimeoutCause(ctx, fitWithin, errTimeIsOver)
	defer cancel()
	for some := range slices.Chunk(parts, fitAtOnce) {
		q := engine.Fit{Columns: columns}
		for _, files := range some {
			inside, err := g.In(files...)
			if err != nil {
				return nil, looked, err
			}
			q.Parts = append(q.Parts, inside)
		}
		if err := g.Do(looking, q, &found); err != nil {
			return nil, looked, unlessOver(looking, err)
		}
		if found != nil {
			found.Part += looked
			return found, found.Part, nil
		}
		looked += len(some)
	}
	return nil, looked, nil
}

// errTimeIsOver ends a look that takes too long.
var errTimeIsOver error = fault.New(fault.TooLarge, "the look at the values takes too long")

// unlessOver returns the error of a look, nil where its time was over.
func unlessOver(ctx context.Context, err error) error {
	if context.Cause(ctx) == errTimeIsOver {
		return nil
	}
	return err
}
