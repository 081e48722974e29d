// Package patience says how operators ask servers of users that are busy or away: what may pass, how long to wait, and
// when to leave it to another attempt. It owns no tables.
package patience

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/wait"
	"github.com/dagctl/dagctl/operators"
)

// Passes reports whether the status of an answer says that the next answer may be another.
func Passes(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// AskedToWait returns how long an answer asks to wait; 0 if it does not say. A date is compared with the clock of who
// sent it, where the answer has that, or else with now.
func AskedToWait(response *http.Response, now time.Time) time.Duration {
	text := strings.TrimSpace(response.Header.Get("Retry-After"))
	seconds, err := strconv.ParseUint(text, 10, 32)
	if err == nil || errors.Is(err, strconv.ErrRange) { // then it is the highest
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	if theirs, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		now = theirs
	}
	return max(0, at.Sub(now))
}

// firstWait is doubled with each try.
const firstWait = 200 * time.Millisecond

// Guess returns how long to wait after a try, counted from 1, where the answer does not say. Half of it is random.
func Guess(try int) time.Duration {
	most := firstWait << min(try-1, 10)
	return most/2 + rand.N(most/2)
}

// Later is the error of a try after which another may succeed.
type Later struct {
	error
	wait time.Duration // that the answer asks for; 0: it does not say
}

// NewLater returns the error of a try, with the wait that the answer asks for; 0: it does not say.
func NewLater(err error, wait time.Duration) Later { return Later{err, wait} }

// Unwrap returns the error of the try.
func (l Later) Unwrap() error { return l.error }

// Tries are the tries of one request.
type Tries struct {
	Most    int
	Longest time.Duration     // wait between two of them, whatever the answer asks for
	Hint    string            // how to need no longer wait
	Tell    func(text string) // told of waits of a second and more; nil: nobody is
}

// Do tries until it succeeds, fails with another error than Later, or would have to wait for longer than the attempt
// may take: then the error is handed on, and another attempt may succeed.
func (t Tries) Do(ctx context.Context, once func() error) error {
	for try := 1; ; try++ {
		err := once()
		var again Later
		if !errors.As(err, &again) {
			return err
		}
		if try == t.Most {
			return fault.New(fault.Unavailable, "%w, %d times", again.error, try)
		}

		pause := again.wait
		if pause <= 0 {
			pause = Guess(try)
		}
		end, bounded := ctx.Deadline()
		if pause > t.Longest || bounded && time.Until(end) <= pause {
			return fault.New(fault.Unavailable, "%w, and it is to be asked again in %s, which is too long for this "+
				"attempt", again.error, pause.Round(time.Second)).WithHint("%s", t.Hint)
		}
		if pause >= time.Second && t.Tell != nil {
			t.Tell(fmt.Sprintf("%s, waiting for %s", again.error, pause.Round(time.Second)))
		}
		if err := wait.For(ctx, pause); err != nil {
			return err
		}
	}
}

// Pace spreads requests over time. It is safe for concurrent use.
type Pace struct {
	mu   sync.Mutex
	next time.Time // no request is sent before
}

// Turn waits until a request may be sent: rate of them in a second, on average; 0: any number.
func (p *Pace) Turn(ctx context.Context, rate float64) error {
	p.mu.Lock()
	now := time.Now()
	pause := max(0, p.next.Sub(now))
	if rate > 0 {
		p.next = now.Add(pause + time.Duration(float64(time.Second)/rate))
	}
	p.mu.Unlock()
	return wait.For(ctx, pause)
}

// HoldBack lets no request be sent for some time.
func (p *Pace) HoldBack(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := time.Now().Add(d); at.After(p.next) {
		p.next = at
	}
}

// Unanswered returns the error of a request without a whole answer: permanent if its address may not be reached, and
// otherwise Later. what begins its text; of the URL, which may carry a key, nothing is shown.
func Unanswered(ctx context.Context, what string, err error) error {
	if err = operators.Unanswered(ctx, what, err); ctx.Err() != nil || operators.IsPermanent(err) {
		return err
	}
	return Later{err, 0}
}
