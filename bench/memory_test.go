package main

import (
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// A minimal machine has no ps.
func TestMemoryIsMeasuredWithoutPrograms(t *testing.T) {
	if runtime.GOOS == "linux" {
		t.Setenv("PATH", t.TempDir())
	}
	resident, err := residentMemory(t.Context(), os.Getpid())
	require.NoError(t, err)
	require.Greater(t, resident, 1.0)
	require.Less(t, resident, 10_000.0)

	_, err = residentMemory(t.Context(), 1<<30)
	require.Error(t, err)
}
