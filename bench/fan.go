package main

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/dagctl/dagctl/operators"
)

// mostInputs is the most inputs that a job may have. A wider join is a tree.
const mostInputs = 32

// fanFigure: one task, then as many as the fan is wide, then one that waits for all of them, through joins of 32.
func fanFigure(ctx context.Context, b *bench) (result, error) {
	yaml, tasks := fanDAG(b.fan)
	ours, err := b.repeat(ctx, "fan", yaml, tasks, func(w *world) func(context.Context) error {
		joined := make(chan struct{}, 1)
		w.feed.watch(func(t *operators.Task, _ time.Time) {
			if t.Job == "join" {
				joined <- struct{}{}
			}
		})
		return func(ctx context.Context) error {
			select {
			case <-joined:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
	if err != nil {
		return result{}, err
	}

	river, err := b.riverFan(ctx, b.fan, b.reps)
	if err != nil {
		return result{}, fmt.Errorf("river: %w", err)
	}
	floor, err := b.rawFan(ctx, b.fan, b.reps)
	if err != nil {
		return result{}, fmt.Errorf("raw: %w", err)
	}

	detail := maps.Clone(ours.cost)
	detail["raw_s"] = round(quantile(floor, 0.5).Seconds())
	return result{value: quantile(ours.took, 0.5).Seconds(), baseline: quantile(river, 0.5).Seconds(), detail: detail,
		params: map[string]any{"fan": b.fan, "tasks": tasks, "reps": b.reps, "workers": b.workers}}, nil
}

func fanDAG(width int) (yaml string, tasks int) {
	var y strings.Builder
	y.WriteString("name: fan\njobs:\n  - {name: events, operator: feed, source: {kind: poll, every: 24h}, " +
		"partition_by: key}\n")
	layer := []string{"events"}
	add := func(name string, inputs []string) {
		fmt.Fprintf(&y, "  - {name: %s, operator: emit, inputs: [{from: {job: %s}}]}\n", name,
			strings.Join(inputs, "}}, {from: {job: "))
		tasks++
	}

	tasks = 1
	var wide []string
	for i := range width {
		wide = append(wide, fmt.Sprintf("work%04d", i))
		add(wide[i], layer)
	}

	for level := 1; len(wide) > mostInputs; level++ {
		var joins []string
		for i := 0; i < len(wide); i += mostInputs {
			name := fmt.Sprintf("join%d_%04d", level, i/mostInputs)
			add(name, wide[i:min(i+mostInputs, len(wide))])
			joins = append(joins, name)
		}
		wide = joins
	}

	add("join", wide)
	return y.String(), tasks
}
