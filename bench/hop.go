package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/operators"
)

// hopFigure: a chain of jobs, each started by its predecessor's committed completion. An edge is the time from the
// start of one job's run to the start of the next one's.
func hopFigure(ctx context.Context, b *bench) (result, error) {
	edges, cost, err := b.hop(ctx)
	if err != nil {
		return result{}, err
	}
	river, err := b.riverHop(ctx, b.edges, b.reps)
	if err != nil {
		return result{}, fmt.Errorf("river: %w", err)
	}

	floor, err := b.rawHop(ctx, b.edges)
	if err != nil {
		return result{}, fmt.Errorf("raw: %w", err)
	}
	detail := maps.Clone(cost)
	detail["p99_ms"] = milliseconds(quantile(edges, 0.99))
	detail["river_p99_ms"] = milliseconds(quantile(river, 0.99))
	detail["raw_p50_ms"] = milliseconds(quantile(floor, 0.5))
	detail["raw_p99_ms"] = milliseconds(quantile(floor, 0.99))

	return result{value: milliseconds(quantile(edges, 0.5)), baseline: milliseconds(quantile(river, 0.5)),
		detail: detail,
		params: map[string]any{"edges": b.edges, "reps": b.reps}}, nil
}

func (b *bench) hop(ctx context.Context) (edges []time.Duration, cost map[string]any, err error) {
	index := map[string]int{"events": 0}
	var yaml strings.Builder
	yaml.WriteString("name: chain\njobs:\n  - {name: events, operator: feed, source: {kind: poll, every: 24h}, " +
		"partition_by: key}\n")
	before := "events"
	for i := range b.edges {
		name := fmt.Sprintf("step%04d", i+1)
		fmt.Fprintf(&yaml, "  - {name: %s, operator: emit, inputs: [{from: {job: %s}}]}\n", name, before)
		index[name], before = i+1, name
	}

	r, err := b.repeat(ctx, "chain", yaml.String(), b.edges+1, func(w *world) func(context.Context) error {
		starts := make([]time.Time, b.edges+1)
		last := make(chan struct{}, 1)
		w.feed.watch(func(t *operators.Task, at time.Time) { // one at a time, because each run starts the next
			starts[index[t.Job]] = at
			if index[t.Job] == b.edges {
				last <- struct{}{}
			}
		})

		return func(ctx context.Context) error {
			select {
			case <-last:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			for i := range b.edges {
				edges = append(edges, starts[i+1].Sub(starts[i]))
			}
			return nil
		}
	})
	return edges[min(b.edges, len(edges)):], r.cost, err // without those of the first repetition
}

// repeated is the result of repetitions of a small DAG.
type repeated struct {
	took []time.Duration // from the source's poll until nothing is left to do
	cost map[string]any
}

// repeat runs a DAG of so many tasks again and again, each time for a new partition, after one run that took does not
// include. It calls watch once, and after the beginning of each repetition the function that watch returned, which
// waits until the repetition is over, or nearly so.
func (b *bench) repeat(
	ctx context.Context, name, yaml string, tasks int, watch func(w *world) func(ctx context.Context) error,
) (r repeated, err error) {
	dsn, drop, err := b.migrated(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, drop()) }()

	var caller authz.Caller
	err = b.setUp(ctx, dsn, func(w *world) error {
		if caller, err = w.org(ctx, "bench"); err != nil {
			return err
		}
		return w.deploy(ctx, caller, name, yaml)
	})
	if err != nil {
		return r, err
	}

	meter, err := b.startMeter(ctx, dsn)
	if err != nil {
		return r, err
	}
	all := tasks * (b.reps + 1)
	if r.took, err = b.repeatIn(ctx, dsn, caller, tasks, watch); err != nil {
		return r, err
	}

	r.cost, err = meter.stop(ctx, all)
	b.printServer(ctx, dsn, name, all)
	return r, err
}

func (b *bench) repeatIn(
	ctx context.Context, dsn string, caller authz.Caller, tasks int,
	watch func(w *world) func(ctx context.Context) error,
) (took []time.Duration, err error) {
	w, err := b.world(ctx, dsn, runtimes[0])
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()

	wait := watch(w)
	for i := range b.reps + 1 {
		w.feed.put([]operators.Unit{unit(fmt.Sprint(i), "1")})
		start := time.Now()
		if err := w.poll(ctx, caller); err != nil {
			return nil, err
		}
		if err := wait(ctx); err != nil {
			return nil, err
		}
		if err := w.settle(ctx, caller, tasks*(i+1)); err != nil {
			return nil, err
		}
		if i > 0 {
			took = append(took, time.Since(start))
		}
	}

	w.statements.print(b.stderr, "repetitions", tasks*(b.reps+1))
	return took, w.completed(ctx, tasks*(b.reps+1))
}
