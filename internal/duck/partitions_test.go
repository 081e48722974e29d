package duck_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A condition on the key of a partition says which partitions a statement reads: no others need to be opened, and what
// the statement returns does not depend on them.
func TestWhichPartitionsAStatementReads(t *testing.T) {
	t.Parallel()
	s := keyedSession(t, "'x' AS v")
	keys := []string{"mon'day", "tuesday", "wednesday"}
	for _, c := range []struct{ query, reads string }{
		{"FROM sales", "all"},
		{"FROM sales WHERE _partition = 'tuesday'", "tuesday"},
		{"SELECT count(*) FROM Sales AS s WHERE s._PARTITION = 'tuesday' AND id > 1", "tuesday"},
		{"FROM sales WHERE 'tuesday' < _partition", "wednesday"},
		{"FROM sales WHERE 'tuesday' <= _partition", "tuesday wednesday"},
		{"FROM sales WHERE 'tuesday' > _partition", "mon'day"},
		{"FROM sales WHERE 'tuesday' >= _partition", "mon'day tuesday"},
		{"FROM sales WHERE _partition >= 'n' AND _partition <= 'tx'", "tuesday"},
		{"FROM sales WHERE _partition IN ('mon''day', 'friday')", "mon'day"},
		{"FROM sales WHERE _partition BETWEEN 'n' AND 'tx'", "tuesday"},
		{"FROM sales WHERE _partition LIKE 'tue%'", "tuesday"},
		{"FROM sales WHERE id = 1 AND (_partition = 'tuesday' OR _partition = 'wednesday')", "tuesday wednesday"},
		{"FROM sales WHERE _partition = 'friday'", ""},
		{"FROM sales WHERE _partition = 'tuesday' AND _partition = 'wednesday'", ""},
		{"FROM sales WHERE _partition = 'tuesday' UNION ALL FROM sales WHERE _partition = 'wednesday'",
			"tuesday wednesday"},
		{"WITH t AS (FROM sales WHERE _partition = 'tuesday') FROM t", "tuesday"},
		{"SELECT (SELECT max(id) FROM sales WHERE _partition = 'tuesday')", "tuesday"},
		{"SELECT a.id FROM sales a JOIN none b ON a.id = b.id WHERE a._partition = 'tuesday'", "tuesday"},
		{"SELECT b.id FROM none b LEFT JOIN sales a ON a.id = b.id WHERE a._partition = 'tuesday'", "tuesday"},
		{"SELECT a.id FROM sales a, sales b WHERE a._partition = 'tuesday' AND b._partition > 'u'",
			"tuesday wednesday"},
		// What may need more reads all.
		{"FROM sales WHERE _partition = 'tuesday' OR id = 1", "all"},
		{"FROM sales WHERE NOT _partition = 'tuesday'", "all"},
		{"FROM sales WHERE _partition <> 'tuesday'", "all"},
		{"FROM sales WHERE lower(_partition) = 'tuesday'", "all"},
		{"FROM sales WHERE _partition = DATE '2026-01-01'", "all"},
		{"FROM sales WHERE _partition IN ('tuesday', (SELECT max(_partition) FROM none))", "all"},
		{"FROM sales WHERE _partition = 'tuesday' UNION ALL FROM sales", "all"},
		{"SELECT * FROM (SELECT id, _partition FROM sales) WHERE _partition = 'tuesday'", "all"},
		{"SELECT id FROM sales WHERE _partition = 'tuesday' USING SAMPLE 1", "all"},
		{"SELECT id FROM sales TABLESAMPLE 50% WHERE _partition = 'tuesday'", "all"},
		{"SELECT a.id FROM sales a POSITIONAL JOIN none b WHERE a._partition = 'tuesday'", "all"},
		{"SELECT a.id FROM none b ASOF JOIN sales a ON b.id >= a.id WHERE a._partition = 'tuesday'", "all"},
		{"SELECT a.id FROM sales a JOIN sales b USING (id) WHERE a._partition = 'tuesday'", "all"},
		{"FROM sales AS t(_partition) WHERE _partition = 'tuesday'", "all"},
		{"WITH none AS (SELECT 1 AS id) FROM sales WHERE EXISTS (FROM none WHERE _partition = 'tuesday')", "all"},
	} {
		statement, err := s.Parse(t.Context(), c.query)
		require.NoError(t, err, c.query)
		reads := "all"
		if found := statement.Partitions("sales"); found != nil {
			left := slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return !found.Hold(k) })
			reads = strings.Join(left, " ")
		}
		require.Equal(t, c.reads, reads, c.query)
	}

	none, err := s.Parse(t.Context(), "WITH sales AS (SELECT 'own' AS _partition) FROM sales WHERE _partition = 'own'")
	require.NoError(t, err)
	require.Nil(t, none.Partitions("sales"), "a name that the statement defines is no relation")
}
