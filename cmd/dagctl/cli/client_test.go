package cli

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
)

// crowded answers 429 to every call but the last of three, and remembers the bodies.
func crowded(t *testing.T) (client *Client, bodies *[]string) {
	t.Helper()
	bodies = new([]string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		*bodies = append(*bodies, string(text))
		if len(*bodies) < 3 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		_, _ = io.WriteString(w, `{"name": "done"}`)
	}))
	t.Cleanup(server.Close)
	return NewClient(Target{URL: server.URL}), bodies
}

func TestAClientThatWaitsTriesAgain(t *testing.T) {
	t.Parallel()
	client, bodies := crowded(t)
	client.Wait()
	var answer struct{ Name string }
	require.NoError(t, client.Post(t.Context(), "/v1/things", map[string]int{"n": 1}, &answer))
	require.Equal(t, "done", answer.Name)
	require.Equal(t, []string{`{"n":1}`, `{"n":1}`, `{"n":1}`}, *bodies, "each try sends the whole body")
}

func TestAClientThatDoesNotWaitReportsTheRefusal(t *testing.T) {
	t.Parallel()
	client, bodies := crowded(t)
	err := client.Get(t.Context(), "/v1/things", nil, nil)
	require.True(t, fault.Is(err, fault.TooMany), "%v", err)
	require.Len(t, *bodies, 1)
}

func TestAWaitingClientStopsWithItsContext(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(server.Close)
	client := NewClient(Target{URL: server.URL})
	client.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- client.Get(ctx, "/v1/things", nil, nil) }()
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestASilentServerIsNamedWithoutWordsOfTheLanguage(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(over) })
	c := NewClient(Target{URL: s.URL})
	c.http.Timeout = 10 * time.Millisecond
	err := c.Get(t.Context(), "/v1/dags", nil, nil)
	require.EqualError(t, err, s.URL+" has not answered within 10ms")
	require.Equal(t, ExitServer, ExitCode(err))
}

// A laptop whose clock is wrong says how long ago something was by the server's.
func TestTheServersClockCounts(t *testing.T) {
	t.Parallel()
	var ahead time.Duration
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
	}))
	t.Cleanup(server.Close)
	c := &CLI{Environment: Environment{Out: io.Discard, Err: io.Discard, Getenv: func(string) string { return "" }},
		Target: server.URL, Output: "json"}
	client, err := c.Connect()
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), c.Now(), time.Minute)

	for _, ahead = range []time.Duration{5 * time.Hour, -5 * time.Hour, 0} {
		require.NoError(t, client.Get(t.Context(), "/v1/things", nil, nil))
		require.WithinDuration(t, time.Now().Add(ahead), c.Now(), time.Minute)
	}
	require.Zero(t, c.ahead.Load(), "clocks that agree need no help")
}
