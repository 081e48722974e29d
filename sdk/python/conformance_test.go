package python_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/worker/conformance"
)

// The suite that any SDK runs against itself, with a server that loses, delays and refuses.
func TestItConforms(t *testing.T) {
	t.Parallel()
	report, err := conformance.Run(t.Context(), conformance.Options{Command: []string{"env", "PYTHONPATH=.",
		"PYTHONDONTWRITEBYTECODE=1", "python3", "-u", "testdata/conforms.py"}, Stderr: t.Output()})
	require.NoError(t, err)
	for _, c := range report.Checks {
		assert.True(t, c.Passed, "%s: %s: %s", c.Scenario, c.Check, c.Reason)
	}
	require.Zero(t, report.Failed)
	require.GreaterOrEqual(t, report.Passed, 2*len(conformance.Scenarios()))
}
