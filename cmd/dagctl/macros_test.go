package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
)

const macrosDAG = `name: shop
macros: sql/macros.sql
jobs:
  - name: orders
    operator: seed
    config: { csv: "id,price\n1,119\n2,238\n" }
  - name: taxed
    operator: sql
    inputs: [{ from: { job: orders } }]
    config: { query: "SELECT id, net(price) AS price FROM orders ORDER BY id" }
    checks:
      - { name: prices, sql: "SELECT * FROM output WHERE NOT is_price(price)" }
  - name: sums
    operator: sql
    inputs: [{ from: { job: taxed } }]
    config: { query: "SELECT sum(price)::BIGINT AS total FROM taxed" }
  - name: dear
    operator: sql
    inputs: [{ from: { job: orders } }]
    config: { query: "SELECT * FROM above(200)" }
publish:
  taxed: { from: { job: taxed } }
  total: { from: { job: sums } }
  dear: { from: { job: dear } }
`

const macrosSQL = `CREATE MACRO rate() AS 0.19;
CREATE MACRO net(price) AS round(price / (1 + rate()))::BIGINT;
CREATE MACRO is_price(price) AS price > 0;
CREATE MACRO above(price_from) AS TABLE SELECT id FROM orders WHERE price > price_from;
`

// A macro that is edited rebuilds what calls it, also through another macro, and what reads that; nothing else.
func TestAnEditedMacroRebuildsWhatCallsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, writer)
	dir := folder(t, map[string]string{"dag.yaml": macrosDAG, "sql/macros.sql": macrosSQL})
	file := filepath.Join(dir, "sql", "macros.sql")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	total := func() any { return decode[query.Rows](t, env, "datasets", "preview", "total").Rows[0][0] }

	require.Contains(t, must(t, env, "validate", dir), "DAG shop is valid")
	must(t, env, "deploy", dir)
	require.EqualValues(t, 300, total())
	require.Equal(t, [][]any{{2.0}}, decode[query.Rows](t, env, "datasets", "preview", "dear").Rows)
	require.Contains(t, must(t, env, "lineage", "taxed.price"), "orders", "columns are followed through macros")

	write("-- shared\n" + macrosSQL + "CREATE MACRO unused(x) AS x;\n")
	require.False(t, decode[registry.Deployment](t, env, "deploy", dir).Created, "nobody calls the new one")

	before := len(w.tasks(t))
	write("CREATE MACRO rate() AS 0.7;\n" + macrosSQL[len("CREATE MACRO rate() AS 0.19;\n"):])
	plan := must(t, env, "plan", dir)
	require.Regexp(t, `taxed +rebuild +definition changed`, plan)
	require.Regexp(t, `total +rebuild +upstream changed`, plan)
	require.Regexp(t, `dear +reuse`, plan)
	must(t, env, "deploy", dir)
	require.EqualValues(t, 210, total())
	require.Equal(t, before+2, len(w.tasks(t)))
	must(t, env, "rollback", "shop", "--yes")
	require.EqualValues(t, 300, total())

	write(macrosSQL + "CREATE MACRO host() AS getenv('HOME');\n")
	refused := dagctl(t, env, "deploy", dir)
	require.Equal(t, cli.ExitFailed, refused.code)
	require.Contains(t, refused.err, "sql/macros.sql: the function getenv is not allowed (line 5, column 24)")

	write("CREATE MACRO is_price(price) AS price > 120;\n" +
		"CREATE MACRO net(price) AS price;\nCREATE MACRO above(x) AS TABLE SELECT id FROM orders WHERE price > x;\n")
	failed := dagctl(t, env, "deploy", dir)
	require.NotZero(t, failed.code, "the check calls the macro")
	require.Contains(t, failed.out+failed.err, "prices")
}
