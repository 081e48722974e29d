package workerapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/worker/protocol"
	"github.com/dagctl/dagctl/workerapi/workerapitest"
)

// renewed is the answer to one of many heartbeats.
type renewed struct {
	Status  int                      `json:"status"`
	Answer  protocol.HeartbeatAnswer `json:"answer"`
	Problem json.RawMessage          `json:"problem"`
}

// beatMany makes many calls at once and returns their answers.
func beatMany(t *testing.T, s *workerapitest.Server, calls ...raw) (answers []renewed) {
	t.Helper()
	status, text := s.Send(t, "POST", "/v1/tasks/heartbeat", protocol.Many[json.RawMessage]{Calls: calls},
		workerapitest.AsWorker(s.Token))
	require.Equal(t, http.StatusOK, status, "%s", text)
	var answer struct{ Answers []renewed }
	require.NoError(t, json.Unmarshal(text, &answer), "%s", text)
	require.Len(t, answer.Answers, len(calls))
	return answer.Answers
}

// What is refused is refused in the words of a call by itself, and everything else takes effect.
func TestManyHeartbeatsAreAnsweredAsByThemselves(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	good, canceled := claimed(t, s, "other", ""), claimed(t, s, "other", "")
	odd, over := claimed(t, s, "other", ""), claimed(t, s, "other", "")
	s.Do(t, "POST", "/v1/tasks/"+canceled.Task.TaskID.String()+":cancel", nil, nil)
	require.Equal(t, []int{200}, statuses(completeMany(t, s, s.Token, ended(over, `"status": "Completed"`))))
	stale := odd.Fence()
	stale.LeaseToken = uuid.New()
	staleBody, _ := fenced(`{%s}`, stale, nil)

	calls := []raw{
		ended(good, `"progress": 40, "state": "counting"`),
		ended(canceled, `"progress": 1`),
		ended(over, `"progress": 1`),
		{CapabilityToken: odd.CapabilityToken, Body: json.RawMessage(staleBody.(string))},
		{CapabilityToken: good.CapabilityToken, Body: ended(odd, `"progress": 1`).Body},
		{CapabilityToken: "junk", Body: ended(odd, `"progress": 1`).Body},
		ended(odd, `"progress": 101`),
		ended(odd, `"more": 1`),
		{CapabilityToken: odd.CapabilityToken, Body: json.RawMessage(`[]`)},
		ended(odd, `"progress": 7`),
	}
	answers := beatMany(t, s, calls...)
	var got []int
	for _, a := range answers {
		got = append(got, a.Status)
	}
	require.Equal(t, []int{200, 200, 409, 409, 403, 401, 422, 422, 422, 200}, got)
	require.True(t, answers[0].Answer.LeaseExpiresAt.After(*good.LeaseExpiresAt))
	require.False(t, answers[0].Answer.CancelRequested)
	require.True(t, answers[1].Answer.CancelRequested)
	require.Equal(t, 1, count(t, s, `SELECT count(*) FROM leases WHERE progress = 40 AND state = 'counting'`))
	require.Equal(t, 1, count(t, s, `SELECT count(*) FROM leases WHERE progress = 7`))
	require.Equal(t, 1, count(t, s, `SELECT count(*) FROM task_events WHERE state = 'counting'`), "a step of its trail")

	for i, a := range answers {
		if a.Status == http.StatusOK {
			continue
		}
		header := workerapitest.AsTask(odd)
		header[protocol.CapabilityHeader] = []string{calls[i].CapabilityToken}
		status, alone := s.Send(t, "POST", "/v1/task/heartbeat", string(calls[i].Body), header)
		require.Equal(t, a.Status, status, i)
		require.Equal(t, detail(t, alone), detail(t, a.Problem), i)
	}
}

func detail(t *testing.T, problem []byte) string {
	t.Helper()
	var p map[string]any
	require.NoError(t, json.Unmarshal(problem, &p), "%s", problem)
	return fmt.Sprint(p["detail"], p["errors"], p["hint"])
}

// Many leases take few transactions, and each is extended.
func TestManyLeasesAreExtendedTogether(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	const many = 40
	var calls []raw
	for range many {
		calls = append(calls, ended(claimed(t, s, "other", ""), `"progress": 5`))
	}
	before := time.Now()
	for _, a := range beatMany(t, s, calls...) {
		require.Equal(t, http.StatusOK, a.Status)
		require.True(t, a.Answer.LeaseExpiresAt.After(before))
	}
	require.Equal(t, many, count(t, s, `SELECT count(*) FROM leases WHERE progress = 5`))
	require.Less(t, count(t, s, `SELECT count(DISTINCT xmin::text) FROM leases`), many)
}

// A lease that a transaction holds up is extended when that has ended, and the others without waiting for it.
func TestALockedLeaseHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	locked, free := claimed(t, s, "other", ""), claimed(t, s, "other", "")
	tx, err := s.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // it may be over
	_, err = tx.Exec(t.Context(), `SELECT FROM leases WHERE task_id = $1 FOR UPDATE`, locked.Task.TaskID)
	require.NoError(t, err)

	answered := make(chan []renewed, 1)
	go func() {
		answered <- beatMany(t, s, ended(locked, `"progress": 9`), ended(free, `"progress": 9`))
	}()
	s.Eventually(t, "the other lease is extended", func() bool {
		return count(t, s, `SELECT count(*) FROM leases WHERE progress = 9`) == 1
	})
	require.NoError(t, tx.Rollback(t.Context()))
	for _, a := range <-answered {
		require.Equal(t, http.StatusOK, a.Status)
	}
}
