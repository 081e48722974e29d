package worker

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPausesGrowAndHeedTheServer(t *testing.T) {
	t.Parallel()
	for n, full := range map[int]time.Duration{1: firstPause, 2: 2 * firstPause, 5: 16 * firstPause,
		7: longestPause, 1000: longestPause} {
		for range 100 {
			pause := pauseAfter(n, errors.New("no answer"))
			require.GreaterOrEqual(t, pause, full/2, "failure %d", n)
			require.LessOrEqual(t, pause, full, "failure %d", n)
		}
	}
	asked := &StatusError{Status: http.StatusServiceUnavailable, RetryAfter: 30 * time.Second}
	require.Equal(t, 30*time.Second, pauseAfter(1, asked))
	asked.RetryAfter = time.Hour
	require.Equal(t, time.Minute, pauseAfter(1, asked), "no server makes a worker wait for longer")
}

func TestRepeatStopsWhereTheServerHasDecided(t *testing.T) {
	t.Parallel()
	for status, again := range map[int]bool{400: false, 401: false, 403: false, 404: false, 409: false, 413: false,
		422: false, 408: true, 425: true, 429: true, 500: true, 502: true, 503: true, 504: true} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			err := Repeat(t.Context(), func(context.Context) error {
				if calls++; calls == 3 {
					return nil
				}
				return &StatusError{Status: status}
			})
			if again {
				require.NoError(t, err, "%d", status)
				require.Equal(t, 3, calls, "%d", status)
			} else {
				require.Error(t, err, "%d", status)
				require.Equal(t, 1, calls, "%d", status)
			}
		})
	}
}

func TestRepeatEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		calls := 0
		err := Repeat(ctx, func(context.Context) error { calls++; return errors.New("connection refused") })
		require.ErrorContains(t, err, "connection refused", "the reason says more than that the time is up")
		require.Greater(t, calls, 5)
	})
	here := ours{errors.New("disk full")}
	calls := 0
	require.Equal(t, here, Repeat(t.Context(), func(context.Context) error { calls++; return here }))
	require.Equal(t, 1, calls, "an error of this machine is not the server's to mend")
}

func TestTextsAreCutBetweenRunes(t *testing.T) {
	t.Parallel()
	require.Equal(t, "short", cut("short", 5))
	for n := 3; n < 40; n++ {
		text := cut(strings.Repeat("é😀", 20), n)
		require.LessOrEqual(t, len(text), n)
		require.True(t, strings.HasSuffix(text, "…"), "%q", text)
		require.Equal(t, text, strings.ToValidUTF8(text, "?"))
	}
}

// A function of an operator returns its result as text, which nothing else looks at.
func TestAResultThatIsNotJSONIsAnErrorForGood(t *testing.T) {
	t.Parallel()
	err := new(Task).unsound([]byte(`{"a": NaN}`))
	require.ErrorContains(t, err, "the result is not JSON: invalid character 'N'")
	require.False(t, Retryable(err))
	for _, sound := range []string{"", "null", `{"a": 1}`} {
		require.NoError(t, new(Task).unsound([]byte(sound)))
	}
}
