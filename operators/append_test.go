package operators_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
)

func TestAppend(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := assignment("sql", nil)
	a.Outputs[0].UpdateStrategy = dag.Append
	a.Outputs[0].Generation.UniqueKey = []string{"k"}
	var revision int64
	var at operators.Written
	seal := func(query string) {
		a.Attempt++
		a.Config = map[string]any{"query": query}
		out := w.mustRun(t, a)
		at = out.Written[0]
		require.Equal(t, revision, at.BaseRevision)
		revision++
		a.Outputs[0].Base = &storage.Partition{Key: dag.WholeKey, Revision: revision, Files: at.Manifest.Files}
	}

	add := func(query string) [][]any {
		seal(query)
		rows := w.rows(t, a, at)
		require.Equal(t, int64(len(rows)), at.Manifest.Rows)
		return rows
	}

	one, two := int64(1), int64(2)
	require.Equal(t, [][]any{{one, "a"}}, add("SELECT 1 AS k, 'a' AS v"))
	base := at.Manifest.Files

	require.Equal(t, [][]any{{one, "a"}, {two, "b"}, {nil, "n"}},
		add("SELECT * FROM (VALUES (2, 'b'), (NULL, 'n')) t(k, v)"))
	require.Equal(t, base[0], at.Manifest.Files[0], "without repeated keys the base's files stay")
	require.Len(t, at.Manifest.Files, 2)

	require.Equal(t, [][]any{{one, "a"}, {two, "new"}, {nil, "newer"}},
		add("SELECT * FROM (VALUES (2, 'old'), (NULL, 'x'), (2, 'new'), (NULL, 'newer')) t(k, v)"))
	require.Len(t, at.Manifest.Files, 1, "repeated keys rewrite it")

	require.Equal(t, [][]any{{one, "a", nil}, {nil, "newer", nil}, {two, "wide", true}},
		add("SELECT 2 AS k, 'wide' AS v, true AS extra"))

	for i := range 65 {
		seal(fmt.Sprintf("SELECT %d AS k, 'x' AS v, false AS extra", 100+i))
		require.LessOrEqual(t, len(at.Manifest.Files), 64)
	}
	require.Equal(t, int64(68), at.Manifest.Rows)
}
