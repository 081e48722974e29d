package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
)

// The API takes every document that the file format allows, and refuses a larger one in the words of the format.
func TestPlanOfALargeFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, admin)
	file := filepath.Join(t.TempDir(), "dag.yaml")
	const text = `name: large
jobs:
  - name: ticks
    operator: command
    source: { kind: cron, schedule: "0 * * * *", on_deploy: false }
    partition_by: { time: hour }
    config: { argv: ["true"] }
`
	padded := text + strings.Repeat("# \"a comment\"\n", (dag.MaxFileBytes-len(text))/14)
	require.Greater(t, len(padded), dag.MaxFileBytes*9/10)
	require.NoError(t, os.WriteFile(file, []byte(padded), 0o600))
	require.Contains(t, must(t, env, "plan", file), "large")

	require.NoError(t, os.WriteFile(file, []byte(padded+padded), 0o600))
	r := dagctl(t, env, "plan", file)
	require.Contains(t, r.err, "at most 2097152 are allowed")
}
