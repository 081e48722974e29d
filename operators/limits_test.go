package operators_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// A query that needs more memory than it may use says how much that is and where to change it.
func TestAQueryThatNeedsTooMuchMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var err error
	w.Registry, err = operators.Builtin(operators.Options{Engines: enginetest.Engines(), Threads: 1,
		MemoryLimit: 64 << 20})
	require.NoError(t, err)

	out := w.run(t, assignment("sql", map[string]any{
		"query": "SELECT list(repeat(range::VARCHAR, 20)) AS l FROM range(2000000)"}))
	require.ErrorContains(t, out.Err, "the work needs more than the 64 MB of memory that it may use")
	var known *fault.Error
	require.True(t, errors.As(out.Err, &known))
	require.Equal(t, "read or sort less at once, or raise `operators.memory_mb` in the server's config", known.Hint)
	require.True(t, out.Retryable)
	require.Empty(t, out.Written)
}

// A task whose time is over while it checks its output says that, so that nobody looks for the fault in its query.
func TestACheckThatDoesNotEndInTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := assignment("sql", map[string]any{"query": "SELECT 1 AS id"})
	a.Checks = []dag.Check{{Name: "endless", Kind: "sql", SQL: "SELECT * FROM output, range(1000000) a, " +
		"range(1000000) b, range(1000000) c WHERE a.range + b.range + c.range < 0"}}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)

	out := w.Run(ctx, a, func(_ int, state string) {
		if state == "checking the output" {
			cancel(operators.ErrTimedOut)
		}
	})
	require.EqualError(t, out.Err, "the task ran longer than its timeout: the output was written, and its checks did "+
		"not end in time")
	require.ErrorIs(t, out.Err, operators.ErrTimedOut)
	require.True(t, out.Retryable)
}
