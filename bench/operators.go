package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/operators"
)

// Operators that do nothing, so that dagctl alone is measured.

// feed is the source of all work: it provides the units to read and observes every run.
type feed struct {
	mu      sync.Mutex
	units   []operators.Unit
	started func(t *operators.Task, at time.Time) // called at the start of every run, unless nil
	runs    int                                   // started runs
	running map[string]int                        // by job
	most    map[string]int                        // at once, by job
	parquet []byte                                // one row, the output of publishing tasks
}

func newFeed(ctx context.Context, scratch string) (*feed, error) {
	session, err := duck.Open(ctx, duck.Config{AnyPath: true, Threads: 1})
	if err != nil {
		return nil, err
	}
	defer session.Close()
	file := filepath.Join(scratch, "row.parquet")
	if _, err := session.CopyToParquet(ctx, "SELECT 1 AS n", file); err != nil {
		return nil, err
	}
	f := &feed{running: map[string]int{}, most: map[string]int{}}
	f.parquet, err = os.ReadFile(file)
	return f, err
}

func (f *feed) operators(engines *engine.Engines) (*operators.Registry, error) {
	return operators.NewRegistry(engines, feedSource{f}, noop{f}, emit{f})
}

// put replaces the units that the source's next poll finds.
func (f *feed) put(units []operators.Unit) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.units = units
}

// watch sets a function that is called when a run starts.
func (f *feed) watch(started func(t *operators.Task, at time.Time)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = started
}

// ran returns how many runs have started.
func (f *feed) ran() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.runs
}

// mostOf returns the highest number of runs of a job at once.
func (f *feed) mostOf(job string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most[job]
}

// begin records the start of a run and returns a function that records its end.
func (f *feed) begin(t *operators.Task) (end func()) {
	f.mu.Lock()
	f.runs++
	f.running[t.Job]++
	f.most[t.Job] = max(f.most[t.Job], f.running[t.Job])
	started := f.started
	f.mu.Unlock()
	if started != nil {
		started(t, time.Now())
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.running[t.Job]--
	}
}

// publish writes the row into each output.
func (f *feed) publish(t *operators.Task) error {
	for _, dir := range t.OutputDirs {
		if err := os.WriteFile(filepath.Join(dir, "row.parquet"), f.parquet, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// feedSource publishes a partition for each unit.
type feedSource struct{ feed *feed }

func (feedSource) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{Name: "feed", Version: "1.0.0", Source: true, Replayable: true, Effect: dag.EffectInternal,
		ConfigSchema: json.RawMessage(`{"type": "object"}`)}
}

func (o feedSource) Enumerate(context.Context, operators.Enumeration) ([]operators.Unit, error) {
	o.feed.mu.Lock()
	defer o.feed.mu.Unlock()
	return o.feed.units, nil
}

func (o feedSource) Run(_ context.Context, t *operators.Task) (operators.Result, error) {
	defer o.feed.begin(t)()
	var version string
	if err := json.Unmarshal(t.Payload, &version); err != nil {
		return operators.Result{}, operators.Permanent(err)
	}
	return operators.Result{SourceVersion: version}, o.feed.publish(t)
}

// unit returns the unit of a partition.
func unit(partition, version string) operators.Unit {
	payload, _ := json.Marshal(version)
	return operators.Unit{Partition: partition, Version: version, Payload: payload}
}

// noop does nothing and reports that nothing is new.
type noop struct{ feed *feed }

func (noop) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{Name: "noop", Version: "1.0.0", Source: true, Reactive: true, Effect: dag.EffectInternal,
		NoFiles:      true,
		ConfigSchema: json.RawMessage(`{"type": "object"}`)}
}

func (o noop) Run(_ context.Context, t *operators.Task) (operators.Result, error) {
	defer o.feed.begin(t)()
	return operators.Result{Unchanged: true}, nil
}

// emit publishes one row, whatever it reads.
type emit struct{ feed *feed }

func (emit) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{Name: "emit", Version: "1.0.0", Reactive: true, Effect: dag.EffectInternal,
		ConfigSchema: json.RawMessage(`{"type": "object"}`)}
}

func (o emit) Run(_ context.Context, t *operators.Task) (operators.Result, error) {
	defer o.feed.begin(t)()
	return operators.Result{}, o.feed.publish(t)
}
