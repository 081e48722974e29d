package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/clock"
)

// Loop is work that a process repeats. Either Body or Run is set.
type Loop struct {
	Name  string
	Woken <-chan struct{} // wakes the loop before its time; nil: nothing does
	// Body does a part of the work. It is called again at once while it reports that there is more.
	Body func(ctx context.Context, now time.Time) (more bool, err error)
	// Run works until ctx ends.
	Run func(ctx context.Context) error
	// End waits for goroutines that Body has started; nil: it starts none.
	End func()
}

// loops returns the dispatcher's own loops.
func (d *Dispatcher) loops() []Loop {
	return []Loop{
		{Name: "listen", Run: func(ctx context.Context) error { return d.Wakeups.Listen(ctx, d.Pool, d.Log) }},
		{Name: "tell", Run: func(ctx context.Context) error { return d.Wakeups.Notify(ctx, d.Pool, d.Log) }},
		{Name: "route", Woken: d.Wakeups.Route, Body: d.RouteOnce},
		{Name: "promote", Woken: d.Wakeups.Promote, Body: d.PromoteDue},
		{Name: "pressure", Body: d.Pressure.Review},
		{Name: "quotas", Body: d.Pressure.ReviewQuotas},
		{Name: "reap", Body: d.reapInContact},
		{Name: "heartbeat", Body: d.HeartbeatWorker},
		{Name: "clock", Run: d.keepClock},
		{Name: "claim", Run: d.runInProcess},
		{Name: "polls", Run: d.watchPolls},
	}
}

// clockSet is the least by which the database's clock has to be set for loops to look at once what is due by it.
const clockSet = time.Second

// keepClock keeps the process's time that of the database until ctx ends.
func (d *Dispatcher) keepClock(ctx context.Context) error {
	tick := time.NewTicker(clock.Every)
	defer tick.Stop()
	for {
		began, before := time.Now(), clock.Now()
		if err := clock.Measure(ctx, d.Pool); err != nil && ctx.Err() == nil {
			d.Log.Error("the database's clock could not be read, will try again", "error", err)
		}
		if by := clock.Now().Sub(before) - time.Since(began); by.Abs() > clockSet {
			d.Log.Warn("the database's clock was set", "by", by)
			d.Wakeups.All()
			wakeup.Poke(d.Wakeups.Timers)
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Run runs the loops until ctx ends, then hands back the leases of the tasks that it was running. others are the loops
// of other packages, which run beside its own.
func (d *Dispatcher) Run(ctx context.Context, others ...Loop) error {
	defer context.AfterFunc(ctx, d.stop)()
	if err := d.RegisterSoon(ctx); err != nil || ctx.Err() != nil {
		return err
	}

	d.contact.at(clock.Now())
	g, ctx := errgroup.WithContext(ctx)
	for _, l := range append(d.loops(), others...) {
		g.Go(func() error { return d.run(ctx, l) })
	}
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("dispatcher: %w", err)
	}
	return nil
}

// run calls a loop's body whenever the loop is woken, and at least once a Poll. It calls a body that reports more work
// again at once. It logs errors and goes on: the work that failed is still to be done.
func (d *Dispatcher) run(ctx context.Context, l Loop) error {
	if l.End != nil {
		defer l.End()
	}
	if l.Run != nil {
		return l.Run(ctx)
	}

	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.Woken:
		case <-timer.C:
		}

		for {
			more, err := l.Body(ctx, clock.Now())
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				d.Log.Error("loop failed, will go on", "loop", l.Name, "error", err)
			}
			if err != nil || !more {
				break
			}
		}
		timer.Reset(wakeup.Jitter(d.Poll))
	}
}

// Body is the Body of a Loop.
type Body func(ctx context.Context, now time.Time) (more bool, err error)

// HalfTime returns a body that rests after each call for as long as the call took, up to a Poll. It is for bodies that
// are woken by the work they look at: looking at all of a large build after each of its tasks would leave no time for
// the tasks.
func (d *Dispatcher) HalfTime(body Body) Body {
	return func(ctx context.Context, now time.Time) (bool, error) {
		more, err := body(ctx, now)

		rest := time.NewTimer(min(clock.Now().Sub(now), d.Poll))
		defer rest.Stop()
		select {
		case <-ctx.Done():
		case <-rest.C:
		}
		return more, err
	}
}

// AtMostEach returns a body that runs at most once in a period, or again at the next turn if it failed.
func AtMostEach(period time.Duration, body Body) Body {
	var next time.Time
	return func(ctx context.Context, now time.Time) (bool, error) {
		if now.Before(next) {
			return false, nil
		}
		more, err := body(ctx, now)
		if err == nil && !more {
			next = now.Add(period)
		}
		return more, err
	}
}
