package rest

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"
)

// Work that does not heed its time limit is answered all the same, however late: with what came of it, or with an error
// that says what happened.
func TestWhatTakesTooLongIsAnswered(t *testing.T) {
	t.Parallel()
	const limit = 20 * time.Millisecond
	api, _ := newTestAPI(t, Config{Timeout: limit})
	api.grace = limit
	busy := func(ctx context.Context) error { // until its connection has no time left
		<-ctx.Done()
		<-time.After(3 * limit)
		return ctx.Err()
	}
	Register(api, huma.Operation{OperationID: "plan", Method: "POST", Path: "/plan"},
		func(ctx context.Context, _ *itemInput) (*itemOutput, error) { return nil, busy(ctx) })
	Register(api, huma.Operation{OperationID: "count", Method: "POST", Path: "/count"},
		func(ctx context.Context, in *itemInput) (*itemOutput, error) {
			_ = busy(ctx)
			return &itemOutput{in.Body}, nil
		})
	api.HandlePlain("POST /page", limit, func(w http.ResponseWriter, r *http.Request) {
		api.WriteError(w, r, busy(r.Context()))
	})

	addr := serve(t, api)
	ask := func(path string) (status int, text string) {
		t.Helper()
		answer := raw(t, addr, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
			"Content-Length: 27\r\n\r\n"+`{"name": "abc", "count": 1}`)
		got, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(got)
	}
	status, text := ask("/plan")
	require.Equal(t, 503, status)
	require.Contains(t, text, "POST /plan took longer than the 20ms that it may take")
	status, _ = ask("/page")
	require.Equal(t, 503, status)
	status, text = ask("/count")
	require.Equal(t, 200, status)
	require.Contains(t, text, "abc")
}
