package worker

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/wait"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Given is a claimed task from a Source.
type Given struct {
	Claim protocol.Claim
	// Done is called after the run, unless it is nil. err is what RunClaim returned.
	Done func(err error)
}

// Source provides a worker's tasks.
type Source interface {
	// Next waits for claimed tasks, at most max. It returns ErrIdle when no tasks are to be expected for long, and
	// ErrDrained when the worker must claim no more. After any other error it is called again.
	Next(ctx context.Context, max int) ([]Given, error)
}

// What a Source returns besides tasks.
var (
	ErrIdle    = errors.New("every job of the runtime is idle")
	ErrDrained = errors.New("the worker is drained")
)

// Drain makes the worker finish its tasks and claim no more; then Run returns.
func (w *Worker) Drain() {
	if w.drain.Err() == nil {
		w.cfg.Log.Info("draining: no more tasks are claimed", "worker", w.cfg.ID, "running", w.running.Load())
	}
	w.drainNow(ErrDrained)
}

// Run claims tasks by long poll and runs them. It returns when ctx ends, when the worker is drained, and, with
// Config.IdleExit, when the runtime is idle. Tasks that run when ctx ends have DrainTimeout to finish.
func (w *Worker) Run(ctx context.Context) error {
	return w.Serve(ctx, &poll{w})
}

// Serve is like Run, with tasks from another source.
func (w *Worker) Serve(ctx context.Context, source Source) error {
	if err := w.ready(); err != nil {
		return err
	}
	w.sweep()
	claiming, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(w.drain, func() { stop(ErrDrained) })()

	// Running tasks outlive ctx by the time that draining takes.
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
	if w.client.token.read() == "" {
		problems = append(problems, errors.New("worker: the config has no token"))
	}
	if w.cfg.Runtime == "" {
		problems = append(problems, errors.New("worker: the config has no runtime"))
	}

	if operators, _ := w.offer(); len(operators) == 0 {
		problems = append(problems, errors.New("worker: it has nothing to run: no handler and no "+
			"operator"))
	}
	return errors.Join(problems...)
}

// claim claims and starts tasks while there are free slots, until ctx ends.
func (w *Worker) claim(ctx, running context.Context, source Source, tasks *sync.WaitGroup) {
	slots := make(chan struct{}, w.cfg.PoolSize)
	for failures := 0; ctx.Err() == nil; {
		if !waitForSlots(ctx, slots) {
			return
		}
		given, err := source.Next(ctx, cap(slots)-len(slots))
		w.running.Add(int64(len(given))) // all before the first runs: one that ends waits for those that will
		for _, g := range given {        // even after an error: tasks that were claimed must run
			slots <- struct{}{}
			tasks.Go(func() {
				defer func() { w.running.Add(-1); <-slots }()
				w.runGiven(running, g)
			})
		}

		switch {
		case errors.Is(err, ErrIdle) && w.cfg.IdleExit && w.running.Load() == 0:
			w.cfg.Log.Info("idle: the worker exits", "worker", w.cfg.ID)
			return
		case errors.Is(err, ErrDrained):
			return
		case err == nil, errors.Is(err, ErrIdle):
			failures = 0
		case ctx.Err() == nil:
			failures++
			w.cfg.Log.Warn("tasks could not be claimed", "worker", w.cfg.ID, "error", err)
			_ = wait.For(ctx, pauseAfter(failures, err))
		}
	}
}

// gatherFor is how long the worker waits for more than one free slot. Where short tasks end many at a time, one claim
// of many tasks costs the server hardly more than a claim of one.
const gatherFor = 2 * time.Millisecond

// waitForSlots waits until a slot is free, and a moment longer for a quarter of them. It reports whether it got there
// before ctx ended. Only its caller takes slots, so they are still free when it returns.
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
	log := w.cfg.Log.With("org", task.Org, "dag", task.Job.DAGName, "job", task.Job.Name, "task", task.TaskID,
		"attempt", g.Claim.Attempt)
	err := w.RunClaim(ctx, g.Claim)
	switch {
	case errors.Is(err, ErrFenced), errors.Is(err, ErrConflict):
		log.Warn("the task continues without this attempt", "error", err)
	case errors.Is(err, ErrStopped):
		log.Info("the run was stopped; the task goes to another worker")
	case err != nil:
		log.Error("the end of a run could not be reported; its lease will expire", "error", err)
	}

	if g.Done != nil {
		g.Done(err)
	}
}

// lastWords is how long stopped runs may take to report their end.
const lastWords = 2 * time.Second

// finish waits for running tasks: until they end if the worker is drained, and for DrainTimeout once ctx has ended.
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

// beatEvery is the interval of a worker's heartbeats. A server takes a worker for dead after ten seconds of silence and
// gives its tasks to others.
const beatEvery = 3 * time.Second

// register sends the worker's heartbeats until ctx ends, and drains the worker when the server asks for it.
func (w *Worker) register(ctx context.Context) {
	for n := 0; ; {
		w.tellBy(w.client.token.read())
		call, cancel := context.WithTimeout(ctx, beatEvery)
		orders, err := w.client.HeartbeatWorker(call, w.beat(false))
		cancel()
		switch {
		case err == nil:
			n = 0
			w.lastBeat.Store(time.Now().UnixNano())
			w.cancel(orders.Canceled)
			if orders.Drain {
				w.Drain()
			}
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrConflict): // another process has the id by now, and the leases of this one are over
			w.cfg.Log.Error("the worker was replaced", "worker", w.cfg.ID, "error", err)
			w.Drain()
			return
		default:
			n++
			w.cfg.Log.Warn("the worker's heartbeat failed", "worker", w.cfg.ID, "error", err)
		}

		pause := beatEvery
		if n > 0 {
			pause = min(pause, pauseAfter(n, err))
		}
		if wait.For(ctx, pause) != nil {
			return
		}
	}
}

// tellBy notes the token of the worker's heartbeats. The server knows a task by the token that claimed it, so after a
// rotation the tasks that run hear of a cancel by their own heartbeats.
func (w *Worker) tellBy(token string) {
	if before := w.told.Swap(token); before == nil || before == token {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for t := range w.runs {
		t.wake()
	}
}

// cancel stops the runs of tasks.
func (w *Worker) cancel(canceled []uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for t := range w.runs {
		if slices.Contains(canceled, t.TaskID) {
			t.stop(ErrCanceled)
		}
	}
}

// leave reports that the worker exits, so that its unfinished tasks go to others at once.
func (w *Worker) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastWords)
	defer cancel()
	if _, err := w.client.HeartbeatWorker(ctx, w.beat(true)); err != nil {
		w.cfg.Log.Warn("the worker's exit could not be reported", "worker", w.cfg.ID, "error", err)
	}
}

func (w *Worker) beat(stopping bool) protocol.WorkerHeartbeat {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	operators, handlers := w.offer()
	return protocol.WorkerHeartbeat{WorkerID: w.cfg.ID, Incarnation: w.incarnation, Hostname: host,
		Version: w.cfg.Version, PoolSize: w.cfg.PoolSize,
		CurrentTasks: int(w.running.Load()), Runtimes: slices.DeleteFunc([]string{w.cfg.Runtime}, func(r string) bool {
			return r == ""
		}),
		Operators: operators, Handlers: handlers, Stopping: stopping}
}

// Health is the state of a worker, for a load balancer or a container scheduler.
type Health struct {
	OK       bool   `json:"ok"` // a heartbeat succeeded lately
	Worker   string `json:"worker"`
	Running  int    `json:"running"` // tasks
	Draining bool   `json:"draining"`
	// LastHeartbeat is when the server last answered.
	LastHeartbeat time.Time `json:"last_heartbeat,omitzero"`
}

// heardWithin is how recent the last successful heartbeat of a healthy worker is.
const heardWithin = time.Minute

// Health returns the worker's state at a time.
func (w *Worker) Health(now time.Time) Health {
	h := Health{Worker: w.cfg.ID, Running: int(w.running.Load()), Draining: w.drain.Err() != nil}
	if last := w.lastBeat.Load(); last > 0 {
		h.LastHeartbeat = time.Unix(0, last).UTC()
		h.OK = now.Sub(h.LastHeartbeat) < heardWithin
	}
	return h
}
