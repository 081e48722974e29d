package builds

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// After turns that failed, a build waits longer and longer, and never for more than ten seconds.
func TestTheWaitsOfABuildThatFails(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		failed int
		wait   time.Duration
	}{
		{0, 0},
		{1, 500 * time.Millisecond},
		{2, time.Second},
		{3, 2 * time.Second},
		{4, 4 * time.Second},
		{5, 8 * time.Second},
		{6, 10 * time.Second},
		{7, 10 * time.Second},
		{64, 10 * time.Second},
		{1_000_000, 10 * time.Second},
	} {
		got := delay{failed: c.failed, until: now.Add(-time.Hour)}.next(now)
		require.Equal(t, delay{c.failed + 1, now.Add(c.wait)}, got, "after %d more", c.failed)
	}
}
