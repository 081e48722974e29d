package rest

import (
	"context"
	"sync/atomic"
	"time"
)

// Answers 429 come a moment late. A caller that does not wait as long as Retry-After says, but asks again at once,
// would otherwise keep the processors busy with refusals, and so take from others what it is refused itself. Beyond so
// many answers at once none is late, as each of them costs a little memory.
const (
	lateBy   = 100 * time.Millisecond
	mostLate = 1000
)

// refusalDelay makes answers 429 late, and counts those that wait.
type refusalDelay struct{ waiting atomic.Int64 }

// wait waits for the moment by which an answer 429 is late, at most until ctx ends, and returns how long that took.
func (r *refusalDelay) wait(ctx context.Context) time.Duration {
	begun := time.Now()
	defer r.waiting.Add(-1)
	if r.waiting.Add(1) > mostLate {
		return 0
	}
	moment := time.NewTimer(lateBy)
	defer moment.Stop()

	select {
	case <-moment.C:
	case <-ctx.Done():
	}
	return time.Since(begun)
}
