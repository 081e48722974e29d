package patience_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators/patience"
)

func TestWhatAnAnswerAsksFor(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	date := now.Add(90 * time.Second).Format(http.TimeFormat)
	for name, c := range map[string]struct {
		after, date string
		want        time.Duration
	}{
		"nothing":                    {"", "", 0},
		"seconds":                    {" 30 ", "", 30 * time.Second},
		"a date":                     {date, "", 90 * time.Second},
		"by the clock of the sender": {date, now.Add(time.Minute).Format(http.TimeFormat), 30 * time.Second},
		"a date that has passed":     {now.Add(-time.Hour).Format(http.TimeFormat), "", 0},
		"more than any number":       {"99999999999999999999", "", (1<<32 - 1) * time.Second},
		"no number":                  {"soon", "", 0},
		"a negative number":          {"-5", "", 0},
	} {
		header := http.Header{"Retry-After": {c.after}, "Date": {c.date}}
		require.Equal(t, c.want, patience.AskedToWait(&http.Response{Header: header}, now), name)
	}
}

// A try is repeated after Later only, and the last error says how often it was tried.
func TestTries(t *testing.T) {
	t.Parallel()
	busy, wrong := errors.New("busy"), errors.New("wrong")
	run := func(most int, longest time.Duration, answers ...error) (tries int, err error) {
		err = patience.Tries{Most: most, Longest: longest, Hint: "rest"}.Do(t.Context(), func() error {
			tries++
			return answers[min(tries, len(answers))-1]
		})
		return tries, err
	}

	tries, err := run(3, time.Minute, patience.NewLater(busy, time.Microsecond), nil)
	require.NoError(t, err)
	require.Equal(t, 2, tries)
	tries, err = run(3, time.Minute, patience.NewLater(busy, time.Microsecond), wrong)
	require.Equal(t, wrong, err)
	require.Equal(t, 2, tries)
	tries, err = run(3, time.Minute, patience.NewLater(busy, time.Microsecond))
	require.EqualError(t, err, "busy, 3 times")
	require.ErrorIs(t, err, busy)
	require.Equal(t, 3, tries)

	tries, err = run(3, time.Minute, patience.NewLater(busy, time.Hour))
	require.ErrorContains(t, err, "busy, and it is to be asked again in 1h0m0s")
	require.True(t, fault.Is(err, fault.Unavailable))
	require.Equal(t, 1, tries)
}

func TestGuessesGrow(t *testing.T) {
	t.Parallel()
	for try, most := range map[int]time.Duration{1: 200 * time.Millisecond, 4: 1600 * time.Millisecond,
		99: 1024 * 200 * time.Millisecond} {
		guess := patience.Guess(try)
		require.GreaterOrEqual(t, guess, most/2)
		require.Less(t, guess, most)
	}
}

// The cause of a context that has ended goes before the error of the request, and no URL is shown.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	failed := &url.Error{Op: "Get", URL: "https://example.org/?key=s3cret", Err: errors.New("reset")}
	err := patience.Unanswered(t.Context(), "GET example.org", failed)
	require.EqualError(t, err, "GET example.org: reset")
	require.ErrorAs(t, err, new(patience.Later))
	err = patience.Unanswered(t.Context(), "GET example.org", fault.New(fault.Forbidden, "private"))
	require.NotErrorAs(t, err, new(patience.Later))

	stop := errors.New("canceled by jane")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	require.Equal(t, stop, patience.Unanswered(ctx, "GET example.org", failed))
}
