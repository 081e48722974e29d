package conformance

import (
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/worker/protocol"
)

func heartbeats(s *scene) {
	task := s.create(Sleep, sleepFor(LeaseSeconds+2))
	s.claim(task, 1)
	s.ends(task, 1, "Completed")
	beats := s.calls(task, beatCall)
	s.must("the lease is kept", len(beats) >= 2, "there were %d heartbeats in %d s; the lease is of %d",
		len(beats), LeaseSeconds+2, LeaseSeconds)
	longest := beats[0].began.Sub(s.givenAt(task, 1))
	for i := range beats[1:] {
		longest = max(longest, beats[i+1].began.Sub(beats[i].began))
	}

	s.expect("at a third of its length", longest <= LeaseSeconds*time.Second/2,
		"the longest pause was %s; the lease is of %d s",
		longest.Round(time.Millisecond), LeaseSeconds)
	told := s.recorder.find(func(c *call) bool {
		body := strings.ReplaceAll(string(c.body), " ", "")
		return c.task == task && c.endpoint == beatCall && strings.Contains(body, `"progress":40`) &&
			strings.Contains(body, "halfway")
	})
	s.expect("with the progress", len(told) > 0, "no heartbeat had progress 40 and state %q", "half way")
}

// givenAt returns when the program got an attempt.
func (s *scene) givenAt(task uuid.UUID, attempt int) time.Time {
	for _, c := range s.recorder.find(func(c *call) bool {
		return c.endpoint == pollCall && strings.Contains(string(c.answer), task.String())
	}) {
		if claim := s.claimed(task, attempt); claim != nil &&
			strings.Contains(string(c.answer), claim.LeaseToken.String()) {
			return c.ended
		}
	}
	return time.Time{}
}

func shakyHeartbeats(s *scene) {
	task := s.createMeeting(Sleep, sleepFor(LeaseSeconds+2), &fault{endpoint: beatCall, times: 2,
		status: http.StatusServiceUnavailable})
	s.claim(task, 1)
	s.ends(task, 1, "Completed")
	kept := s.recorder.find(func(c *call) bool {
		return c.task == task && c.endpoint == beatCall && c.status == http.StatusOK
	})
	s.expect("the lease is kept", len(kept) > 0 &&
		kept[0].began.Sub(s.givenAt(task, 1)) < LeaseSeconds*time.Second,
		"no heartbeat arrived before the lease expired")
}

func renewed(s *scene) {
	task := s.create(Sleep, sleepFor(LeaseSeconds))
	claim := s.claim(task, 1)
	token := s.recorder.renew(claim.CapabilityToken)
	s.recorder.meet(&fault{endpoint: beatCall, task: task, rewrite: func(answer []byte) []byte {
		return append(answer[:strings.LastIndex(string(answer), "}")], `,"capability_token":"`+token+`"}`...)
	}})

	s.ends(task, 1, "Completed")
	after := s.recorder.find(func(c *call) bool {
		return c.task == task && strings.HasPrefix(c.path, "/v1/task/") &&
			c.began.After(s.calls(task, beatCall)[0].ended)
	})
	s.must("there are calls after it", len(after) > 0, "there was none")

	old := 0
	for _, c := range after {
		if c.header.Get(protocol.CapabilityHeader) != token {
			old++
		}
	}
	s.expect("later calls show the new token", old == 0, "%d of %d calls showed the old one", old, len(after))
}

func canceled(s *scene) {
	task := s.create(Sleep, sleepFor(120))
	s.claim(task, 1)
	err := s.backend.Cancel(s.ctx, task)
	s.must("the task can be canceled", err == nil, "%v", err)
	s.ends(task, 1, "Canceled")
}

// A cancel reaches the worker by its own heartbeats: those of a task may be far apart.
func canceledBetweenHeartbeats(s *scene) {
	task := s.createMeeting(Sleep, sleepFor(120), &fault{endpoint: beatCall, times: 1000,
		status: http.StatusServiceUnavailable})
	s.claim(task, 1)
	err := s.backend.Cancel(s.ctx, task)
	s.must("the task can be canceled", err == nil, "%v", err)
	s.ends(task, 1, "Canceled")
}

func fencedOff(s *scene) {
	task := s.create(Sleep, sleepFor(120))
	s.claim(task, 1)
	s.must("the task runs", s.until(patience, func() bool {
		return len(s.calls(task, beatCall)) > 0
	}), "there was no heartbeat")

	err := s.backend.Expire(s.ctx, task)
	s.must("the lease ends", err == nil, "%v", err)
	s.claim(task, 2)
	var fenced []call
	s.until(patience, func() bool {
		fenced = s.recorder.find(func(c *call) bool {
			return c.task == task && c.attempt == 1 && c.status == http.StatusConflict
		})
		return len(fenced) > 0
	})

	s.must("the old attempt is refused", len(fenced) > 0, "no call of attempt 1 was refused")
	s.must("the new attempt runs", s.until(patience, func() bool {
		return len(s.recorder.find(func(c *call) bool {
			return c.task == task && c.attempt == 2 && c.endpoint == beatCall
		})) > 1
	}), "attempt 2 has no heartbeats")

	err = s.backend.Cancel(s.ctx, task)
	s.must("the new attempt can be canceled", err == nil, "%v", err)
	s.ends(task, 2, "Canceled")
	s.finally(func() {
		late := s.recorder.find(func(c *call) bool {
			return c.task == task && c.attempt == 1 && c.began.After(fenced[0].ended.Add(500*time.Millisecond)) &&
				c.endpoint != logsCall
		})
		s.expect("the old attempt is stopped", len(late) == 0,
			"it made %d calls after it was refused, the first being %s", len(late), first(late))
	})
}

func lateCompletion(s *scene) {
	task := s.createMeeting(Echo, "twice", &fault{endpoint: completeCall, before: func(task uuid.UUID) {
		if s.backend.Expire(s.ctx, task) == nil {
			s.until(patience, func() bool { return s.claimed(task, 2) != nil })
		}
	}})

	s.claim(task, 2)
	s.ends(task, 2, "Completed")
	s.must("the old attempt is refused", s.until(patience, func() bool {
		return len(s.recorder.find(func(c *call) bool {
			return c.task == task && c.attempt == 1 && c.endpoint == completeCall && c.status == http.StatusConflict
		})) > 0
	}), "no completion of attempt 1 was answered 409")

	s.finally(func() {
		told := s.recorder.find(func(c *call) bool {
			return c.task == task && c.attempt == 1 && c.endpoint == completeCall
		})
		s.expect("it is reported once", len(told) == 1, "attempt 1 was completed %d times", len(told))
	})
}

func lostCompletion(s *scene) {
	task := s.createMeeting(Echo, "heard twice", &fault{endpoint: completeCall, cut: true})
	s.repeats(s.completions(task, 1, patience), 2)
	state, err := s.backend.Task(s.ctx, task)
	s.expect("the task is Completed", err == nil && state.Status == "Completed" && state.Attempt == 1,
		"it is %s, attempt %d (%v)", state.Status, state.Attempt, err)
}

func awayAtCompletion(s *scene) {
	task := s.createMeeting(Echo, "again and again", &fault{endpoint: completeCall, times: 3,
		status: http.StatusServiceUnavailable})
	calls := s.completions(task, 1, 45*time.Second)
	s.repeats(calls, 4)
	pause := calls[len(calls)-1].began.Sub(calls[0].began)
	s.expect("after pauses", pause >= 200*time.Millisecond,
		"four calls came within %s: a server that is away would be flooded", pause)
}

func askedToWait(s *scene) {
	task := s.createMeeting(Echo, "later", &fault{endpoint: completeCall, status: http.StatusTooManyRequests,
		header: http.Header{"Retry-After": {"2"}}})
	calls := s.completions(task, 1, patience)
	s.repeats(calls, 2)
	pause := calls[len(calls)-1].began.Sub(calls[0].began)
	s.expect("not before Retry-After", pause >= 1900*time.Millisecond, "it came after %s, not 2 s",
		pause.Round(time.Millisecond))
}

func refusedCompletion(s *scene) {
	task := s.createMeeting(Echo, "not taken", &fault{endpoint: completeCall, status: http.StatusUnprocessableEntity})
	c := s.completion(task, 1, patience)
	s.expect("the task is reported Failed", c.Status == "Failed" && c.Error != nil,
		"it was reported %s: the server will not accept it later either, and the lease would expire", c.Status)
}
