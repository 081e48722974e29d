// Package python_test runs the Python SDK: its own tests, and its workers against a real server.
package python_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// What needs no server: https://docs.python.org/3/library/unittest.html.
func TestUnits(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "python3", "-W", "error::ResourceWarning", "-m", "unittest", "discover",
		"-t", ".", "-s", "tests")
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Contains(t, string(output), "\nOK\n")
}
