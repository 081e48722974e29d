package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/dagctl/dagctl/internal/wait"
)

// Calls that get no answer, or an answer that asks to come back later, are repeated: first after about firstPause, then
// after twice as long each time, up to longestPause. A restarting server is back well within that.
const (
	firstPause   = 200 * time.Millisecond
	longestPause = 10 * time.Second
)

// pauseAfter returns how long to wait after the n-th failure in a row, counted from 1. Half of it is random, so that
// many workers do not come back at once.
func pauseAfter(n int, err error) time.Duration {
	pause := longestPause
	if n < 7 {
		pause = min(firstPause<<(n-1), longestPause)
	}
	pause = pause/2 + rand.N(pause/2)
	var status *StatusError
	if errors.As(err, &status) {
		pause = max(pause, min(status.RetryAfter, time.Minute))
	}
	return pause
}

// Repeat makes a call until the server accepts or refuses it, or ctx ends.
func Repeat(ctx context.Context, call func(context.Context) error) error {
	for n := 1; ; n++ {
		err := call(ctx)
		if err == nil || refused(err) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if wait.For(ctx, pauseAfter(n, err)) != nil {
			return err // it says more than that the time is up
		}
	}
}
