// Package conformancetest plays the conformance suite as a test. It owns no tables.
package conformancetest

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/worker/conformance"
)

// Run plays the suite and requires every check to pass. Its scenarios have leases of seconds, which a machine that runs
// other tests may let run out by standing still: a scenario that failed is played once more, by itself. options is
// called for each play, because a play revokes the token that it was given.
func Run(t *testing.T, options func() conformance.Options) conformance.Report {
	t.Helper()
	began := time.Now()
	play := options()
	play.Stderr = t.Output()
	report, err := conformance.Run(t.Context(), play)
	require.NoError(t, err)

	var again []string
	for _, c := range report.Checks {
		if !c.Passed && !slices.Contains(again, c.Scenario) {
			again = append(again, c.Scenario)
		}
		if !c.Passed {
			t.Logf("to be played again: %s: %s: %s", c.Scenario, c.Check, c.Reason)
		}
	}
	if len(again) > 0 {
		play := options()
		play.Stderr, play.Only = t.Output(), again
		second, err := conformance.Run(t.Context(), play)
		require.NoError(t, err)
		for _, c := range second.Checks {
			assert.True(t, c.Passed, "%s: %s: %s", c.Scenario, c.Check, c.Reason)
		}
		require.Zero(t, second.Failed)
	}
	t.Logf("%d checks in %s", report.Passed, time.Since(began).Round(time.Second))
	return report
}
