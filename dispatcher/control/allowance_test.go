package control

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAllowance(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

	for name, c := range map[string]struct {
		rate float64
		ago  time.Duration
		n    int
		left time.Duration // the part of the past that is still unused
	}{
		"a second":          {10, time.Second, 10, 0},
		"a part":            {10, 250 * time.Millisecond, 2, 50 * time.Millisecond},
		"nothing yet":       {10, 50 * time.Millisecond, 0, 50 * time.Millisecond},
		"a day":             {10, 24 * time.Hour, 10, 0},
		"slow, not yet":     {0.1, 5 * time.Second, 0, 5 * time.Second},
		"slow, now":         {0.1, 10 * time.Second, 1, 0},
		"more than a step":  {1000, time.Second, bulkStep, 800 * time.Millisecond},
		"the clock is back": {10, -time.Second, 0, -time.Second},
	} {
		n, paced := allowance(c.rate, at.Add(-c.ago), at)
		require.Equal(t, c.n, n, name)
		require.InDelta(t, c.left.Seconds(), at.Sub(paced).Seconds(), 1e-6, name)
	}
}
