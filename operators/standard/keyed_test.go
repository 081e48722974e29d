package standard_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
)

// TestTheColumnOfPartitionsIsKnown checks what is known of statements that ask for the partitions of rows before
// anything runs: they bind, the column is a VARCHAR, and no star shows it.
func TestTheColumnOfPartitionsIsKnown(t *testing.T) {
	t.Parallel()
	builtin, err := standard.New(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	const where = "inputs: [{ from: { job: sales }, where: { _partition: [all] } }], "
	for more, wrong := range map[string]string{
		where: "`map` says which partitions are read; the query may choose among them: WHERE _partition = '…'",
		"inputs: [{ from: { job: sales } }], checks: [{ not_null: [_partition] }], ": "a check sees one partition, " +
			"whose key is getvariable('partition') in `sql`",
	} {
		_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(`
name: keyed
jobs:
  - { name: sales, operator: seed, config: { csv: "id,price\n1,5\n" } }
  - { name: keyed, operator: sql, ` + more + `config: { query: "SELECT * FROM sales" } }
`)}, builtin.Catalog(nil))
		require.Len(t, problems, 1)
		require.Equal(t, wrong, problems[0].Suggestion)
	}
	for _, c := range []struct{ query, read, wrong string }{
		{"SELECT *, _partition AS day FROM sales", "SELECT id, upper(day) AS d FROM keyed", ""},
		{"SELECT * FROM sales WHERE _partition > 'a'", "SELECT id, price FROM keyed", ""},
		{"SELECT *, _partition AS day FROM sales", "SELECT days FROM keyed", `there is no column "days"`},
		{"SELECT * FROM sales WHERE _partition > 'a'", "SELECT x._partition AS d FROM (SELECT * FROM keyed) AS x",
			`no column "_partition"`},
		{"SELECT _partition + 1 AS n FROM sales", "SELECT n FROM keyed", "VARCHAR"},
		{"SELECT _partitions AS n FROM sales", "SELECT n FROM keyed", `there is no column "_partitions"`},
		{"SELECT COLUMNS('.*'), _partition AS p FROM sales", "SELECT p FROM keyed", "would show it too"},
		{"SELECT s.*, s._partition AS day FROM sales AS s", "SELECT day FROM keyed", ""},
	} {
		_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: fmt.Appendf(nil, `
name: keyed
jobs:
  - { name: sales, operator: seed, config: { csv: "id,price\n1,5\n" } }
  - { name: keyed, operator: sql, inputs: [{ from: { job: sales } }], config: { query: %q } }
  - { name: reads, operator: sql, inputs: [{ from: { job: keyed } }], config: { query: %q } }
`, c.query, c.read)}, builtin.Catalog(nil))
		if c.wrong == "" {
			require.Empty(t, problems, c.query)
		} else {
			require.ErrorContains(t, problems, c.wrong, c.query)
		}
	}
}
