package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// One slow answer, as of a frozen database, must not keep a command from seeing for minutes that all is done.
func TestPausesAreBounded(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		0: 300 * time.Millisecond, 200 * time.Millisecond: 800 * time.Millisecond, time.Second: 4 * time.Second,
		40 * time.Second: 5 * time.Second,
	} {
		require.Equal(t, want, pauseAfter(took), "%s", took)
	}
}
