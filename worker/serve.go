package worker

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/dagctl/dagctl/worker/protocol"
)

// Given is a claimed task from a Source.
type Given struct {
	Claim protocol.Claim
	// Done is called after the run, if it is not nil: err is what RunClaim said.
	Done func(err error)
}

// Source is where a worker's tasks come from.
type Source interface {
	// Next waits for claimed tasks, at most max. ErrIdle says that there will be none for long, ErrDrained that the worker
	// is to claim no more; after any other error it is called again.
	Next(ctx context.Context, max int) ([]Given, error)
}

// What a Source says besides tasks.
var (
	ErrIdle    = errors.New("every job of the runtime is idle")
	ErrDrained = errors.New("the worker is drained")
)

// Drain lets the worker finish what it runs and claim no more; then Run ends.
func (w *Worker) Drain() {
	if w.drain.Err() == nil {
		w.cfg.Log.Info("draining: no more tasks are claimed", "worker", w.cfg.ID, "running", w.running.Load())
	}
	w.drainNow(ErrDrained)
}

// Run claims tasks by long poll and runs them until ctx ends, the worker is drained, or the runtime is idle where the
// config says that the worker ends then. What runs when ctx ends has DrainTimeout to come to its end.
func (w *Worker) Run(ctx context.Context) error {
	return w.Serve(ctx, &poll{w})
}

// Serve is Run with tasks from another source.
func (w *Worker) Serve(ctx context.Context, source Source) error {
	if err := w.ready(); err != nil {
		return err
	}
	claiming, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(w.drain, func() { stop(ErrDrained) })()

	// What runs outlives ctx, for as long as the drain lasts.
	running, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(nil)
	registered := make(chan struct{})
	registry, unregister := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(registered)
		w.register(registry)
	}()
	tasks := &sync.WaitGroup{}
	w.claim(claiming, running, source, tasks)
	w.Drain()
	w.finish(ctx, tasks, abandon)
	unregister()
	<-registered
	w.leave(context.WithoutCancel(ctx))
	return nil
}

func (w *Worker) ready() error {
	var problems []error
	if w.cfg.URL == "" {
		problems = append(problems, errors.New("worker: the config has no URL"))
	}
	if w.cfg.Token == "" {
		problems = append(problems, errors.New("worker: the config has no token"))
	}
	if w.cfg.Runtime == "" {
		problems = append(problems, errors.New("worker: the config has no runtime"))
	}
	if operators, _ := w.offer(); len(operators) == 0 {
		problems = append(problems, errors.New("worker: there is nothing that it could run: no handler and no operator"))
	}
	return errors.Join(problems...)
}

// claim takes tasks and starts them while there are free slots, until ctx ends.
func (w *Worker) claim(ctx, running context.Context, source Source, tasks *sync.WaitGroup) {
	slots := make(chan struct{}, w.cfg.PoolSize)
	for failures := 0; ctx.Err() == nil; {
		if !waitForSlots(ctx, slots) {
			return
		}
		given, err := source.Next(ctx, cap(slots)-len(slots)) // only this loop takes slots
		for _, g := range given {                             // even with an error: what was claimed is to be run
			slots <- struct{}{}
			w.running.Add(1)
			tasks.Go(func() {
				defer func() { w.running.Add(-1); <-slots }()
				w.runGiven(running, g)
			})
		}
		switch {
		case errors.Is(err, ErrIdle) && w.cfg.IdleExit && w.running.Load() == 0:
			w.cfg.Log.Info("idle: the worker ends", "worker", w.cfg.ID)
			return
		case errors.Is(err, ErrDrained):
			return
		case err == nil, errors.Is(err, ErrIdle):
			failures = 0
		case ctx.Err() == nil:
			failures++
			w.cfg.Log.Warn("tasks could not be claimed", "worker", w.cfg.ID, "error", err)
			_ = sleep(ctx, pauseAfter(failures, err))
		}
	}
}

// gatherFor is how long the worker waits for more than one free slot, where short tasks end many at a time: a claim of many
// costs the server hardly more than a claim of one.
const gatherFor = 2 * time.Millisecond

// waitForSlots waits until one slot is free, and a moment longer for a quarter of them to be; it is false when ctx ends
// first. Only who waits here takes slots.
func waitForSlots(ctx context.Context, slots chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case slots <- struct{}{}:
	}
	free, moment := 1, time.NewTimer(gatherFor)
	defer moment.Stop()
	for more := true; more && free < cap(slots)/4; {
		select {
		case <-ctx.Done():
			return false
		case <-moment.C:
			more = false
		case slots <- struct{}{}:
			free++
		}
	}
	for range free {
		<-slots
	}
	return true
}

func (w *Worker) runGiven(ctx context.Context, g Given) {
	task := g.Claim.Task
	log := w.cfg.Log.With("org", task.Org, "dag", task.Job.DAGName, "job", task.Job.Name, "task", task.TaskID, "attempt", g.Claim.Attempt)
	err := w.RunClaim(ctx, g.Claim)
	switch {
	case errors.Is(err, ErrFenced), errors.Is(err, ErrConflict):
		log.Warn("the task went on without this attempt", "error", err)
	case errors.Is(err, ErrStopped):
		log.Info("the run was stopped; others take it up")
	case err != nil:
		log.Error("the end of a run could not be told: its lease will run out", "error", err)
	}
	if g.Done != nil {
		g.Done(err)
	}
}

// lastWords is how long runs that were stopped may take to tell how they ended.
const lastWords = 2 * time.Second

// finish waits for what runs: until it is done where the worker is drained, for DrainTimeout once it is told to stop.
func (w *Worker) finish(ctx context.Context, tasks *sync.WaitGroup, abandon context.CancelCauseFunc) {
	done := make(chan struct{})
	go func() { tasks.Wait(); close(done) }()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	w.cfg.Log.Info("stopping", "worker", w.cfg.ID, "running", w.running.Load(), "drain_timeout", w.cfg.DrainTimeout)
	select {
	case <-done:
		return
	case <-time.After(w.cfg.DrainTimeout):
	}
	abandon(ErrStopped)
	select {
	case <-done:
	case <-time.After(lastWords):
		w.exitNow()
	}
}

// beatEvery is how often a worker says that it lives. A server takes it for dead after ten seconds of silence, and gives
// what it ran to others then.
const beatEvery = 3 * time.Second

// register says that the worker lives, until ctx ends, and hears whether somebody drains it.
func (w *Worker) register(ctx context.Context) {
	for n := 0; ; {
		call, cancel := context.WithTimeout(ctx, beatEvery)
		orders, err := w.client.HeartbeatWorker(call, w.beat(false))
		cancel()
		switch {
		case err == nil:
			n = 0
			w.lastBeat.Store(time.Now().UnixNano())
			if orders.Drain {
				w.Drain()
			}
		case ctx.Err() != nil:
			return
		default:
			n++
			w.cfg.Log.Warn("the server does not hear this worker", "worker", w.cfg.ID, "error", err)
		}
		wait := beatEvery
		if n > 0 {
			wait = min(wait, pauseAfter(n, err))
		}
		if sleep(ctx, wait) != nil {
			return
		}
	}
}

// leave says that the worker exits, so that what it still ran goes to others at once.
func (w *Worker) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastWords)
	defer cancel()
	if _, err := w.client.HeartbeatWorker(ctx, w.beat(true)); err != nil {
		w.cfg.Log.Warn("the server did not hear that this worker exits", "worker", w.cfg.ID, "error", err)
	}
}

func (w *Worker) beat(stopping bool) protocol.WorkerHeartbeat {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	operators, handlers := w.offer()
	return protocol.WorkerHeartbeat{WorkerID: w.cfg.ID, Hostname: host, Version: w.cfg.Version, PoolSize: w.cfg.PoolSize,
		CurrentTasks: int(w.running.Load()), Runtimes: slices.DeleteFunc([]string{w.cfg.Runtime}, func(r string) bool { return r == "" }),
		Operators: operators, Handlers: handlers, Stopping: stopping}
}

// Health tells how the worker is, for a load balancer or a scheduler of containers.
type Health struct {
	OK       bool   `json:"ok"` // the server heard of it lately
	Worker   string `json:"worker"`
	Running  int    `json:"running"` // tasks
	Draining bool   `json:"draining"`
	// LastHeartbeat is when the server last answered.
	LastHeartbeat time.Time `json:"last_heartbeat,omitzero"`
}

// heardWithin is how long ago a server must have answered for the worker to count as healthy.
const heardWithin = time.Minute

// Health tells how the worker is at a time.
func (w *Worker) Health(now time.Time) Health {
	h := Health{Worker: w.cfg.ID, Running: int(w.running.Load()), Draining: w.drain.Err() != nil}
	if last := w.lastBeat.Load(); last > 0 {
		h.LastHeartbeat = time.Unix(0, last).UTC()
		h.OK = now.Sub(h.LastHeartbeat) < heardWithin
	}
	return h
}
