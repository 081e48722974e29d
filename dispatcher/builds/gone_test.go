package builds_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/registry"
)

// A file that is removed while the first build is on its way to it holds nothing up.
func TestAFileRemovedDuringTheFirstBuild(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("rows/a.csv", "n\n1\n")
	w.Drop("rows/b.csv", "n\n2\n")
	version := w.Deploy(`name: landing
jobs:
  - name: rows
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: key
    config: { path: rows, pattern: "{key}.csv", format: csv }
publish: { rows: { from: { job: rows } } }
`).Version.ID
	w.Advance()
	require.NoError(t, os.Remove(filepath.Join(w.Landing, "rows", "b.csv")))
	for n := range 8 {
		w.Settle()
		w.Promote(dispatchertest.Later(time.Duration(n) * time.Hour))
	}
	status, reason := w.Status(version)
	require.Equal(t, registry.Active, status, reason)
	require.Equal(t, []string{"a Completed", "b Canceled superseded"}, w.Tasks("rows"))
	require.Equal(t, map[string]int64{"a": 1}, w.Published("rows"))
}

// Of many files that are removed while the first build is on its way, each task fails in its own time: the source is
// listed again until none is left.
func TestManyFilesRemovedDuringTheFirstBuild(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	for n := range 12 {
		w.Drop(fmt.Sprintf("rows/%02d.csv", n), "n\n1\n")
	}
	version := w.Deploy(`name: landing
jobs:
  - name: rows
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: key
    max_attempts: 1
    config: { path: rows, pattern: "{key}.csv", format: csv }
publish: { rows: { from: { job: rows } } }
`).Version.ID
	w.Advance()
	for n := range 10 {
		require.NoError(t, os.Remove(filepath.Join(w.Landing, "rows", fmt.Sprintf("%02d.csv", n))))
	}

	// The loops run as they do in a server: builds look while tasks fail.
	stop := w.Start(w.D)
	defer stop()
	w.Eventually("it serves", func() bool {
		status, reason := w.Status(version)
		require.NotEqual(t, registry.Failed, status, reason)
		return status == registry.Active
	})
	require.Equal(t, map[string]int64{"10": 1, "11": 1}, w.Published("rows"))
}
