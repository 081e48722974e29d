package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
)

// listen opens a stream as one of the callers and sends its lines; the channel is closed when the stream ends.
func (w *world) listen(t *testing.T, caller, query string) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/v1/stream"+query, nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+w.tokens[caller])
	request.Header.Set("Accept", "text/event-stream")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))

	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		defer response.Body.Close()
		for scan := bufio.NewScanner(response.Body); scan.Scan(); {
			if scan.Text() != "" {
				lines <- scan.Text()
			}
		}
	}()
	return lines
}

// next returns the next line of a stream, empty if it has ended.
func next(t *testing.T, lines <-chan string) string {
	t.Helper()
	select {
	case line := <-lines:
		return line
	case <-time.After(20 * time.Second):
		require.Fail(t, "the stream says nothing")
		return ""
	}
}

// awaitChange reads a stream up to a change of a sort, which may come together with others.
func awaitChange(t *testing.T, lines <-chan string, what, dataset string) {
	t.Helper()
	for by := time.Now().Add(time.Minute); ; {
		line := next(t, lines)
		require.NotEmpty(t, line, "the stream has ended")
		require.True(t, time.Now().Before(by), "the stream does not tell of %s", what)
		var told struct {
			DAG, Dataset string
			What         []string
		}
		data, is := strings.CutPrefix(line, "data: ")
		if is && json.Unmarshal([]byte(data), &told) == nil && slices.Contains(told.What, what) {
			require.Equal(t, "readings "+dataset, told.DAG+" "+told.Dataset)
			return
		}
	}
}

// awaitEnd reads a stream to its end.
func awaitEnd(t *testing.T, lines <-chan string) {
	t.Helper()
	by := time.Now().Add(time.Minute)
	for next(t, lines) != "" {
		require.True(t, time.Now().Before(by), "the stream goes on")
	}
}

func TestTheStreamOverHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	w.newToken(t, authz.NewToken{Name: "leaves", Role: authz.RoleReader})

	lines := w.listen(t, writer, "?dag=readings")
	leaves := w.listen(t, "leaves", "?dataset=daily_highest")
	for _, want := range []string{"retry: 2000", "event: ready", "data: {}"} {
		require.Equal(t, want, next(t, lines))
		require.Equal(t, want, next(t, leaves))
	}
	must(t, w.env(t, writer), "pause", "readings")
	awaitChange(t, lines, "pauses", "")
	awaitChange(t, leaves, "pauses", "daily_highest")

	// It ends with the credential, or its time.
	must(t, w.env(t, admin), "tokens", "revoke", "leaves", "--yes")
	awaitEnd(t, leaves)
	brief := w.listen(t, writer, "?seconds=1")
	require.Equal(t, "retry: 2000", next(t, brief))
	awaitEnd(t, brief)

	status, body := w.send(t, writer, http.MethodGet, "/v1/stream", "", nil)
	require.Equal(t, http.StatusUnprocessableEntity, status, "a program that does not expect a stream gets none")
	require.Contains(t, body, "send Accept: text/event-stream")
	for _, query := range []string{"?task=x", "?seconds=0", "?seconds=x", "?seconds=3601"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/stream"+query, nil)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+w.tokens[writer])
		request.Header.Set("Accept", "text/event-stream")
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusUnprocessableEntity, response.StatusCode, query)
	}
}

// A browser listens by its session's cookie.
func TestTheStreamByCookie(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withBaseURL)
	b := w.signedIn(t, "ada@example.com", authz.RoleReader)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/stream?seconds=2", nil)
	require.NoError(t, err)
	request.Header.Set("Accept", "text/event-stream")
	response, err := b.client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), "event: ready")
}
