package rest

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/dagctl/dagctl/internal/fault"
)

// maxBuckets bounds a Limiter's memory. Beyond it, buckets that are full again are dropped.
const maxBuckets = 10_000

// Limiter gives every caller a token bucket of its own. It counts only within this process: its purpose is to stop a
// runaway client, not to bill.
type Limiter struct {
	perSecond rate.Limit
	burst     int

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
}

// NewLimiter returns a Limiter that allows each caller perSecond requests on average and burst at once.
func NewLimiter(perSecond float64, burst int) (*Limiter, error) {
	if perSecond <= 0 || burst < 1 {
		return nil, fmt.Errorf("new limiter: %g per second with a burst of %d allows no request", perSecond, burst)
	}
	return &Limiter{perSecond: rate.Limit(perSecond), burst: burst, buckets: map[string]*rate.Limiter{}}, nil
}

// Take takes one token from the caller's bucket, or returns an error with the time to wait. A nil Limiter has no limit.
func (l *Limiter) Take(caller string, now time.Time) error {
	if l == nil {
		return nil
	}
	reservation := l.bucket(caller, now).ReserveN(now, 1)
	wait := reservation.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	reservation.CancelAt(now)
	return RetryAfter(fault.New(fault.TooMany, "more than %g requests per second", float64(l.perSecond)).
		WithHint("wait as long as Retry-After says"), wait)
}

// Has returns how long it takes until Take returns no error; zero: now. It takes nothing.
func (l *Limiter) Has(caller string, now time.Time) (wait time.Duration) {
	if l == nil {
		return 0
	}
	reservation := l.bucket(caller, now).ReserveN(now, 1)
	defer reservation.CancelAt(now)
	return reservation.DelayFrom(now)
}

func (l *Limiter) bucket(caller string, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.buckets[caller]
	if !ok {
		if len(l.buckets) >= maxBuckets {
			l.dropFull(now)
		}
		b = rate.NewLimiter(l.perSecond, l.burst)
		l.buckets[caller] = b
	}
	return b
}

// dropFull drops full buckets, which are the same as new ones.
func (l *Limiter) dropFull(now time.Time) {
	for caller, b := range l.buckets {
		if b.TokensAt(now) >= float64(l.burst) {
			delete(l.buckets, caller)
		}
	}
}
