package conformance

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/worker/protocol"
)

// scenarios returns the scenarios in the order in which they are played. The last two end the program.
func scenarios() []scenario {
	return []scenario{
		{"registration", registration}, {"normal run", normalRun}, {"side by side", sideBySide},
		{"failing", failing}, {"failing for good", failingForGood}, {"crashing", crashing},
		{"heartbeats", heartbeats}, {"heartbeats refused for a while", shakyHeartbeats},
		{"capability renewed", renewed},
		{"interpreter held", held}, {"interpreter held over a restart", heldOverRestart},
		{"canceled", canceled}, {"canceled between heartbeats", canceledBetweenHeartbeats},
		{"canceled with a long lease", canceledWithLongLease},
		{"fenced off", fencedOff}, {"late completion", lateCompletion},
		{"answer to the completion lost", lostCompletion}, {"server away at the completion", awayAtCompletion},
		{"asked to wait", askedToWait}, {"completion refused", refusedCompletion},
		{"answer to the poll lost", lostPoll}, {"server away at the poll", awayAtPoll},
		{"inputs and outputs", copying}, {"upload and download cut short", brokenCopying},
		{"outputs without rows", withoutRows},
		{"commit while it runs", committing}, {"answer to a commit lost", lostCommit},
		{"secrets", secrets}, {"query", querying},
		{"logs", logs}, {"answer to logs lost", lostLogs}, {"logs accepted in part", partialLogs},
		{"token rotated", rotated},
		{"drained", drained}, {"terminated", terminated},
	}
}

func registration(s *scene) {
	var beat protocol.WorkerHeartbeat
	heard := s.until(patience, func() bool {
		return len(s.recorder.find(func(c *call) bool {
			return c.endpoint == workerBeatCall && c.status == 200 && json.Unmarshal(c.body, &beat) == nil
		})) > 0
	})
	if s.expect("the worker registers", heard, "there was no %s within %s%s", workerBeatCall, patience,
		s.state()) {
		s.expect("it names itself", beat.WorkerID != "", "worker_id is empty")
		s.expect("it serves runtime "+Runtime, slices.Contains(beat.Runtimes, Runtime), "runtimes are %q",
			beat.Runtimes)
		s.expect("it runs four tasks at once", beat.PoolSize >= 4, "pool_size is %d", beat.PoolSize)
		s.expect("it offers the suite's functions", containsAll(beat.Handlers, Handlers()),
			"handlers are %q; needed are %q", beat.Handlers, Handlers())
	}

	var poll protocol.PollRequest
	polled := s.until(patience, func() bool {
		return len(s.recorder.find(func(c *call) bool {
			return c.endpoint == pollCall && json.Unmarshal(c.body, &poll) == nil
		})) > 0
	})
	s.must("it polls", polled, "there was no %s within %s%s", pollCall, patience, s.state())
	s.expect("it polls under the same name", poll.WorkerID == beat.WorkerID, "worker_id is %q, but %q in the heartbeat",
		poll.WorkerID, beat.WorkerID)
	s.expect("it polls for the runtime", poll.Runtime == Runtime, "runtime is %q", poll.Runtime)
	s.expect("it polls for its functions", containsAll(poll.Handlers, Handlers()), "handlers are %q", poll.Handlers)
	s.expect("it asks for no more than it can run", poll.Max >= 1 && poll.Max <= max(beat.PoolSize, 1),
		"max is %d with a pool of %d", poll.Max, beat.PoolSize)
	s.expect("it uses long polls", poll.WaitSeconds >= 1, "wait_seconds is %d: the worker would poll all the time",
		poll.WaitSeconds)

	s.finally(func() {
		silent := s.recorder.find(func(c *call) bool { return c.header.Get(protocol.VersionHeader) != "1" })
		s.expect("every call says "+protocol.VersionHeader+": 1", len(silent) == 0,
			"%d calls do not, the first being %s", len(silent), first(silent))
		mixed := s.recorder.find(func(c *call) bool {
			return strings.HasPrefix(c.path, "/v1/task/") && strings.Contains(c.header.Get("Authorization"),
				s.options.Token)
		})
		s.expect("no call of a task shows the worker's token", len(mixed) == 0, "%d calls do, the first being %s",
			len(mixed), first(mixed))
	})
}

func first(calls []call) string {
	if len(calls) == 0 {
		return ""
	}
	return calls[0].endpoint
}

func containsAll(have, want []string) bool {
	return !slices.ContainsFunc(want, func(name string) bool { return !slices.Contains(have, name) })
}

func normalRun(s *scene) {
	payload := map[string]any{"text": "héllo, wörld ☃", "n": json.Number("9007199254740993"),
		"nested": map[string]any{"list": []any{1, 2.5, nil, true}}}
	task := s.create(Echo, payload)
	claim := s.claim(task, 1)
	c := s.ends(task, 1, "Completed")
	want, err := json.Marshal(payload)
	s.must("the payload is JSON", err == nil, "%v", err)
	s.expect("the result is the payload", sameJSON(c.Result, want), "it is %s, not %s", c.Result, want)
	s.expect("the fence is that of the claim", c.Fence == claim.Fence(), "it is %+v, not %+v", c.Fence, claim.Fence())
	told := s.calls(task, completeCall)
	s.expect("the call shows the capability token",
		told[0].header.Get(protocol.CapabilityHeader) == claim.CapabilityToken,
		"%s is not what the claim gave", protocol.CapabilityHeader)
	s.expect("the end is reported once", len(told) == 1, "there were %d calls", len(told))
}

func sideBySide(s *scene) {
	const seconds = 3
	var tasks []uuid.UUID
	for range 3 {
		tasks = append(tasks, s.create(Sleep, sleepFor(seconds)))
	}
	var longest time.Duration
	for _, task := range tasks {
		s.ends(task, 1, "Completed")
		longest = max(longest, s.calls(task, completeCall)[0].began.Sub(s.givenAt(task, 1)))
	}
	s.expect("tasks run at the same time", longest < 2*seconds*time.Second,
		"three tasks of %d s each, the last of which took %s", seconds, longest.Round(time.Millisecond))
}

func failing(s *scene) {
	task := s.create(Fail, map[string]any{"message": "the source is away", "retryable": true})
	c := s.ends(task, 1, "Failed")
	if s.expect("it says why", c.Error != nil, "the completion has no error") {
		s.expect("with the message", strings.Contains(c.Error.Message, "the source is away"), "the message is %q",
			c.Error.Message)
		s.expect("that another attempt could help", c.Error.Retryable == nil || *c.Error.Retryable,
			"retryable is false")
	}
}

func failingForGood(s *scene) {
	task := s.create(Fail, map[string]any{"message": "there is no such customer", "retryable": false})
	c := s.ends(task, 1, "Failed")
	if s.expect("it says why", c.Error != nil, "the completion has no error") {
		s.expect("with the message", strings.Contains(c.Error.Message, "there is no such customer"),
			"the message is %q", c.Error.Message)
		s.expect("that no other attempt could help", c.Error.Retryable != nil && !*c.Error.Retryable,
			"retryable is not false")
	}
}

func crashing(s *scene) {
	task := s.create(Fail, map[string]any{"crash": true})
	c := s.ends(task, 1, "Failed")
	s.expect("it says why", c.Error != nil && c.Error.Message != "", "the completion has no error")
	next := s.create(Echo, "still here")
	s.expect("the worker goes on", s.completion(next, 1, patience).Status == "Completed",
		"the next task did not complete")
}

// sleepFor returns a payload for Sleep.
func sleepFor(seconds int) map[string]any {
	return map[string]any{"seconds": seconds, "progress": 40, "state": "half way"}
}

func lostPoll(s *scene) {
	s.recorder.meet(&fault{endpoint: pollCall, cut: true})
	lost := s.create(Echo, "given to a poll whose answer is lost")
	cutOff := s.until(patience, func() bool {
		return len(s.recorder.find(func(c *call) bool {
			return c.endpoint == pollCall && c.status == 0 && !c.ended.IsZero()
		})) > 0
	})
	s.must("a poll is cut", cutOff, "there was none within %s%s", patience, s.state())

	// The worker never got the task: its lease expires, as on a server.
	if state, err := s.backend.Task(s.ctx, lost); err == nil && state.Status == "Running" {
		s.must("the lease ends", s.backend.Expire(s.ctx, lost) == nil, "it could not be ended")
		s.ends(lost, 2, "Completed")
		return
	}
	s.ends(lost, 1, "Completed")
}

func awayAtPoll(s *scene) {
	const refused = 5
	s.recorder.meet(&fault{endpoint: pollCall, times: refused, status: http.StatusServiceUnavailable})
	task := s.create(Echo, "when the server is back")
	away := func() []call {
		return s.recorder.find(func(c *call) bool {
			return c.endpoint == pollCall && c.status == http.StatusServiceUnavailable
		})
	}

	// A poll that is under way misses the fault and takes the task. The polls after it are refused.
	s.until(40*time.Second, func() bool { return len(away()) == refused })
	refusals := away()
	s.must("it polls again", len(refusals) == refused, "there were %d polls, not %d, within 40 s%s", len(refusals),
		refused, s.state())

	// One poll may follow at once, because pauses are random; and a worker without pauses may have slow polls.
	shortest := time.Hour
	for i := 2; i < len(refusals); i++ {
		shortest = min(shortest, refusals[i].began.Sub(refusals[i-2].began))
	}
	s.expect("after a pause", shortest >= 100*time.Millisecond,
		"three polls came within %s: a server that is away would be flooded", shortest)
	s.ends(task, 1, "Completed")
}

func drained(s *scene) {
	task := s.create(Sleep, sleepFor(4))
	s.claim(task, 1)
	s.recorder.meet(&fault{endpoint: workerBeatCall, times: 1000, rewrite: func([]byte) []byte {
		return []byte(`{"drain":true}`)
	}})

	var asked time.Time
	told := s.until(patience, func() bool {
		for _, c := range s.recorder.find(func(c *call) bool {
			return c.endpoint == workerBeatCall && strings.Contains(string(c.answer), `"drain":true`)
		}) {
			if asked.IsZero() {
				asked = c.ended
			}
		}
		return !asked.IsZero()
	})

	s.must("a heartbeat asks the worker to drain", told, "there was no %s within %s", workerBeatCall, patience)
	s.ends(task, 1, "Completed")
	s.leaves(asked)
	s.recorder.forget(workerBeatCall)
}

func terminated(s *scene) {
	task := s.create(Sleep, sleepFor(5))
	s.claim(task, 1)
	beating := s.until(patience, func() bool { return len(s.calls(task, beatCall)) > 0 })
	s.must("the task runs", beating, "there was no %s%s", beatCall, s.state())
	asked := time.Now()
	err := s.program.terminate()
	s.must("the program can be told to stop", err == nil, "%v", err)
	s.ends(task, 1, "Completed")
	s.leaves(asked)
}

// leaves checks that the program exits by itself after it was asked to, and claims nothing more.
func (s *scene) leaves(asked time.Time) {
	err := s.program.end(s.ctx, patience)
	if s.expect("the program ends", err == nil, "%v", err) {
		s.expect("without an error", s.program.err == nil, "%v: %s", s.program.err, s.program.output)
	}
	const grace = time.Second // a poll may have been on its way
	polls := s.recorder.find(func(c *call) bool { return c.endpoint == pollCall && c.began.After(asked.Add(grace)) })
	s.expect("it claims no more", len(polls) == 0, "%d polls came after it was asked", len(polls))
	last := s.recorder.find(func(c *call) bool {
		return c.endpoint == workerBeatCall && c.began.After(asked) &&
			strings.Contains(strings.ReplaceAll(string(c.body), " ", ""), `"stopping":true`)
	})
	s.expect("it reports its exit", len(last) > 0, "there was no %s with stopping: true", workerBeatCall)
}
