package pressure

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestThresholdsHaveHysteresis(t *testing.T) {
	t.Parallel()
	on := new(time.Time)
	for _, c := range []struct {
		limits  Thresholds
		since   *time.Time
		queued  int64
		oldest  float64
		exceeds bool
	}{
		{Thresholds{}, nil, 1 << 40, 1e9, false},
		{Thresholds{MaxQueued: 100}, nil, 100, 0, false},
		{Thresholds{MaxQueued: 100}, nil, 101, 0, true},
		{Thresholds{MaxQueued: 100}, on, 51, 0, true},
		{Thresholds{MaxQueued: 100}, on, 50, 0, false},
		{Thresholds{MaxAge: time.Minute}, nil, 1 << 40, 60, false},
		{Thresholds{MaxAge: time.Minute}, nil, 0, 61, true},
		{Thresholds{MaxAge: time.Minute}, on, 0, 31, true},
		{Thresholds{MaxAge: time.Minute}, on, 0, 30, false},
		{Thresholds{MaxQueued: 100, MaxAge: time.Minute}, on, 50, 31, true},
	} {
		p := Queued{Since: c.since, Queued: c.queued, Oldest: c.oldest}
		require.Equal(t, c.exceeds, c.limits.exceeds(p) != "", "%+v", c)
	}

	require.Equal(t, int64(200), Thresholds{MaxQueued: 100}.refusesFrom())
	require.Equal(t, int64(150), Thresholds{MaxQueued: 100, RefuseAt: 150}.refusesFrom())
}
