package inside

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/relations"
)

// threadsOf returns how many threads a session has.
func threadsOf(t *testing.T, s *duck.Session) (threads int) {
	t.Helper()
	require.NoError(t, s.Value(t.Context(), &threads, "SELECT current_setting('threads')"))
	return threads
}

func TestTasksThatReadLittleHaveOneThread(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, part := range []string{"in", "out", "spill"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, part), 0o700))
	}
	little, much := filepath.Join(dir, "in", "little.parquet"), filepath.Join(dir, "in", "much.parquet")
	h := &host{ctx: t.Context(), out: io.Discard, begin: engine.Begin{Kind: engine.Job, Dir: dir, Writes: true,
		Limits: relations.Limits{Memory: 256 << 20, Threads: 3}}}
	t.Cleanup(h.close)

	first, err := h.any(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, threadsOf(t, first))
	_, err = first.CopyToParquet(t.Context(), "SELECT 7 AS i", little)
	require.NoError(t, err)
	require.NoError(t, first.Exec(t.Context(), "COPY (SELECT random() AS r FROM range(1000000)) TO '"+much+
		"' (FORMAT parquet)"))

	open := func(name, file string) {
		_, err := h.open(t.Context(), engine.Open{Scope: relations.UTC,
			Relations: []duck.Relation{{Name: name, Files: []string{file}}}})
		require.NoError(t, err)
	}
	open("small", little)
	require.Same(t, first, h.session, "it serves the next task, too")
	beside, err := h.any(t.Context(), little, much)
	require.NoError(t, err)
	require.Equal(t, 3, threadsOf(t, beside))
	var i int
	require.NoError(t, h.session.Value(t.Context(), &i, "SELECT i FROM small"), "what is open stays open")
	require.Equal(t, 7, i)
	again, err := h.any(t.Context(), much)
	require.NoError(t, err)
	require.Same(t, beside, again)

	open("large", much)
	require.Equal(t, 3, threadsOf(t, h.session))
	wide := h.session
	open("small", little)
	require.Same(t, wide, h.session, "more threads than are needed do no harm that a new session were worth")
}

func TestQueriesHaveAllTheirThreads(t *testing.T) {
	t.Parallel()
	h := &host{ctx: t.Context(), out: io.Discard, begin: engine.Begin{Kind: engine.Query, Dir: t.TempDir(),
		Limits: relations.Limits{Memory: 256 << 20, Threads: 3}}}
	t.Cleanup(h.close)
	session, err := h.at(t.Context(), relations.UTC)
	require.NoError(t, err)
	require.Equal(t, 3, threadsOf(t, session))
}
