package seed_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/operatortest"
	"github.com/dagctl/dagctl/operators/seed"
	"github.com/dagctl/dagctl/operators/standard"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	op, err := seed.New(operators.Options{})
	require.NoError(t, err)
	const countries = "code,name,people,since\nNA,Namibia,2.5,1990-03-21\nXK,,,2008-02-17\n"
	operatortest.Run(t, op,
		operatortest.Case{Name: "rows", Config: map[string]any{"csv": countries},
			Want: map[string][]string{"out": {"'code': NA, 'name': Namibia, 'people': 2.5, 'since': 1990-03-21",
				"'code': XK, 'name': NULL, 'people': NULL, 'since': 2008-02-17"}}},
		operatortest.Case{Name: "types and a delimiter",
			Config: map[string]any{"csv": "code;rate\n007;1.5\n", "types": map[string]any{"code": "VARCHAR",
				"rate": "DECIMAL(6, 2)"}},
			Want: map[string][]string{"out": {"'code': 007, 'rate': 1.50"}}},
		operatortest.Case{Name: "no rows", Config: map[string]any{"csv": "code\n",
			"types": map[string]any{"code": "VARCHAR"}}, Want: map[string][]string{"out": {}}},
		operatortest.Case{Name: "empty", Config: map[string]any{"csv": ""}, Refused: "is empty"},
		operatortest.Case{Name: "a value that does not fit", Config: map[string]any{"csv": "code,n\na,1\nb,x\n",
			"types": map[string]any{"n": "INTEGER"}}, Refused: `line 3, column n: "x"`},
		operatortest.Case{Name: "too few values", Config: map[string]any{"csv": "code,n\na,1\nb\n"},
			Refused: "line 3: \"b\" has 1 values, not 2"},
		operatortest.Case{Name: "an open quote", Config: map[string]any{"csv": "code,n\n\"a,1\nb,2\n"},
			Refused: "line 2 begins a quoted value that never ends"},
		operatortest.Case{Name: "a name twice", Config: map[string]any{"csv": "code,Code\na,1\n"},
			Refused: `line 1: column "Code" comes twice`},
		operatortest.Case{Name: "no name", Config: map[string]any{"csv": "code,,n\na,1,2\n"},
			Refused: "line 1: column 2 has no name"},
		operatortest.Case{Name: "no header", Config: map[string]any{"csv": "1,2\n3,4\n"},
			Refused: "line 1 has values where the names of the columns should be: 1,2"},
		operatortest.Case{Name: "a column of nothing", Config: map[string]any{"csv": "code,note\na,\n"},
			Refused: "column note has no value that shows its type"},
		operatortest.Case{Name: "too much", Config: map[string]any{"csv": "a\n" + strings.Repeat("b\n", 1<<19)},
			Refused: "more than 1048576 bytes"},
		operatortest.Case{Name: "a type of no column", Config: map[string]any{"csv": "code,rate\na,1\n",
			"types": map[string]any{"rat": "DOUBLE"}},
			Refused: `types: the table has no column "rat": line 1 names code, rate; did you mean "rate"?`},
		operatortest.Case{Name: "a type that is none", Config: map[string]any{"csv": "a\nb\n",
			"types": map[string]any{"a": "NUMBR"}}, Refused: "NUMBR"},
	)
}

// Columns and types of a seed are known without a server, so that those who read it are checked.
func TestReadersOfASeedAreChecked(t *testing.T) {
	t.Parallel()
	ops, err := standard.New(operators.Options{Engines: enginetest.Engines(), Threads: 1})
	require.NoError(t, err)
	catalog := ops.Catalog(nil)
	parse := func(job, csv, query string) (*dag.Document, dag.Problems) {
		text := fmt.Sprintf("name: shop\njobs:\n  - { name: countries, operator: seed, "+
			"config: { csv_file: data/countries.csv }%s }\n  - name: named\n    operator: sql\n"+
			"    inputs: [{ from: { job: countries } }]\n    config: { query: \"%s\" }\n", job, query)
		return dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(text),
			Files: dag.InMemory(map[string][]byte{"data/countries.csv": []byte(csv)})}, catalog)
	}

	const rows, query = "code,people\nNA,2\nXK,1\n", "SELECT code, people + 1 AS more FROM countries"
	doc, problems := parse("", rows, query)
	require.Empty(t, problems)
	require.Equal(t, [][]dag.Column{{{Name: "code", Type: "VARCHAR"}, {Name: "people", Type: "BIGINT"}}},
		doc.Columns["countries"])
	require.Equal(t, "more", doc.Columns["named"][0][1].Name)

	for what, c := range map[string]struct{ job, csv, query, says string }{
		"a column":    {"", rows, "SELECT cod FROM countries", `"cod"`},
		"a bad row":   {"", "code,people\nNA,2,3\n", query, `data/countries.csv: line 2: "NA,2,3" has 3 values`},
		"partitions":  {", partition_by: { time: day }", rows, query, "leave `partition_by` out"},
		"a source":    {", source: { kind: manual }", rows, query, "a job of operator seed has no `source`"},
		"inputs":      {", inputs: [{ from: { job: named } }]", rows, query, "a job of operator seed has no `inputs`"},
		"appends":     {", update_strategy: append, unique_key: [code]", rows, query, "leave `update_strategy` out"},
		"two outputs": {", outputs: [a, b]", rows, query, "a seed has one output, not 2"},
		"a trigger":   {", trigger: all", rows, query, "`trigger` is for jobs with inputs"},
	} {
		_, problems := parse(c.job, c.csv, c.query)
		require.NotEmpty(t, problems, what)
		require.Contains(t, problems.Error(), c.says, what)
	}
	_, problems = parse("", strings.Repeat("a,b\n", 1<<19), query)
	require.Contains(t, problems.Error(), `cannot use file "data/countries.csv": it has more than 1048576 bytes`)

	// Its readers follow its rows, however its lines end.
	print := func(csv string) string {
		doc, problems := parse("", csv, query)
		require.Empty(t, problems)
		definitions, err := dag.Define(doc, catalog)
		require.NoError(t, err)
		prints, err := definitions.Fingerprints(nil)
		require.NoError(t, err)
		return prints["named"].Value
	}
	require.Equal(t, print(rows), print(strings.ReplaceAll(rows, "\n", "\r\n")))
	require.NotEqual(t, print(rows), print(rows+"DE,83\n"))
}
