package conformance_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/worker/conformance"
)

// goWorker builds the program of the Go SDK.
func goWorker(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "goworker")
	build := exec.Command("go", "build", "-o", binary, "./goworker")
	build.Stderr = os.Stderr
	require.NoError(t, build.Run())
	return binary
}

func TestTheGoSDKConforms(t *testing.T) {
	t.Parallel()
	report, err := conformance.Run(t.Context(), conformance.Options{Command: []string{goWorker(t)}, Stderr: t.Output()})
	require.NoError(t, err)
	for _, c := range report.Checks {
		assert.True(t, c.Passed, "%s: %s: %s", c.Scenario, c.Check, c.Reason)
	}
	require.Zero(t, report.Failed)
	require.GreaterOrEqual(t, report.Passed, 2*len(conformance.Scenarios()))
}
