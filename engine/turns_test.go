package engine_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/relations"
)

// took is what a Take returned.
type took struct {
	engine *engine.Engine
	err    error
}

// takeLater takes an engine meanwhile.
func takeLater(t *testing.T, e *engine.Engines, p engine.Purpose) chan took {
	t.Helper()
	later := make(chan took, 1)
	go func() {
		g, err := e.Take(t.Context(), p)
		later <- took{g, err}
	}()
	return later
}

func TestATaskWaitsForAnEngineOfItsJob(t *testing.T) {
	t.Parallel()
	e := engines(t, engine.Config{Processors: 1})
	first := take(t, e, job)
	later := takeLater(t, e, job)
	first.Release()
	second := <-later
	require.NoError(t, second.err)
	require.Equal(t, first.PID(), second.engine.PID())
	require.NoError(t, second.engine.Do(t.Context(), engine.Open{Scope: relations.UTC}, nil))
	require.Equal(t, map[string]int{"acme": 1}, e.Working())

	// It waits no longer than a moment, since a task may hold its engine for long without a use of the processor.
	third := take(t, e, job)
	require.NotEqual(t, first.PID(), third.PID())
	other := job
	other.Of = "dag/other"
	require.NotEqual(t, first.PID(), take(t, e, other).PID(), "nobody's work is done by another job's engine")
	third.Release()
	second.engine.Release()
}

func TestAnEngineThatEndsKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	e := engines(t, engine.Config{Processors: 1})
	first := take(t, e, job)
	later := takeLater(t, e, job)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("canceled")
	cancel(why)
	require.NoError(t, first.Do(t.Context(), engine.Open{Scope: relations.UTC}, nil))
	require.ErrorIs(t, first.Do(ctx, engine.Open{Scope: relations.UTC}, nil), why)
	first.Discard()

	second := <-later
	require.NoError(t, second.err)
	require.NotEqual(t, first.PID(), second.engine.PID())
	second.engine.Release()
	require.Equal(t, second.engine.PID(), take(t, e, job).PID(), "an idle one is taken first")
}

func TestNobodyWaitsWhereProcessorsAreFree(t *testing.T) {
	t.Parallel()
	e := engines(t, engine.Config{Processors: 3})
	first, second := take(t, e, job), take(t, e, job)
	require.NotEqual(t, first.PID(), second.PID())
	first.Release()
	second.Release()
	require.Empty(t, e.Working())
}
