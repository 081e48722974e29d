package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/worker/protocol"
)

func copying(s *scene) {
	task := s.create(Copy, nil)
	claim := s.claim(task, 1)
	c := s.ends(task, 1, "Completed")
	s.expect("the result counts the rows", sameJSON(c.Result, []byte(`{"rows":3}`)), "it is %s", c.Result)
	s.expect("the completion names the output", len(c.Outputs) == 1 && c.Outputs[0].Index == 0, "outputs are %+v",
		c.Outputs)

	for _, endpoint := range []string{downloadCall, uploadCall} {
		calls := s.calls(task, endpoint)
		s.must(endpoint+" is called", len(calls) > 0, "it is not")
		h := calls[0].header
		s.expect(endpoint+" shows its fence in headers",
			h.Get(protocol.LeaseTokenHeader) == claim.LeaseToken.String() && h.Get(protocol.AttemptHeader) == "1",
			"%s is %q, %s is %q", protocol.LeaseTokenHeader, h.Get(protocol.LeaseTokenHeader), protocol.AttemptHeader,
			h.Get(protocol.AttemptHeader))
		s.expect(endpoint+" names its format", strings.Contains(calls[0].path, "format="), "the call is %s",
			calls[0].path)
	}
	s.published(task)
}

// withoutRows checks that a function without rows leaves it to the server to empty the output, and that a function that
// found nothing new says so.
func withoutRows(s *scene) {
	c := s.ends(s.create(NoRows, map[string]any{"unchanged": false}), 1, "Completed")
	s.expect("an output without rows is not declared unchanged", !c.Unchanged,
		"unchanged is true, so the old rows would stay")

	c = s.ends(s.create(NoRows, map[string]any{"unchanged": true}), 1, "Completed")
	s.expect("an output that stays as it is is declared unchanged", c.Unchanged,
		"unchanged is false, so the output would lose its rows")
	s.expect("with no outputs beside it", len(c.Outputs) == 0, "outputs are %+v", c.Outputs)
}

// published checks that the output has the rows of the input.
func (s *scene) published(task uuid.UUID) {
	rows, err := s.backend.Output(s.ctx, task)
	s.must("the output can be read", err == nil, "%v", err)
	got, want := texts(rows), texts(Rows())
	s.expect("the rows arrive unchanged", got == want, "they are %s, not %s", got, want)
}

func texts(rows []map[string]any) string {
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&b, "(%v, %v)", row["n"], row["s"])
	}
	return b.String()
}

func brokenCopying(s *scene) {
	s.recorder.meet(&fault{endpoint: downloadCall, half: true})
	s.recorder.meet(&fault{endpoint: uploadCall, cut: true})
	task := s.create(Copy, nil)
	s.ends(task, 1, "Completed")
	downloads := s.calls(task, downloadCall)
	s.expect("a download that is cut short is repeated", len(downloads) >= 2, "it was made %d times", len(downloads))
	uploads := s.calls(task, uploadCall)
	s.expect("an upload without an answer is repeated", len(uploads) >= 2 && uploads[0].path == uploads[1].path &&
		bytes.Equal(uploads[0].body, uploads[1].body),
		"there were %d uploads; the second must put the same file again", len(uploads))
	s.published(task)
}

// toCommit returns a payload for Commit.
func toCommit() map[string]any {
	return map[string]any{"state": map[string]any{"page": 7},
		"tasks": []any{map[string]any{"job": "echo", "idempotency_key": uuid.NewString(),
			"payload": map[string]any{"from": "commit"}}}}
}

func committing(s *scene) {
	payload := toCommit()
	task := s.create(Commit, payload)
	c := s.ends(task, 1, "Completed")
	calls := s.calls(task, eventsCall)
	s.must("it commits while it runs", len(calls) == 1 && calls[0].status == http.StatusOK, "there were %d calls of %s",
		len(calls), eventsCall)
	var body protocol.Events
	s.must("the call is JSON", json.Unmarshal(calls[0].body, &body) == nil, "%s", calls[0].body)
	s.expect("with the state", sameJSON(body.OperatorState, []byte(`{"page":7}`)), "operator_state is %s",
		body.OperatorState)
	s.expect("with the task", len(body.Tasks) == 1 && body.Tasks[0].Job == "echo" &&
		sameJSON(body.Tasks[0].Payload, []byte(`{"from":"commit"}`)), "tasks are %+v", body.Tasks)
	s.expect("the completion does not repeat what was committed", len(c.Tasks) == 0 && len(c.OperatorState) == 0,
		"the completion has %d tasks and state %s", len(c.Tasks), c.OperatorState)
	s.made(calls[0], c)
}

// made checks that the function got the ids of the tasks and that the tasks run.
func (s *scene) made(committed call, c protocol.Completion) {
	var answer protocol.EventsAnswer
	s.must("the answer is JSON", json.Unmarshal(committed.answer, &answer) == nil && len(answer.Tasks) == 1, "%s",
		committed.answer)
	want, err := json.Marshal(map[string]any{"tasks": answer.Tasks})
	s.expect("the function gets the answer", err == nil && sameJSON(c.Result, want), "the result is %s, not %s",
		c.Result, want)
	s.ends(answer.Tasks[0], 1, "Completed")
}

func lostCommit(s *scene) {
	task := s.createMeeting(Commit, toCommit(), &fault{endpoint: eventsCall, cut: true})
	c := s.ends(task, 1, "Completed")
	calls := s.calls(task, eventsCall)
	s.must("there is a commit", len(calls) > 0, "there is none")
	s.repeats(calls, 2)
	s.made(calls[len(calls)-1], c)
}

func secrets(s *scene) {
	task := s.create(Secrets, nil)
	c := s.ends(task, 1, "Completed")
	s.expect("the function gets the secret", sameJSON(c.Result,
		fmt.Appendf(nil, `{%q:%d}`, SecretName, len(SecretValue))), "the result is %s", c.Result)
	leaked := s.recorder.find(func(c *call) bool {
		return c.task == task && bytes.Contains(c.body, []byte(SecretValue))
	})
	s.expect("no call contains its value", len(leaked) == 0, "%s has", first(leaked))
}

func querying(s *scene) {
	task := s.create(Query, nil)
	c := s.ends(task, 1, "Completed")
	s.expect("the function gets the rows", sameJSON(c.Result, []byte(`{"rows":[[3,6]]}`)), "the result is %s", c.Result)
}

const loggedLines = 40

func logs(s *scene) {
	task := s.create(Log, map[string]any{"lines": loggedLines})
	s.ends(task, 1, "Completed")
	s.logged(task)
}

func lostLogs(s *scene) {
	task := s.createMeeting(Log, map[string]any{"lines": loggedLines},
		&fault{endpoint: logsCall, cut: true})
	s.ends(task, 1, "Completed")
	calls := s.calls(task, logsCall)
	s.expect("lines without an answer are sent again", len(calls) >= 2, "there were %d calls", len(calls))
	s.logged(task)
}

func partialLogs(s *scene) {
	// As if the server had stored three lines before it went away.
	task := s.createMeeting(Log, map[string]any{"lines": loggedLines},
		&fault{endpoint: logsCall, rewrite: func([]byte) []byte { return []byte(`{"accepted":3}`) }})
	s.ends(task, 1, "Completed")
	calls := s.calls(task, logsCall)
	s.must("the rest is sent again", len(calls) >= 2, "there were %d calls", len(calls))
	var again protocol.Logs
	s.must("the call is JSON", json.Unmarshal(calls[1].body, &again) == nil && len(again.Lines) > 0, "%s",
		calls[1].body)
	s.expect("from the first line that was not stored", again.Lines[0].Seq == 4, "it begins with line %d, not 4",
		again.Lines[0].Seq)
	s.logged(task)
}

// logged checks that every line is stored, in order, and was sent before the end.
func (s *scene) logged(task uuid.UUID) {
	stored, err := s.backend.Lines(s.ctx, task, 1)
	s.must("the lines can be read", err == nil, "%v", err)
	next := 1
	for i, line := range stored {
		s.must("lines are numbered from 1 without gaps", line.Seq == int64(i+1), "line %d has seq %d", i+1, line.Seq)
		if line.Text == fmt.Sprintf("line %d", next) {
			next++
		}
	}

	s.expect("every line arrives", next == loggedLines+1, "line %d is missing; %d are stored", next, len(stored))
	ended := s.calls(task, completeCall)[0].began
	late := s.recorder.find(func(c *call) bool {
		return c.task == task && c.endpoint == logsCall && c.began.After(ended)
	})
	s.expect("before the end is reported", len(late) == 0, "%d calls came after it", len(late))
}
