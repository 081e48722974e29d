package builds_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/registry"
)

// A check that ends does not make a build look at all of its revisions again.
func TestABuildDoesNotLookAtAllAfterEachCheck(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	const days = 12
	for i := range days {
		w.Probe.Put("raw", fmt.Sprintf("2024-01-%02d", i+1), "a")
	}
	w.Probe.Put("raw", "2024-01-01", "ab")
	w.Serve(dispatchertest.Checked)
	v := w.Deploy(dispatchertest.Edit(dispatchertest.Checked, "n > 3", "n > 1"))
	w.Advance()
	require.Equal(t, days, w.Count(`SELECT FROM ready`), "each partition has a check")

	// The first check fails, which only a look at all of them finds.
	claimed, err := w.D.Claim(t.Context(), w.D.InProcessRuntimes(), w.D.WorkerID, 1, time.Now())
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	dispatchertest.Execute(t.Context(), w.D, claimed[0])
	require.Equal(t, 1, w.Count(`SELECT FROM task_results WHERE payload ? 'failed'`))
	w.Advance()
	status, _ := w.Status(v.Version.ID)
	require.Equal(t, registry.Building, status, "it waits for the others")

	w.Settle()
	status, reason := w.Status(v.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, "2024-01-01")
}
