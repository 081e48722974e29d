package rest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
)

func TestPagesMeetWithoutGapOrOverlap(t *testing.T) {
	t.Parallel()
	all := []int{1, 2, 3, 4, 5, 6, 7}
	for limit := 1; limit <= len(all)+1; limit++ {
		var got []int
		for page := (PageInput{Limit: limit}); ; {
			var after int
			_, err := page.After(&after)
			require.NoError(t, err)
			rows := all[after:min(after+limit+1, len(all))]
			list, err := NewList(rows, limit, func(n int) any { return n })
			require.NoError(t, err)
			require.LessOrEqual(t, len(list.Items), limit)

			got = append(got, list.Items...)
			if list.NextCursor == "" {
				break
			}
			page.Cursor = list.NextCursor
		}
		require.Equal(t, all, got, "limit %d", limit)
	}
	empty, err := NewList[int](nil, 5, nil)
	require.NoError(t, err)
	require.NotNil(t, empty.Items, "a list is [], never null")
}

func TestBadCursors(t *testing.T) {
	t.Parallel()
	for _, cursor := range []string{"?", "YQ", "IlwxIg", "eyJhIjoxfQ==", "ImFcdTAwMDAi"} {
		var after string
		_, err := PageInput{Cursor: cursor}.After(&after)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", cursor, err)
	}
}

func TestIfMatch(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		header string
		ok     bool
	}{{"", true}, {"*", true}, {`"v2"`, true}, {`"v1", "v2"`, true}, {`"v1"`, false}, {`W/"v2"`, false}, {`v2`,
		false}} {
		err := CheckIfMatch(tc.header, ETag("v2"))
		require.Equal(t, tc.ok, err == nil, tc.header)
	}
}

func TestLimiter(t *testing.T) {
	t.Parallel()
	limiter, err := NewLimiter(2, 3)
	require.NoError(t, err)
	now := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 3 {
		require.NoError(t, limiter.Take("a", now))
	}
	err = limiter.Take("a", now)
	require.True(t, fault.Is(err, fault.TooMany))
	require.Equal(t, "1", ProblemOf(err).GetHeaders().Get("Retry-After"), "whole seconds, rounded up")
	require.NoError(t, limiter.Take("b", now), "another caller has a bucket of its own")
	require.Error(t, limiter.Take("a", now.Add(400*time.Millisecond)))
	require.NoError(t, limiter.Take("a", now.Add(500*time.Millisecond)), "a refusal costs nothing")

	require.NoError(t, (*Limiter)(nil).Take("a", now))
	for _, bad := range []struct {
		perSecond float64
		burst     int
	}{{0, 1}, {-1, 1}, {1, 0}} {
		_, err := NewLimiter(bad.perSecond, bad.burst)
		require.Error(t, err)
	}
}

func TestLimiterForgetsIdleCallers(t *testing.T) {
	t.Parallel()
	limiter, err := NewLimiter(1, 1)
	require.NoError(t, err)
	now := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range maxBuckets {
		require.NoError(t, limiter.Take(string(rune(i+1)), now))
	}
	require.NoError(t, limiter.Take("late", now.Add(time.Minute)))
	require.Len(t, limiter.buckets, 1)
}
