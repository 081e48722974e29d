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

// throughputFigure: events are published, each makes tasks, all are claimed and completed under their fence, by one process.
func throughputFigure(ctx context.Context, b *bench) (result, error) {
	ours, err := b.throughput(ctx, load{tasks: b.tasks})
	if err != nil {
		return result{}, err
	}
	river, err := b.riverThroughput(ctx, b.tasks)
	if err != nil {
		return result{}, fmt.Errorf("river: %w", err)
	}
	raw, err := b.rawThroughput(ctx, b.tasks)
	if err != nil {
		return result{}, fmt.Errorf("raw: %w", err)
	}
	detail := maps.Clone(ours.cost)
	detail["river"] = river.cost
	detail["raw_per_s"] = round(raw)
	return result{value: ours.perSecond, baseline: river.perSecond, detail: detail,
		params: map[string]any{"tasks": ours.tasks, "consumers": b.consumers, "publish": b.publish, "workers": b.workers, "conns": b.conns}}, nil
}

// load is a run of the throughput figure, or of one that differs from it in a detail.
type load struct {
	tasks int
	limit int // on the tasks of each job that run at once; 0: none
	// before is called on the database when the DAG serves, during while the tasks run.
	before func(ctx context.Context, dsn string) error
	during func(ctx context.Context, dsn string) error
}

// speed is what a load came to.
type speed struct {
	tasks     int
	perSecond float64
	cost      map[string]any
}

// throughput runs a load on a database of its own.
func (b *bench) throughput(ctx context.Context, l load) (s speed, err error) {
	dsn, drop, err := b.migrated(ctx)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	var caller authz.Caller
	err = b.setUp(ctx, dsn, func(w *world) error {
		if caller, err = w.org(ctx, "bench"); err != nil {
			return err
		}
		return w.deploy(ctx, caller, "wide", wideDAG("wide", b.consumers, l.limit, b.publish))
	})
	if err != nil {
		return s, err
	}
	if l.before != nil {
		if err := l.before(ctx, dsn); err != nil {
			return s, err
		}
	}
	events := max(l.tasks/(b.consumers+1), 1)
	s.tasks = events * (b.consumers + 1)
	meter, err := b.startMeter(ctx, dsn)
	if err != nil {
		return s, err
	}
	took, err := b.drain(ctx, dsn, caller, events, s.tasks, l.during)
	if err != nil {
		return s, err
	}
	s.perSecond = float64(s.tasks) / took.Seconds()
	s.cost, err = meter.stop(ctx, s.tasks)
	b.printServer(ctx, dsn, "throughput", s.tasks)
	return s, err
}

// setUp does what is not measured, in a process of its own as far as the database can tell.
func (b *bench) setUp(ctx context.Context, dsn string, f func(w *world) error) error {
	w, err := b.world(ctx, dsn, runtimes[0])
	if err != nil {
		return err
	}
	return errors.Join(f(w), w.close())
}

// drain publishes events and waits until all that comes of them is done.
func (b *bench) drain(ctx context.Context, dsn string, caller authz.Caller, events, tasks int, during func(context.Context, string) error) (took time.Duration, err error) {
	w, err := b.world(ctx, dsn, runtimes[0])
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	units := make([]operators.Unit, events)
	for i := range units {
		units[i] = unit(fmt.Sprintf("p%07d", i), "1")
	}
	w.feed.put(units)
	beside := make(chan error, 1)
	busy, done := context.WithCancel(ctx)
	defer done()
	if during != nil {
		go func() { beside <- during(busy, dsn) }()
	} else {
		beside <- nil
	}
	start := time.Now()
	if err := w.poll(ctx, caller); err != nil {
		return 0, err
	}
	if err := w.settle(ctx, caller, tasks); err != nil {
		return 0, err
	}
	took = time.Since(start)
	done()
	if err := <-beside; err != nil {
		return 0, err
	}
	w.statements.print(b.stderr, "throughput", tasks)
	return took, w.completed(ctx, tasks)
}

// wideDAG is one source of partitions and jobs that each read every one of them.
func wideDAG(name string, consumers, limit int, publish bool) string {
	var yaml strings.Builder
	fmt.Fprintf(&yaml, "name: %s\njobs:\n  - {name: events, operator: feed, source: {kind: poll, every: 24h}, partition_by: key}\n", name)
	for i := range consumers {
		fmt.Fprintf(&yaml, "  - {name: work%03d, operator: noop, inputs: [{from: {job: events}}], config: {publish: %t}", i, publish)
		if limit > 0 {
			fmt.Fprintf(&yaml, ", scaling: {max_concurrency: %d}", limit)
		}
		yaml.WriteString("}\n")
	}
	return yaml.String()
}
