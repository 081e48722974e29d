package sources

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSupervise(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	long := now.Add(time.Hour)
	drained := standing{running: true, drained: true, mustRest: true, timeout: long}

	for name, c := range map[string]struct {
		s            standing
		state        string
		start, drain bool
	}{
		"nothing":                {standing{}, "Pending", true, false},
		"paused":                 {standing{mustRest: true}, "Pending", false, false},
		"queued":                 {standing{queued: true}, "Pending", false, false},
		"running":                {standing{running: true, timeout: long}, "Running", false, false},
		"running, with the next": {standing{running: true, queued: true, timeout: long}, "Running", false, false},
		"running and paused":     {standing{running: true, mustRest: true, timeout: long}, "Draining", false, true},
		"its time is nearly up":  {standing{running: true, timeout: now.Add(time.Minute)}, "Draining", false, true},
		"asked to end":           {drained, "Draining", false, false},
		"tried again soon":       {standing{backoff: true}, "Dead", false, false},
		"dead just now":          {standing{died: ago(time.Second)}, "Dead", false, false},
		"dead for a while":       {standing{died: ago(DeadFor)}, "Pending", true, false},
		"dead and paused":        {standing{died: ago(DeadFor), mustRest: true}, "Pending", false, false},
	} {
		state, start, drain := c.s.supervise(now)
		require.Equal(t, c.state, state, name)
		require.Equal(t, []bool{c.start, c.drain}, []bool{start, drain}, name)
	}
}
