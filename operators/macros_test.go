package operators_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
)

const macrosDAG = `name: shop
macros: [sql/money.sql, sql/tables.sql]
jobs:
  - name: orders
    operator: command
    source: { kind: manual }
    config: { argv: [orders] }
  - name: taxed
    operator: sql
    inputs: [{ from: { job: orders } }]
    config: { query_file: sql/taxed.sql }
    checks:
      - { name: positive, sql: "SELECT * FROM output WHERE NOT is_price(price)" }
  - name: latest
    operator: sql
    inputs: [{ from: { job: orders } }]
    outputs: [big, small]
    config: { queries: { big: "FROM above(100)", small: "SELECT price FROM orders WHERE price <= 100" } }
  - name: plain
    operator: sql
    inputs: [{ from: { job: orders } }]
    config: { query: "SELECT  price  FROM orders -- as it is" }
`

func macroFiles() map[string][]byte {
	return map[string][]byte{
		"sql/money.sql": []byte("CREATE MACRO rate() AS 0.19;\nCREATE MACRO net(price) AS price / (1 + rate());\n" +
			"CREATE MACRO is_price(price) AS price > 0;\n"),
		"sql/tables.sql": []byte("CREATE MACRO above(price_from) AS TABLE\nSELECT price FROM orders " +
			"WHERE price > price_from;\n"),
		"sql/taxed.sql": []byte("SELECT price,\n  net(price) AS net\nFROM orders\n"),
	}
}

// An edit of a macro changes exactly those that call it, also through others; one that nobody calls changes nothing.
func TestAMacroChangesWhatCallsIt(t *testing.T) {
	t.Parallel()
	ops, err := operators.Builtin(operators.Options{Engines: enginetest.Engines(), Threads: 1,
		Command: operators.CommandOptions{Every: true}})
	require.NoError(t, err)
	catalog := ops.Catalog(nil)
	parse := func(text string, files map[string][]byte) *dag.Document {
		doc, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(text), Files: dag.InMemory(files)}, catalog)
		require.Empty(t, problems)
		return doc
	}
	prints := func(doc *dag.Document) map[string]dag.Fingerprint {
		definitions, err := dag.Define(doc, catalog)
		require.NoError(t, err)
		all, err := definitions.Fingerprints(nil)
		require.NoError(t, err)
		return all
	}

	before := parse(macrosDAG, macroFiles())
	plain, _ := before.Job("plain")
	require.Equal(t, "SELECT  price  FROM orders -- as it is", plain.Config["query"])
	taxed, _ := before.Job("taxed")
	require.NotContains(t, taxed.Config["query"], "net(")
	require.NotContains(t, taxed.Checks[0].SQL, "is_price")

	for what, c := range map[string]struct {
		file, text string
		changes    []string
		same       bool // it is the same version
	}{
		"one that another calls": {"sql/money.sql", "CREATE MACRO rate() AS 0.2;\nCREATE MACRO net(price) AS price / " +
			"(1 + rate());\nCREATE MACRO is_price(price) AS price > 0;", []string{"taxed"}, false},
		"a table": {"sql/tables.sql", "CREATE MACRO above(price_from) AS TABLE SELECT price FROM orders " +
			"WHERE price >= price_from", []string{"latest"}, false},
		"one that nobody calls": {"sql/tables.sql", string(macroFiles()["sql/tables.sql"]) +
			"CREATE MACRO unused(a) AS a;", nil, true},
		"that of a check": {"sql/money.sql", "CREATE MACRO rate() AS 0.19;\nCREATE MACRO net(price) AS price / " +
			"(1 + rate());\nCREATE MACRO is_price(price) AS price >= 0;", nil, false},
	} {
		files := macroFiles()
		files[c.file] = []byte(c.text)
		after := parse(macrosDAG, files)
		old, now := prints(before), prints(after)
		var changed []string
		for _, job := range before.Jobs {
			if old[job.Name] != now[job.Name] {
				changed = append(changed, job.Name)
			}
		}
		require.Equal(t, c.changes, changed, what)
		require.Equal(t, c.same, dag.Hash(before, nil, nil) == dag.Hash(after, nil, nil), what)
	}

	// What the server reads again of what was sent is the same document.
	require.Equal(t, before.Canonical(), parse(macrosDAG, maps.Clone(before.Files)).Canonical())
}

func TestFaultsOfMacros(t *testing.T) {
	t.Parallel()
	ops, err := operators.Builtin(operators.Options{Engines: enginetest.Engines(), Threads: 1,
		Command: operators.CommandOptions{Every: true}})
	require.NoError(t, err)
	for what, c := range map[string]struct{ file, text, says string }{
		"another statement": {"sql/money.sql", "CREATE MACRO rate() AS 1;\n SELECT 1",
			"dag.yaml:2:10: sql/money.sql: a file of macros has CREATE MACRO statements only (line 2, column 2)"},
		"what no SQL may do": {"sql/money.sql", "CREATE MACRO rate() AS getenv('HOME')",
			"the function getenv is not allowed (line 1, column 24)"},
		"a name of DuckDB": {"sql/money.sql", "CREATE MACRO round(x) AS x", "has the name of a function of DuckDB"},
		"a name of a job":  {"sql/money.sql", "CREATE MACRO orders(x) AS x", `macro "orders" has the name of a job`},
		"a wrong call": {"sql/taxed.sql", "SELECT price,\n  net() AS net FROM orders",
			`sql/taxed.sql: macro "net" needs its parameter "price": it is net(price) (line 2, column 3)`},
		"a mistyped table": {"dag.yaml", "FROM abov(100)", `did you mean the macro "above"?`},
		"an unknown input": {"sql/tables.sql", "CREATE MACRO above(x) AS TABLE FROM order_s WHERE price > x",
			`job "latest" has no input "order_s", which its query big reads`},
	} {
		text, files := macrosDAG, macroFiles()
		if c.file == "dag.yaml" {
			text = strings.Replace(text, "FROM above(100)", c.text, 1)
		} else {
			files[c.file] = []byte(c.text)
		}
		_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(text), Files: dag.InMemory(files)},
			ops.Catalog(nil))
		require.NotEmpty(t, problems, what)
		require.Contains(t, problems.Pretty()+problems.Error(), c.says, what)
	}
}

// Only the macro that is wrong is told, and neither those beside it nor what calls any of them.
func TestOneBadMacroIsToldAlone(t *testing.T) {
	t.Parallel()
	ops, err := operators.Builtin(operators.Options{Engines: enginetest.Engines(), Threads: 1,
		Command: operators.CommandOptions{Every: true}})
	require.NoError(t, err)
	const sound = "CREATE MACRO is_price(price) AS price > 0;\n"
	const net = "CREATE MACRO net(price) AS price / (1 + rate());\n" + sound
	for what, c := range map[string]struct{ money, says string }{
		"its body":        {"CREATE MACRO rate() AS 0.19 +;\n" + net, "line 1"},
		"what it may not": {"CREATE MACRO rate() AS getenv('A');\n" + net, "getenv"},
		"what is no macro": {sound + "SELECT 1;\nCREATE MACRO net(price) AS price;\n",
			"CREATE MACRO statements only"},
		"a call of another": {"CREATE MACRO rate(a) AS a;\n" + net, `"rate" needs`},
		"a circle":          {"CREATE MACRO rate() AS net(1);\n" + net, "calls itself"},
	} {
		files := macroFiles()
		files["sql/money.sql"] = []byte(c.money)
		_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(macrosDAG), Files: dag.InMemory(files)},
			ops.Catalog(nil))
		require.Len(t, problems, 1, "%s: %s", what, problems.Error())
		require.Contains(t, problems.Error(), c.says, what)
	}

	// What calls sound ones only is looked at.
	files := macroFiles()
	files["sql/money.sql"] = []byte("CREATE MACRO net(price) AS getenv('A');\n" + sound)
	_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(strings.Replace(macrosDAG, "FROM above(100)",
		"FROM abov(100)", 1)), Files: dag.InMemory(files)}, ops.Catalog(nil))
	require.Len(t, problems, 2, problems.Error())
	require.Contains(t, problems.Pretty(), `did you mean the macro "above"?`)
}
