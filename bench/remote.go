package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/backends"
)

// No-op tasks that run outside the server's process, measured from the request that enqueues them until the last is
// completed, over loopback HTTP. Each figure is compared with the same number of tasks in the server's own process, and
// with what the service between server and worker achieves by itself with as many messages or events.

// pollFigure: a worker process asks the server for tasks.
func pollFigure(ctx context.Context, b *bench) (result, error) {
	return b.remoteFigure(ctx, func(*elsewhere, context.Context) (runtimeAt, error) {
		return runtimeAt{Backend: backends.Backend{Kind: backends.Poll}, worker: true}, nil
	})
}

// queueFigure: a worker process receives messages from an SQS server.
func queueFigure(ctx context.Context, b *bench) (result, error) {
	return b.remoteFigure(ctx, (*elsewhere).startQueue)
}

// lambdaFigure: the server invokes a function of a Lambda endpoint with each task.
func lambdaFigure(ctx context.Context, b *bench) (result, error) {
	return b.remoteFigure(ctx, (*elsewhere).startFunction)
}

// runtimeAt describes where the tasks of a runtime go.
type runtimeAt struct {
	backends.Backend
	worker bool // a process of ours runs them
	// limit returns the messages or events a second that the service between server and worker handles by itself; nil:
	// there is no service.
	limit func(ctx context.Context, n int) (float64, error)
	stop  func() error // of that service
}

// remoteFigure compares a runtime with the service between it and the server or, without one, with the server's own
// process.
func (b *bench) remoteFigure(
	ctx context.Context, start func(*elsewhere, context.Context) (runtimeAt, error),
) (r result, err error) {
	local, err := b.remote(ctx, nil)
	if err != nil {
		return r, fmt.Errorf("in process: %w", err)
	}
	e := &elsewhere{bench: b, calls: newTally(), aws: newTally()}
	at, err := start(e, ctx)
	if err != nil {
		return r, err
	}

	if at.stop != nil {
		defer func() { err = errors.Join(err, at.stop()) }()
	}
	e.at = at
	s, err := b.remote(ctx, e)
	if err != nil {
		return r, err
	}

	s.cost["rounds_per_s"], s.cost["in_process"] = s.rounds, local.cost
	local.cost["per_s"] = round(local.perSecond)
	r = result{value: s.perSecond, baseline: local.perSecond, detail: s.cost, params: map[string]any{
		"tasks": b.options.remote, "reps": b.reps, "workers": b.workers, "conns": b.conns, "runtime": at.Kind}}
	if at.limit != nil {
		limit, err := at.limit(ctx, b.options.remote)
		if err != nil {
			return r, fmt.Errorf("the limit of %s: %w", at.Kind, err)
		}
		r.baseline = limit
	}
	return r, nil
}

// remote runs rounds of tasks elsewhere, or in this process if e is nil.
func (b *bench) remote(ctx context.Context, e *elsewhere) (s speed, err error) {
	dsn, drop, err := b.migrated(ctx)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, drop()) }()

	var caller authz.Caller
	runtime := runtimes[0]
	if e != nil {
		runtime = runtimes[1]
	}

	err = b.setUp(ctx, dsn, func(w *world) error {
		if caller, err = w.org(ctx, "bench"); err != nil {
			return err
		}
		if e != nil {
			if e.token, err = newWorkerToken(ctx, w, caller); err != nil {
				return err
			}
		}
		return w.deploy(ctx, caller, "asked", fmt.Sprintf("name: asked\njobs:\n  - {name: work, operator: noop, "+
			"runtime: %s, source: {kind: manual}, outputs: 0}\n", runtime))
	})
	if err != nil {
		return s, err
	}

	meter, err := b.startMeter(ctx, dsn)
	if err != nil {
		return s, err
	}
	if e == nil {
		err = b.remoteRounds(ctx, dsn, caller, &s)
	} else {
		err = e.rounds(ctx, dsn, caller, &s)
	}
	if err != nil {
		return s, err
	}

	if s.cost, err = meter.stop(ctx, s.tasks); err != nil {
		return s, err
	}
	if e != nil {
		e.tell(&s)
	}
	b.printServer(ctx, dsn, "remote", s.tasks)
	return s, nil
}

// remoteRounds runs the rounds in the server's own process.
func (b *bench) remoteRounds(ctx context.Context, dsn string, caller authz.Caller, s *speed) (err error) {
	w, err := b.world(ctx, dsn, runtimes[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	return b.askedRounds(ctx, w, caller, w.feed.ran, s)
}

// askedRounds enqueues tasks and waits until they are done, again and again; the first time is not measured. The
// result is the median.
func (b *bench) askedRounds(ctx context.Context, w *world, caller authz.Caller, ran func() int, s *speed) error {
	for rep := range b.reps + 1 {
		start := time.Now()
		for left := b.options.remote; left > 0; left -= askedAtOnce {
			if _, err := w.dispatcher.Enqueue(ctx, caller, "asked", "work",
				make([]dispatcher.EnqueueItem, min(left, askedAtOnce))); err != nil {
				return err
			}
		}
		s.tasks += b.options.remote
		if err := w.settleWhen(ctx, caller, ran, s.tasks); err != nil {
			return err
		}
		if rep > 0 {
			s.rounds = append(s.rounds, round(float64(b.options.remote)/time.Since(start).Seconds()))
		}
	}

	s.perSecond = slices.Sorted(slices.Values(s.rounds))[len(s.rounds)/2]
	w.statements.print(b.stderr, "remote", s.tasks)
	return w.completed(ctx, s.tasks)
}

// askedAtOnce is how many tasks one request may enqueue.
const askedAtOnce = 1000

// tally counts by name.
type tally struct{ counts map[string]*atomic.Int64 }

// The names that are counted.
const (
	httpPoll, httpClaim, httpComplete, httpOther = "task-poll", "task-claim", "task/complete", "other"
	httpCompleteMany                             = "tasks/complete"

	sqsSend, sqsReceive, sqsDelete, sqsDeleteBatch, lambdaInvoke = "SendMessageBatch", "ReceiveMessage",
		"DeleteMessage", "DeleteMessageBatch", "Invoke"
)

func newTally() *tally {
	t := &tally{map[string]*atomic.Int64{}}
	for _, name := range []string{httpPoll, httpClaim, httpComplete, httpCompleteMany, httpOther, sqsSend, sqsReceive,
		sqsDelete, sqsDeleteBatch, lambdaInvoke} {
		t.counts[name] = &atomic.Int64{}
	}
	return t
}

func (t *tally) add(name string) {
	if n, ok := t.counts[name]; ok {
		n.Add(1)
	} else {
		t.counts[httpOther].Add(1)
	}
}

func (t *tally) of(name string) int { return int(t.counts[name].Load()) }

// perTask returns the counts other than 0, each divided by the number of tasks.
func (t *tally) perTask(tasks int) map[string]float64 {
	out := map[string]float64{}
	for name, n := range t.counts {
		if n.Load() > 0 {
			out[name] = round(float64(n.Load()) / float64(tasks))
		}
	}
	return out
}
