package postgresquery

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators/remotequery"
)

func TestPlaceholdersAreParameters(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]remotequery.Statement{
		"SELECT 1": {Text: "SELECT 1"},
		"SELECT * FROM t WHERE at >= {start} AND at < {end} OR at = {start}": {
			Text: "SELECT * FROM t WHERE at >= $1::timestamptz AND at < $2::timestamptz OR at = $1::timestamptz",
			Uses: []string{"start", "end"}},
		"SELECT {partition};\n-- done; {start}\n": {Text: "SELECT $1::text\n-- done; {start}\n",
			Uses: []string{"partition"}},
		"SELECT '{1,2}'::int[], '''', \"a\"\"b\"": {Text: "SELECT '{1,2}'::int[], '''', \"a\"\"b\""},
		`SELECT E'\';', 'a\'`:                     {Text: `SELECT E'\';', 'a\'`},
		"SELECT $$;'$$, $a$ $$; $a$":              {Text: "SELECT $$;'$$, $a$ $$; $a$"},
		"SELECT /* ; /* ' */ */ a$b FROM t":       {Text: "SELECT /* ; /* ' */ */ a$b FROM t"},
		"SELECT (1), (SELECT (2))":                {Text: "SELECT (1), (SELECT (2))"},
		"/* a */ (values (1))":                    {Text: "/* a */ (values (1))"},
		"-- a\nTABLE t":                           {Text: "-- a\nTABLE t"},
	} {
		got, err := dialect.Parse(query)
		require.NoError(t, err, query)
		require.Equal(t, want, got, query)
	}
}

func TestWrongStatements(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"":                              "there is no statement",
		" ; ":                           "there is no statement",
		"SELECT 1; DROP TABLE t":        "there is more than one statement",
		"-- SELECT 1":                   "there is no statement",
		"INSERT INTO t VALUES (1)":      "it begins with INSERT, and has to be one SELECT",
		"/* a */ COMMIT":                "it begins with COMMIT",
		"EXPLAIN SELECT 1":              "it begins with EXPLAIN",
		"SELECT\n{other}":               "line 2: { begins no value: there are {partition}, {start} and {end}",
		"SELECT\n'{start}'":             "line 2: {start} is in quotes",
		"SELECT E'\\'{end}'":            "{end} is in quotes",
		"SELECT $$ {partition} $$":      "{partition} is in quotes",
		"SELECT \"{partition}\"":        "{partition} is in quotes",
		"SELECT 'a":                     "does not end",
		"SELECT E'a\\'":                 "does not end",
		"SELECT $a$ $b$":                "does not end",
		"SELECT /* a /* b */":           "does not end",
		"SELECT $1":                     "$ begins no text",
		"SELECT 1) AS q; DELETE FROM t": "nothing opens this parenthesis",
	} {
		_, err := dialect.Parse(query)
		require.ErrorContains(t, err, want, query)
	}
}
