package workerapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/worker/protocol"
	"github.com/dagctl/dagctl/workerapi/workerapitest"
)

// answered is the answer to one of many calls.
type answered struct {
	Status  int                `json:"status"`
	Answer  protocol.TaskState `json:"answer"`
	Problem json.RawMessage    `json:"problem"`
}

// raw is one of many calls, with a body as it is.
type raw = protocol.One[json.RawMessage]

// ended is the completion of a claimed task, with more fields than its fence.
func ended(claim protocol.Claim, more string) raw {
	body, _ := fenced(`{%s, `+more+`}`, claim.Fence(), nil)
	return raw{CapabilityToken: claim.CapabilityToken, Body: json.RawMessage(body.(string))}
}

// completeMany makes many calls at once and returns their answers.
func completeMany(t *testing.T, s *workerapitest.Server, token string, calls ...raw) []answered {
	t.Helper()
	status, text := s.Send(t, "POST", "/v1/tasks/complete", protocol.Many[json.RawMessage]{Calls: calls},
		workerapitest.AsWorker(token))
	require.Equal(t, http.StatusOK, status, "%s", text)
	var answer struct{ Answers []answered }
	require.NoError(t, json.Unmarshal(text, &answer), "%s", text)
	require.Len(t, answer.Answers, len(calls))
	return answer.Answers
}

func statuses(answers []answered) (list []int) {
	for _, a := range answers {
		list = append(list, a.Status)
	}
	return list
}

// What is refused is refused in the words of a call by itself, and everything else takes effect.
func TestManyCompletionsAreAnsweredAsByThemselves(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	good, failed, made := claimed(t, s, "other", ""), claimed(t, s, "other", ""), claimed(t, s, "made", "p")
	canceled, paused, odd := claimed(t, s, "other", ""), claimed(t, s, "mail", ""), claimed(t, s, "other", "")
	gone, swapped := claimed(t, s, "other", ""), claimed(t, s, "other", "")
	s.Do(t, "POST", "/v1/tasks/"+canceled.Task.TaskID.String()+":cancel", nil, nil)
	s.Do(t, "POST", "/v1/jobs/work/mail/pause", map[string]any{}, nil)
	s.Expire(t, gone.Task.TaskID)
	s.Eventually(t, "a newer attempt", func() bool { return s.Claim(t, gone.Task.TaskID).Status == protocol.Claimed })
	stale := odd.Fence()
	stale.LeaseToken = uuid.New()
	staleBody, _ := fenced(`{%s, "status": "Completed"}`, stale, nil)

	calls := []raw{
		ended(good, `"status": "Completed", "result": {"n": 1}`),
		ended(odd, `"status": "Done"`),
		ended(failed, `"status": "Failed", "error": {"message": "no", "retryable": false}`),
		{CapabilityToken: "junk", Body: ended(odd, `"status": "Completed"`).Body},
		ended(canceled, `"status": "Canceled"`),
		{CapabilityToken: odd.CapabilityToken, Body: json.RawMessage(staleBody.(string))},
		ended(paused, `"status": "Completed"`),
		{CapabilityToken: good.CapabilityToken, Body: ended(odd, `"status": "Completed"`).Body},
		ended(gone, `"status": "Completed"`),
		ended(odd, `"status": "Completed", "outputs": [{"index": 7}]`),
		ended(made, `"status": "Completed"`),
		ended(odd, `"status": "Completed", "result": "`+strings.Repeat("x", 70_000)+`"`),
		ended(odd, `"status": "Completed", "more": 1`),
		ended(odd, `"status": "Completed", "events": [{"output": 0, "start": "9999-01-01T00:00:00Z"}]`),
		{CapabilityToken: swapped.CapabilityToken, Body: json.RawMessage(`[]`)},
	}
	answers := completeMany(t, s, s.Token, calls...)
	require.Equal(t, []int{200, 422, 200, 401, 200, 409, 200, 403, 409, 422, 200, 422, 422, 422, 422},
		statuses(answers))
	for i, status := range map[int]string{0: "Completed", 2: "Failed", 4: "Canceled", 6: "Completed", 10: "Completed"} {
		require.Equal(t, status, answers[i].Answer.Status, i)
	}
	require.Equal(t, "Running", string(s.Task(t, odd.Task.TaskID).Status), "no refused completion ended it")

	id := func(problem []byte) (without string) {
		var p map[string]any
		require.NoError(t, json.Unmarshal(problem, &p), "%s", problem)
		delete(p, "request_id")
		text, err := json.Marshal(p)
		require.NoError(t, err)
		return string(text)
	}
	for i, a := range answers {
		if a.Status == http.StatusOK {
			continue
		}
		header := workerapitest.AsTask(odd)
		header[protocol.CapabilityHeader] = []string{calls[i].CapabilityToken}
		status, alone := s.Send(t, "POST", "/v1/task/complete", string(calls[i].Body), header)
		require.Equal(t, a.Status, status, i)
		require.JSONEq(t, id(alone), id(a.Problem), i)
	}
}

// The same calls again change nothing, together or alone, and a different completion is a conflict.
func TestManyCompletionsMayBeRepeated(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	var calls []raw
	for range 5 {
		calls = append(calls, ended(claimed(t, s, "other", ""), `"status": "Completed", "result": 1`))
	}
	failed := claimed(t, s, "other", "")
	calls = append(calls, ended(failed, `"status": "Failed", "error": {"message": "no"}`))

	first := completeMany(t, s, s.Token, append(calls, calls[0])...) // and twice in one call
	require.Equal(t, []int{200, 200, 200, 200, 200, 200, 200}, statuses(first))
	trail := count(t, s, `SELECT count(*) FROM task_events`)
	again := completeMany(t, s, s.Token, calls...)
	require.Equal(t, []int{200, 200, 200, 200, 200, 200}, statuses(again))
	require.Equal(t, first[0].Answer, again[0].Answer)

	header := workerapitest.AsTask(failed)
	status, text := s.Send(t, "POST", "/v1/task/complete", string(calls[5].Body), header)
	require.Equal(t, http.StatusOK, status, "%s", text)
	calls[5] = ended(failed, `"status": "Failed", "error": {"message": "something else"}`)
	require.Equal(t, http.StatusConflict, completeMany(t, s, s.Token, calls...)[5].Status)
	require.Equal(t, trail, count(t, s, `SELECT count(*) FROM task_events`))
	require.Equal(t, 1, count(t, s, `SELECT failures FROM tasks WHERE id = '`+failed.Task.TaskID.String()+`'`))
}

// Of two completions of one attempt in one call, the first counts.
func TestTheFirstOfTwoCompletionsInOneCallCounts(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for range 5 {
		claim := claimed(t, s, "other", "")
		answers := completeMany(t, s, s.Token, ended(claim, `"status": "Completed", "result": 1`),
			ended(claim, `"status": "Failed", "error": {"message": "no"}`),
			ended(claim, `"status": "Completed", "result": 1`))
		require.Equal(t, []int{200, 409, 200}, statuses(answers))
		require.Equal(t, "Completed", string(s.Task(t, claim.Task.TaskID).Status))
	}
}

// The worker's token opens the call; the capability of each attempt decides what becomes of its task, whatever its org
// and its runtime.
func TestCapabilitiesDecideAboutManyCompletions(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	foreign, err := authz.CreateOrg(t.Context(), s.Pool, "foreign", "Foreign")
	require.NoError(t, err)
	stranger := s.NewToken(t, foreign, authz.NewToken{Name: "w", Kind: authz.KindWorker, Runtimes: []string{"another"}})
	mine, others := claimed(t, s, "other", ""), claimed(t, s, "mail", "")

	answers := completeMany(t, s, stranger,
		raw{CapabilityToken: stranger, Body: ended(others, `"status": "Completed"`).Body},
		raw{CapabilityToken: mine.CapabilityToken, Body: ended(others, `"status": "Completed"`).Body})
	require.Equal(t, []int{401, 403}, statuses(answers), "without its capability, no worker ends a task")
	require.Equal(t, "Running", string(s.Task(t, others.Task.TaskID).Status))
	require.NotContains(t, fmt.Sprint(string(answers[0].Problem), string(answers[1].Problem)), "work/mail")

	require.Equal(t, []int{200}, statuses(completeMany(t, s, stranger, ended(mine, `"status": "Completed"`))))
	refused(t, s, http.StatusUnauthorized, "POST", "/v1/tasks/complete",
		protocol.Many[json.RawMessage]{Calls: []raw{ended(others, `"status": "Completed"`)}},
		workerapitest.AsTask(others))
}

// A call of another form is refused as a whole, and nothing of it is made.
func TestManyCallsOfAnotherFormAreRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	claim := claimed(t, s, "other", "")
	one, err := json.Marshal(ended(claim, `"status": "Completed"`))
	require.NoError(t, err)
	for body, says := range map[string]string{
		`{"calls": [` + string(one) + strings.Repeat(`, `+string(one), protocol.MostCalls) + `]}`: "no more than 100 entries",
		`{"calls": []}`: "1 or more entries", `{}`: "calls", `{"calls": [{"body": {}}]}`: "capability_token",
		`{"calls": [` + string(one) + `], "more": 1}`: "is no field of this request",
	} {
		p := refused(t, s, http.StatusUnprocessableEntity, "POST", "/v1/tasks/complete", body,
			workerapitest.AsWorker(s.Token))
		require.Contains(t, fmt.Sprint(p), says)
	}
	refused(t, s, http.StatusUnprocessableEntity, "POST", "/v1/tasks/complete", `{"calls": `, workerapitest.AsWorker(s.Token))
	refused(t, s, http.StatusRequestEntityTooLarge, "POST", "/v1/tasks/complete",
		`{"calls": "`+strings.Repeat("x", 17<<20)+`"}`, workerapitest.AsWorker(s.Token))
	require.Equal(t, "Running", string(s.Task(t, claim.Task.TaskID).Status))
}

// Tasks that other tasks ask for are made once, whatever else is in the call.
func TestManyCompletionsCommitWhatEachAsksFor(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.Deploy(t, "chain", `
name: chain
defaults: { runtime: poll }
jobs:
  - { name: first, operator: handler, source: { kind: manual }, outputs: 0, config: { handler: a }, enqueues: [next] }
  - { name: next, operator: handler, source: { kind: manual }, outputs: 0, config: { handler: b } }
`)
	var calls []raw
	for range 3 {
		claim := s.Claim(t, s.Enqueue(t, "chain", "first", dispatcher.EnqueueItem{}))
		calls = append(calls, ended(claim, `"status": "Completed", "tasks": [{"job": "next"}]`),
			ended(claimed(t, s, "other", ""), `"status": "Completed"`))
	}
	for range 2 {
		require.Equal(t, []int{200, 200, 200, 200, 200, 200}, statuses(completeMany(t, s, s.Token, calls...)))
	}
	require.Equal(t, 3, count(t, s, `SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'next'`))
}
