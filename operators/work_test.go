package operators_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/engine/inside"
	"github.com/dagctl/dagctl/operators"
)

// A run that gets no engine at once says so until it has one.
func TestARunSaysThatItWaitsForAnEngine(t *testing.T) {
	t.Parallel()
	engines, err := engine.New(engine.Config{Inside: inside.Serve, Dir: t.TempDir(),
		Slots: map[engine.Kind]int{engine.Parse: 1, engine.Job: 1, engine.Query: 1, engine.Copy: 1}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, engines.Close()) })
	w := newWorld(t)
	w.Runner.Registry, err = operators.Builtin(operators.Options{Engines: engines, Threads: 1})
	require.NoError(t, err)
	held, err := engines.Take(t.Context(), engine.Purpose{Kind: engine.Job, Org: "another"})
	require.NoError(t, err)

	said := make(chan string, 10)
	ended := make(chan operators.Outcome)
	go func() {
		ended <- w.Run(t.Context(), assignment("sql", map[string]any{"query": "SELECT 1 AS n"}),
			func(_ int, state string) { said <- state })
	}()
	require.Equal(t, "waiting for a free engine", <-said)
	held.Release()
	require.NoError(t, (<-ended).Err)
	require.Empty(t, <-said)
}
