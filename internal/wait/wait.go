// Package wait waits. It owns no tables.
package wait

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends: then it returns the cause.
func For(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if d <= 0 {
		return nil
	}

	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// While returns a context for what may last long. Each time d has passed, look says whether it may go on: an error is
// the cause with which the context ends. end must be called when the work has ended.
func While(
	ctx context.Context, d time.Duration, look func(ctx context.Context) error,
) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	looks := time.AfterFunc(d, func() {
		tick := time.NewTicker(d)
		defer tick.Stop()
		for {
			if err := look(ctx); err != nil {
				cancel(err)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return ctx, func() {
		looks.Stop()
		cancel(nil)
	}
}
