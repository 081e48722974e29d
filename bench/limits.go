package main

import "context"

// limitsFigure: throughput where a third each of the jobs may run 1, 3 and 20 tasks at once; the baseline has no
// limits. It also checks that no limit was ever exceeded.
func limitsFigure(ctx context.Context, b *bench) (result, error) {
	return b.beside(ctx, load{tasks: b.tasks, limits: []int{1, 3, 20}}, map[string]any{"limits": []int{1, 3, 20}})
}

// beside compares a load with a plain load of the same number of tasks.
func (b *bench) beside(ctx context.Context, special load, params map[string]any) (result, error) {
	plain, err := b.throughput(ctx, load{tasks: special.tasks})
	if err != nil {
		return result{}, err
	}
	s, err := b.throughput(ctx, special)
	if err != nil {
		return result{}, err
	}

	params["tasks"], params["consumers"], params["publish"], params["workers"] = s.tasks, b.consumers, b.publish,
		b.workers
	s.cost["without"] = plain.cost
	if len(s.rounds) > 1 {
		s.cost["rounds_per_s"] = s.rounds
	}
	return result{value: s.perSecond, baseline: plain.perSecond, params: params, detail: s.cost}, nil
}
