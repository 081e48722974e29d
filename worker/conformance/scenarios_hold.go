package conformance

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/late"
)

// A function that lets no other code of its interpreter run for longer than its lease keeps the lease all the same.
func held(s *scene) {
	task := s.hold()
	s.keepsLease(task)
}

// The server is away for a moment meanwhile.
func heldOverRestart(s *scene) {
	task := s.hold()
	err := s.restart(s.ctx, 2*time.Second)
	s.must("the server is back", err == nil, "%v", err)
	s.keepsLease(task)
}

const holdSeconds = LeaseSeconds + 4

// hold starts a task that holds the interpreter, and waits until it runs.
func (s *scene) hold() uuid.UUID {
	task := s.create(Hold, map[string]any{"seconds": holdSeconds})
	s.claim(task, 1)
	return task
}

// keepsLease checks that a task that holds the interpreter completes, with heartbeats all the time.
func (s *scene) keepsLease(task uuid.UUID) {
	c := s.completion(task, 1, holdSeconds*time.Second+patience)
	s.expect("the task ends Completed", c.Status == "Completed", "it ended %s: %+v", c.Status, c.Error)
	last, longest := s.givenAt(task, 1), time.Duration(0)
	for _, beat := range s.calls(task, beatCall) {
		if beat.status == http.StatusOK {
			longest, last = max(longest, beat.began.Sub(last)), beat.began
		}
	}
	longest = max(longest, s.calls(task, completeCall)[0].began.Sub(last))
	s.expect("the lease is kept", longest < LeaseSeconds*time.Second,
		"there was no heartbeat for %s; the lease is of %d s", longest.Round(time.Millisecond), LeaseSeconds)

	next := s.create(Echo, "still here")
	s.expect("the worker goes on", s.completion(next, 1, patience).Status == "Completed",
		"the next task did not complete")
}

// hearWithin is how long a cancel may take to reach a function, whatever its lease.
const hearWithin = 5 * time.Second

var leaseLength = late.Pattern(`"lease_seconds":\s*\d+`)

// The program takes the lease for one of 600 s, so that no heartbeat of the task comes in time.
func canceledWithLongLease(s *scene) {
	var claimed atomic.Bool // then polls that are under way bring tasks of later scenarios
	s.recorder.meet(&fault{endpoint: pollCall, times: 1000, rewrite: func(answer []byte) []byte {
		if claimed.Load() {
			return answer
		}
		return []byte(leaseLength.ReplaceAllString(string(answer), `"lease_seconds":600`))
	}})
	task := s.create(Sleep, sleepFor(120))
	s.claim(task, 1)
	claimed.Store(true)
	s.recorder.forget(pollCall)

	err := s.backend.Cancel(s.ctx, task)
	s.must("the task can be canceled", err == nil, "%v", err)
	asked := time.Now()
	s.ends(task, 1, "Canceled")
	took := s.calls(task, completeCall)[0].began.Sub(asked)
	s.expect("within five seconds", took <= hearWithin, "it took %s", took.Round(time.Millisecond))
}

// The worker token is replaced while a function holds the interpreter: the old one is refused at once, and the new one
// is in the file a moment later.
func rotated(s *scene) {
	task := s.hold()
	old := s.options.Token
	token := s.recorder.rotate(old)
	shown := func(text string) func() bool {
		return func() bool { return s.beatsShow(text, text != old) }
	}

	refused := s.until(patience, shown(old))
	s.must("a heartbeat shows the old token", refused, "there was none within %s%s", patience, s.state())

	s.options.Token = token // of programs that start from now on
	err := s.writeToken(token)
	s.must("the token can be replaced", err == nil, "%v", err)
	s.expect("the worker's heartbeats go on with the new one", s.until(patience, shown(token)),
		"there was none within %s%s", patience, s.state())
	s.keepsLease(task)
}

// beatsShow reports whether a heartbeat of the worker showed a token, and whether the server took it.
func (s *scene) beatsShow(token string, taken bool) bool {
	return len(s.recorder.find(func(c *call) bool {
		return c.endpoint == workerBeatCall && c.header.Get("Authorization") == "Bearer "+token && !c.ended.IsZero() &&
			(c.status == http.StatusOK) == taken
	})) > 0
}
