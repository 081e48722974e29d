package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
)

// Programs of an org that the server's config does not list are refused when they are planned, and not by their tasks.
func TestProgramsOfOtherOrgsAreRefusedAtThePlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t) // its config lists acme
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`name: notes
jobs:
  - name: note
    operator: command
    source: { kind: manual }
    outputs: 0
    config: { argv: [/bin/true] }
`), 0o600))

	for _, command := range []string{"plan", "deploy"} {
		refused := dagctl(t, w.env(t, foreign), command, file)
		require.Equal(t, cli.ExitFailed, refused.code, command)
		require.Contains(t, refused.err, "the command operator is disabled for org umbrella on this server", command)
		require.Contains(t, refused.err, "operators.allow_command", command)
		require.Contains(t, refused.err, "dag.yaml:7:", command)
		must(t, w.env(t, writer), command, file)
	}
}
