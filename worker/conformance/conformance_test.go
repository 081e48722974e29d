package conformance_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/worker/conformance"
	"github.com/dagctl/dagctl/worker/conformance/conformancetest"
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
	program := goWorker(t)
	report := conformancetest.Run(t, func() conformance.Options {
		return conformance.Options{Command: []string{program}}
	})
	require.GreaterOrEqual(t, report.Passed, 2*len(conformance.Scenarios()))
}

// The suite finds what SDKs get wrong.
func TestASloppySDKFails(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "sloppy")
	build := exec.Command("go", "build", "-o", binary, "./testdata/sloppy")
	build.Stderr = os.Stderr
	require.NoError(t, build.Run())

	report, err := conformance.Run(t.Context(), conformance.Options{Command: []string{binary}, Only: []string{
		"registration", "normal run", "side by side", "heartbeats", "answer to the completion lost", "asked to wait",
		"server away at the poll", "logs"}})
	require.NoError(t, err)

	failed := map[string]bool{}
	for _, c := range report.Checks {
		if !c.Passed {
			failed[c.Scenario+": "+c.Check] = true
			require.NotEmpty(t, c.Reason)
		}
	}

	for _, check := range []string{
		"registration: the worker registers", "registration: it uses long polls",
		"registration: every call says X-Dagctl-Protocol: 1",
		"registration: no call of a task shows the worker's token", "normal run: the result is the payload",
		"side by side: tasks run at the same time", "heartbeats: the lease is kept",
		"answer to the completion lost: the end is reported",
		"asked to wait: with the same body", "asked to wait: not before Retry-After",
		"server away at the poll: after a pause",
		"logs: every line arrives",
	} {
		require.Contains(t, failed, check, "found: %v", failed)
	}
	require.NotContains(t, failed, "normal run: the task ends Completed")
	require.NotContains(t, failed, "normal run: the fence is that of the claim")
}

func TestTheReportQuotesAProgramThatEnds(t *testing.T) {
	t.Parallel()
	report, err := conformance.Run(t.Context(), conformance.Options{Command: []string{"sh", "-c",
		"echo no such module >&2; exit 3"}, Only: []string{"normal run"}})
	require.NoError(t, err)
	require.Equal(t, 1, report.Failed)
	require.Contains(t, report.Checks[0].Reason, "no such module")
	_, err = conformance.Run(t.Context(), conformance.Options{Command: []string{"true"}, Only: []string{"nothing"}})
	require.ErrorContains(t, err, `there is no scenario "nothing"; there are: registration, `)
}
