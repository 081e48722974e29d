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

// throughputFigure: events are published, each creates tasks, and one process claims and completes all of them under
// their fence.
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
		params: map[string]any{"tasks": ours.tasks, "consumers": b.consumers, "publish": b.publish,
			"workers": b.workers, "conns": b.conns}}, nil
}

// load is a variant of the throughput figure.
type load struct {
	tasks  int
	limits []int // limits on a job's tasks at once, assigned to the jobs in turn
	// before is called on the database once the DAG is active.
	before func(ctx context.Context, dsn string) error
	// during is called while the tasks run. It returns when its context ends, at the latest. The load is repeated until
	// it has returned.
	during func(ctx context.Context, dsn string) error
}

// speed is the result of a load.
type speed struct {
	tasks     int
	perSecond float64
	rounds    []float64 // tasks a second, where there were several
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
		return w.deploy(ctx, caller, "wide", wideDAG(b.consumers, l.limits, b.publish))
	})
	if err != nil {
		return s, err
	}
	if l.before != nil {
		if err := l.before(ctx, dsn); err != nil {
			return s, err
		}
	}

	meter, err := b.startMeter(ctx, dsn)
	if err != nil {
		return s, err
	}
	if err := b.drain(ctx, dsn, caller, l, &s); err != nil {
		return s, err
	}

	s.cost, err = meter.stop(ctx, s.tasks)
	b.printServer(ctx, dsn, "throughput", s.tasks)
	return s, err
}

// setUp does the unmeasured preparation with connections of its own, so that they are not counted.
func (b *bench) setUp(ctx context.Context, dsn string, f func(w *world) error) error {
	w, err := b.world(ctx, dsn, runtimes[0])
	if err != nil {
		return err
	}
	return errors.Join(f(w), w.close())
}

// drain publishes events and waits until all resulting tasks are done, round after round.
func (b *bench) drain(ctx context.Context, dsn string, caller authz.Caller, l load, s *speed) (err error) {
	w, err := b.world(ctx, dsn, runtimes[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()

	var done int
	if err := w.pool.QueryRow(ctx, `SELECT count(*) FROM tasks`).Scan(&done); err != nil {
		return err
	}
	beside := make(chan error, 1)
	busy, stop := context.WithCancel(ctx)
	defer stop()

	if l.during != nil {
		go func() { beside <- l.during(busy, dsn) }()
	} else {
		beside <- nil
	}

	events := max(l.tasks/(b.consumers+1), 1)
	start := time.Now()
	for over := false; !over; {
		began := time.Now()
		w.feed.put(partitions(len(s.rounds), events))
		s.tasks += events * (b.consumers + 1)
		if err := w.poll(ctx, caller); err != nil {
			return err
		}
		if err := w.settle(ctx, caller, s.tasks); err != nil {
			return err
		}
		s.rounds = append(s.rounds, round(float64(events*(b.consumers+1))/time.Since(began).Seconds()))
		select {
		case err := <-beside:
			if over = true; err != nil {
				return err
			}
		default:
		}
	}

	s.perSecond = float64(s.tasks) / time.Since(start).Seconds()
	w.statements.print(b.stderr, "throughput", s.tasks)
	for i, limit := range l.limits[:min(len(l.limits), b.consumers)] {
		if most := w.feed.mostOf(workName(i)); most > limit {
			return fmt.Errorf("%d tasks of a job ran at once; its limit is %d", most, limit)
		}
	}
	return w.completed(ctx, done+s.tasks)
}

// partitions returns the units of a round.
func partitions(round, n int) []operators.Unit {
	units := make([]operators.Unit, n)
	for i := range units {
		units[i] = unit(fmt.Sprintf("r%d-%07d", round, i), "1")
	}
	return units
}

func workName(i int) string { return fmt.Sprintf("work%03d", i) }

// wideDAG returns a DAG of one source and jobs that each read every partition of it.
func wideDAG(consumers int, limits []int, publish bool) string {
	var yaml strings.Builder
	yaml.WriteString("name: wide\njobs:\n  - {name: events, operator: feed, source: {kind: poll, every: 24h}, " +
		"partition_by: key}\n")
	operator := "noop"
	if publish {
		operator = "emit"
	}

	for i := range consumers {
		fmt.Fprintf(&yaml, "  - {name: %s, operator: %s, inputs: [{from: {job: events}}]", workName(i), operator)
		if len(limits) > 0 {
			fmt.Fprintf(&yaml, ", scaling: {max_concurrency: %d}", limits[i%len(limits)])
		}
		yaml.WriteString("}\n")
	}
	return yaml.String()
}
