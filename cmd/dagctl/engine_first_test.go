package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/relations"
)

// BenchmarkFirstEngine measures how long the first task of a job waits for its engine: the start of a process behind
// its walls, with all that the binary has, and of DuckDB.
func BenchmarkFirstEngine(b *testing.B) {
	e, err := engine.New(engine.Config{Dir: b.TempDir()})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, e.Close()) })
	job := engine.Purpose{Kind: engine.Job, Org: "acme", Of: "dag/job",
		Limits: relations.Limits{Memory: 256 << 20, Threads: 1}}

	for b.Loop() {
		taken, err := e.Take(b.Context(), job)
		require.NoError(b, err)
		require.NoError(b, taken.Do(b.Context(), engine.Open{Scope: relations.UTC}, nil))
		b.StopTimer()
		taken.Discard()
		b.StartTimer()
	}
}
