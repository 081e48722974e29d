package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/worker/protocol"
)

// scenario is a sequence of tasks and faults that a program goes through.
type scenario struct {
	name string
	play func(*scene)
}

// scene is a scenario that is being played.
type scene struct {
	*runner
	ctx  context.Context
	name string
}

// errOver ends a scenario after a failure that makes the rest pointless. The failure is already recorded.
var errOver = errors.New("over")

// patience is how long a scenario waits for something that should happen at once.
const patience = 15 * time.Second

func (r *runner) run(ctx context.Context, sc scenario) (err error) {
	if err := r.ensure(); err != nil {
		return err
	}
	s := &scene{runner: r, ctx: ctx, name: sc.name}
	defer func() {
		switch p := recover(); {
		case p == nil:
		case p == errOver: //nolint:errorlint // it is never wrapped
			err = ctx.Err()
		default:
			panic(p)
		}
	}()

	sc.play(s)
	return ctx.Err()
}

// expect records a check.
func (s *scene) expect(check string, ok bool, reason string, args ...any) bool {
	c := Check{Scenario: s.name, Check: check, Passed: ok}
	if !ok {
		c.Reason = fmt.Sprintf(reason, args...)
	}
	s.add(c)
	return ok
}

// must records a check that fails, and ends the scenario.
func (s *scene) must(check string, ok bool, reason string, args ...any) {
	if !ok {
		s.expect(check, false, reason, args...)
		panic(errOver)
	}
}

// until waits for a condition on the calls and reports whether it became true in time.
func (s *scene) until(within time.Duration, condition func() bool) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()

	for {
		changed := s.recorder.next()
		if condition() {
			return true
		}

		select {
		case <-changed:
		case <-s.program.ended:
			return condition()
		case <-timer.C:
			return condition()
		case <-s.ctx.Done():
			return false
		}
	}
}

// create makes a task.
func (s *scene) create(handler string, payload any) uuid.UUID {
	id, err := s.backend.Create(s.ctx, handler, payload)
	s.must("the task is created", err == nil, "%v", err)
	return id
}

// createMeeting makes a task whose calls meet a fault. No poll is answered meanwhile: the program could have ended the
// task before the fault is there.
func (s *scene) createMeeting(handler string, payload any, f *fault) uuid.UUID {
	s.recorder.handing.Lock()
	defer s.recorder.handing.Unlock()
	f.task = s.create(handler, payload)
	s.recorder.meet(f)
	return f.task
}

// calls returns the calls about a task to one endpoint.
func (s *scene) calls(task uuid.UUID, endpoint string) []call {
	return s.recorder.find(func(c *call) bool { return c.task == task && c.endpoint == endpoint })
}

// claim waits until the program has claimed an attempt.
func (s *scene) claim(task uuid.UUID, attempt int) protocol.Claim {
	var claim *protocol.Claim
	s.until(patience, func() bool {
		claim = s.claimed(task, attempt)
		return claim != nil
	})
	s.must("the task is claimed", claim != nil, "attempt %d was not claimed within %s%s", attempt, patience, s.state())
	return *claim
}

// claimed returns the claim of an attempt as a poll returned it to the program; nil: none yet.
func (s *scene) claimed(task uuid.UUID, attempt int) *protocol.Claim {
	for _, c := range s.recorder.find(func(c *call) bool { return c.endpoint == pollCall && c.status == 200 }) {
		var answer protocol.PollResponse
		if json.Unmarshal(c.answer, &answer) != nil {
			continue
		}
		for _, claim := range answer.Tasks {
			if claim.Task != nil && claim.Task.TaskID == task && claim.Attempt == attempt {
				return &claim
			}
		}
	}
	return nil
}

// state describes a program that has ended; "" while it runs.
func (s *scene) state() string {
	if s.program.running() {
		return ""
	}
	return fmt.Sprintf("; the program has ended (%v): %s", s.program.err, s.program.output)
}

// completions waits until the server has accepted the end of an attempt, and returns all calls that reported it.
func (s *scene) completions(task uuid.UUID, attempt int, within time.Duration) []call {
	of := func() []call {
		return s.recorder.find(func(c *call) bool {
			return c.endpoint == completeCall && c.task == task && c.attempt == attempt && !c.ended.IsZero()
		})
	}

	ok := s.until(within, func() bool {
		for _, c := range of() {
			if c.status == 200 {
				return true
			}
		}
		return false
	})

	said := ""
	for _, c := range of() {
		said = fmt.Sprintf("; the last call was answered %d: %s", c.status, c.answer)
	}
	s.must("the end is reported", ok, "attempt %d was not ended within %s%s%s", attempt, within, said, s.state())
	return of()
}

// completion returns the completion that the server accepted for an attempt.
func (s *scene) completion(task uuid.UUID, attempt int, within time.Duration) protocol.Completion {
	calls := s.completions(task, attempt, within)
	for _, c := range calls {
		if c.status == 200 {
			var body protocol.Completion
			s.must("the completion is JSON", json.Unmarshal(c.body, &body) == nil, "%s", c.body)
			return body
		}
	}
	panic(errOver)
}

// ends checks that an attempt ends with a status.
func (s *scene) ends(task uuid.UUID, attempt int, want string) protocol.Completion {
	c := s.completion(task, attempt, patience)
	s.expect("the task ends "+want, c.Status == want, "it ended %s: %+v", c.Status, c.Error)
	return c
}

// repeats checks that a call was repeated with the same body.
func (s *scene) repeats(calls []call, least int) {
	s.expect("the call is repeated", len(calls) >= least, "there were %d calls, not %d", len(calls), least)
	for _, c := range calls[1:] {
		if !sameJSON(c.body, calls[0].body) {
			s.expect("with the same body", false, "first %s, then %s", calls[0].body, c.body)
			return
		}
	}
	s.expect("with the same body", true, "")
}

// finally registers a check for the end of the run.
func (s *scene) finally(check func()) { s.later = append(s.later, check) }
