package dagfile

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// resident returns the memory of this process that is in use, in bytes, from /proc.
func resident(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	var size, pages int
	_, err = fmt.Sscan(string(text), &size, &pages)
	require.NoError(t, err)
	return pages * os.Getpagesize()
}

// `dagctl dev` looks at the files several times a second, for days.
func TestLookingAgainAndAgainTakesNoMoreMemory(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), []byte(`
name: days
jobs:
  - {name: raw, operator: file_source, source: {kind: poll, every: 1h}, config: {path: ".", pattern: "*.csv", format: csv}}
  - {name: made, operator: sql, inputs: [{from: {job: raw}}], config: {query: SELECT a FROM raw}}
`), 0o600))
	look := func(times int) {
		for range times {
			_, err := Find(dir, nil)
			require.NoError(t, err)
		}
	}
	look(5)
	before := resident(t)
	look(40)
	require.Less(t, resident(t)-before, 40<<20)
}
