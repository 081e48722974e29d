package conformance

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/worker/protocol"
)

// Scenarios see and disturb the completions of one call one by one.
func TestManyCompletionsAreRecordedOneByOne(t *testing.T) {
	t.Parallel()
	s := NewScripted()
	r := newRecorder(s)
	front := httptest.NewServer(r)
	t.Cleanup(front.Close)

	var ids []uuid.UUID
	for range 3 {
		id, err := s.Create(t.Context(), Echo, nil)
		require.NoError(t, err)
		ids = append(ids, id)
	}
	s.mu.Lock()
	claims := s.take([]string{Echo}, 3)
	s.mu.Unlock()

	post := func() (statuses []int, err error) {
		var many protocol.Many[protocol.Completion]
		for _, c := range claims {
			many.Calls = append(many.Calls, protocol.One[protocol.Completion]{CapabilityToken: c.CapabilityToken,
				Body: protocol.Completion{Fence: c.Fence(), Status: protocol.Completed}})
		}
		text, err := json.Marshal(many)
		require.NoError(t, err)
		request, err := http.NewRequestWithContext(t.Context(), "POST", front.URL+"/v1/tasks/complete",
			bytes.NewReader(text))
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+s.Token)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		var answer struct{ Answers []struct{ Status int } }
		require.NoError(t, json.NewDecoder(response.Body).Decode(&answer))
		for _, a := range answer.Answers {
			statuses = append(statuses, a.Status)
		}
		return statuses, nil
	}
	is := func(id uuid.UUID) string {
		state, err := s.Task(t.Context(), id)
		require.NoError(t, err)
		return state.Status
	}

	r.meet(&fault{endpoint: completeCall, task: ids[1], status: http.StatusServiceUnavailable})
	claims[2].CapabilityToken = "junk"
	statuses, err := post()
	require.NoError(t, err)
	require.Equal(t, []int{200, 503, 401}, statuses)
	require.Equal(t, []string{"Completed", "Running", "Running"}, []string{is(ids[0]), is(ids[1]), is(ids[2])})
	require.Len(t, r.find(func(c *call) bool { return c.endpoint == completeCall }), 3)

	r.meet(&fault{endpoint: completeCall, task: ids[1], cut: true})
	_, err = post()
	require.Error(t, err, "the answer is cut")
	require.Equal(t, "Completed", is(ids[1]), "but the call has taken effect")
}
