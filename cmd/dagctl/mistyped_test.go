package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
)

// Of two partitions the last one alone would be purged, and nobody would be told.
func TestAPartitionIsGivenOnce(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{"invalidate", "x"}, {"datasets", "purge", "x"}, {"run", "a/b"},
		{"datasets", "preview", "x"}} {
		r := dagctl(t, nil, append(command, "--partition", "a", "--partition", "b")...)
		require.Equal(t, cli.ExitFailed, r.code, command)
		require.Contains(t, r.err, `--partition is given twice, as "a" and as "b", but takes one value`, command)
	}
}
