package operators_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/engine/inside"
	"github.com/dagctl/dagctl/operators"
)

// What `query` refuses is refused in jobs and checks as well, before they are deployed.
func TestFunctionsThatShowTheServerAreRefusedInJobsAndChecks(t *testing.T) {
	t.Parallel()
	builtin, err := operators.Builtin(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	const file = `name: shop
jobs:
  - name: orders
    source: { kind: manual }
    operator: sql
    outputs: 1
    config: { query: "%s" }
    checks:
      - sql: "%s"
`
	parse := func(query, check string) dag.Problems {
		_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(fmt.Sprintf(file, query, check))},
			builtin.Catalog(nil))
		return problems
	}
	const harmless = "SELECT upper('x') AS x"
	usual := len(parse(harmless, harmless))

	for _, call := range []string{"current_setting('allowed_paths')", "json_serialize_plan('SELECT 1')",
		"write_log('x')", "getenv('PATH')"} {
		name, _, _ := strings.Cut(call, "(")
		for place, problems := range map[string]dag.Problems{
			"line 7": parse("SELECT "+call, harmless),
			"line 9": parse(harmless, "SELECT "+call),
		} {
			require.Len(t, problems, usual+1, "%s, %s", call, place)
			text := problems.Pretty()
			require.Contains(t, text, "the function "+name+" is not allowed; it shows", place)
			require.Regexp(t, `dag.yaml:(7:30|9:22): the function`, text, "where it is called")
		}
	}
}

// Where there is no engine, nobody can say what a statement means: neither is the document at fault, nor does a plan
// decide without.
func TestWhatNobodyCouldLookAtIsNotAtFault(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "engines")
	require.NoError(t, os.Mkdir(dir, 0o700))
	engines, err := engine.New(engine.Config{Dir: dir, Idle: -1, Inside: inside.Serve})
	require.NoError(t, err)
	t.Cleanup(func() { _ = engines.Close() })
	catalogOf := func() dag.Catalog {
		builtin, err := operators.Builtin(operators.Options{Engines: engines,
			Command: operators.CommandOptions{Every: true}, ReuseByColumn: true})
		require.NoError(t, err)
		return builtin.Catalog(nil)
	}
	catalog := catalogOf()
	parse := func() (*dag.Document, dag.Problems) {
		return dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(byColumn)}, catalog)
	}
	doc, problems := parse()
	require.Empty(t, problems)
	_, err = dag.Define(doc, catalog)
	require.NoError(t, err)

	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.WriteFile(dir, nil, 0o600), "no folder can be made in a file")
	_, problems = parse()
	require.Empty(t, problems, "what is remembered needs no engine")
	catalog = catalogOf()
	_, problems = parse()
	const noEngine = "make the folder of an engine"
	require.ErrorContains(t, problems.Unseen(), noEngine)
	_, err = dag.Define(doc, catalog)
	require.ErrorContains(t, err, noEngine)

	job, sql := &doc.Jobs[1], catalog.Operators["sql"]
	_, err = sql.Shape(job, make([][]dag.Column, 1))
	require.ErrorContains(t, err, noEngine)
	_, _, err = sql.Derive(job, make([][]string, 1))
	require.ErrorContains(t, err, noEngine)
}

// What a job's SQL reads that is none of its inputs is refused before it is deployed, and not by the task.
func TestUnknownRelationsAreRefusedInJobsAndChecks(t *testing.T) {
	t.Parallel()
	builtin, err := operators.Builtin(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	const file = `name: shop
jobs:
  - name: orders
    operator: file_source
    source: { kind: poll, every: 1m }
    config: { path: orders.csv, format: csv }
  - name: daily
    operator: sql
    inputs: [{ from: { job: orders } }]
    execution_strategy: PerPartition
    update_strategy: replace
    config:
      %s
    checks:
      - { name: right, sql: %q }
`
	const good = "SELECT * FROM Orders"
	parse := func(config, check string) dag.Problems {
		_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(fmt.Sprintf(file, config, check))},
			builtin.Catalog(nil))
		return problems
	}
	query := func(sql string) string { return fmt.Sprintf("query: %q", sql) }

	for _, fine := range []string{good, "WITH o AS (FROM ORDERS) SELECT * FROM o", "SELECT * FROM range(3)",
		"SELECT 1 AS n", "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) FROM r"} {
		require.Empty(t, parse(query(fine), "SELECT o.* FROM output o ANTI JOIN orders USING (id)"), fine)
	}

	for what, c := range map[string]struct {
		problems dag.Problems
		line     int
		message  string
	}{
		"query": {parse(query("SELECT * FROM ordes"), good), 13,
			`job "daily" has no input "ordes", which its query reads`},
		"nested": {parse(query("SELECT (SELECT count(*) FROM ordes) AS n FROM orders"), good), 13,
			`job "daily" has no input "ordes", which its query reads`},
		"queries": {parse(`queries: { daily: "FROM ordes" }`, good), 13,
			`job "daily" has no input "ordes", which its query daily reads`},
		"output": {parse(query("FROM output"), good), 13,
			`job "daily" has no input "output", which its query reads`},
		"check": {parse(query(good), "SELECT * FROM ordes"), 15,
			`job "daily" has no input "ordes", which the check reads`},
	} {
		require.Len(t, c.problems, 1, what)
		require.Contains(t, c.problems[0].Message, c.message, what)
		require.Equal(t, c.line, c.problems[0].Line, what)
		if what == "output" {
			require.Equal(t, "use one of: orders", c.problems[0].Suggestion)
		} else {
			require.Equal(t, `did you mean "orders"?`, c.problems[0].Suggestion, what)
		}
	}
}

// A job may have the name of a keyword of SQL. Where a statement has it without quotation marks, that is said there.
func TestNamesThatAreKeywordsAreQuoted(t *testing.T) {
	t.Parallel()
	builtin, err := operators.Builtin(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	const file = `name: shop
jobs:
  - name: order
    operator: file_source
    source: { kind: poll, every: 1m }
    config: { path: orders.csv, format: csv }
  - name: daily
    operator: sql
    inputs: [{ from: { job: order } }]
    config:
      query: |
        SELECT *
        FROM %s
`
	parse := func(name string) dag.Problems {
		text := fmt.Sprintf(file, name)
		_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(text)}, builtin.Catalog(nil))
		return problems
	}
	require.Empty(t, parse(`"order"`))
	problems := parse("order")
	require.Len(t, problems, 1)
	require.Equal(t, `syntax error at or near "order"; order is a keyword of SQL: where it is a name, write "order"`,
		problems[0].Message)
	require.Equal(t, dag.Position{File: "dag.yaml", Line: 13, Column: 14}, problems[0].Position)
}
