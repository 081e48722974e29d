package duck

import (
	"sync/atomic"
	"testing"

	duckdb "github.com/duckdb/duckdb-go/v2"
	"github.com/stretchr/testify/require"
)

func TestSharedIsReplacedWhenLost(t *testing.T) {
	t.Parallel()
	shared := &Shared{Config: Config{Threads: 1}}
	first, err := shared.Get(t.Context())
	require.NoError(t, err)
	again, err := shared.Get(t.Context())
	require.NoError(t, err)
	require.Same(t, first, again)
	require.Error(t, first.Exec(t.Context(), "SELECT nope"))
	again, err = shared.Get(t.Context())
	require.NoError(t, err)
	require.Same(t, first, again, "an ordinary error loses nothing")

	first.ended(t.Context(), &duckdb.Error{Type: duckdb.ErrorTypeInternal})
	second, err := shared.Get(t.Context())
	require.NoError(t, err)
	require.NotSame(t, first, second)
	require.NoError(t, second.Exec(t.Context(), "SELECT 1"))
	require.NoError(t, shared.Close())
	require.NoError(t, shared.Close())
}

func TestNote(t *testing.T) {
	t.Parallel()
	for kind, want := range map[duckdb.ErrorType]bool{duckdb.ErrorTypeFatal: true, duckdb.ErrorTypeInternal: true,
		duckdb.ErrorTypeIO: false, duckdb.ErrorTypeBinder: false} {
		var lost atomic.Bool
		note(&lost, &duckdb.Error{Type: kind})
		require.Equal(t, want, lost.Load())
	}
}
