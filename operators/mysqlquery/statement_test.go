package mysqlquery

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
			Text: "SELECT * FROM t WHERE at >= CAST(? AS DATETIME(6)) AND at < CAST(? AS DATETIME(6)) " +
				"OR at = CAST(? AS DATETIME(6))",
			Uses: []string{"start", "end", "start"}},
		"SELECT {partition};\n-- done; {start}\n":  {Text: "SELECT ?\n-- done; {start}\n", Uses: []string{"partition"}},
		`SELECT '{1,2}', '''', '\';', "\";" , "a"`: {Text: `SELECT '{1,2}', '''', '\';', "\";" , "a"`},
		"SELECT `a``;\\` # ; {end}":                {Text: "SELECT `a``;\\` # ; {end}"},
		"SELECT 1--2 /* ; /* ' */ , 'x'":           {Text: "SELECT 1--2 /* ; /* ' */ , 'x'"},
		"SELECT /*+ MAX_EXECUTION_TIME(1) */ 1":    {Text: "SELECT /*+ MAX_EXECUTION_TIME(1) */ 1"},
		"SELECT t.into, t.lock FROM t":             {Text: "SELECT t.into, t.lock FROM t"},
		"/* a */ (select 1)":                       {Text: "/* a */ (select 1)"},
		"# a\nTABLE t":                             {Text: "# a\nTABLE t"},
		"--\nSELECT 1":                             {Text: "--\nSELECT 1"},
	} {
		got, err := dialect.Parse(query)
		require.NoError(t, err, query)
		require.Equal(t, want, got, query)
	}
}

func TestWrongStatements(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"":                                   "there is no statement",
		" ; ":                                "there is no statement",
		"SELECT 1; DROP TABLE t":             "there is more than one statement",
		"SELECT 1;--2":                       "there is more than one statement",
		"-- SELECT 1":                        "there is no statement",
		"INSERT INTO t VALUES (1)":           "INTO writes the rows elsewhere",
		"CALL p()":                           "it begins with CALL, and has to be one SELECT",
		"/* a */ COMMIT":                     "it begins with COMMIT",
		"SHOW TABLES":                        "it begins with SHOW",
		"/*!50000 DROP TABLE t */":           "line 1: the server would run what is in this comment",
		"SELECT 1\n/*M!100100 INTO @a */":    "line 2: the server would run what is in this comment",
		"SELECT\n{other}":                    "line 2: { begins no value: there are {partition}, {start} and {end}",
		"SELECT\n'{start}'":                  "line 2: {start} is in quotes",
		"SELECT '\\'{end}'":                  "{end} is in quotes",
		"SELECT `{partition}`":               "{partition} is in quotes",
		"SELECT 'a\\'":                       "does not end",
		"SELECT `a\\``":                      "does not end",
		"SELECT /* a":                        "does not end",
		"SELECT ?":                           "? stands for no value",
		"SELECT 1 AS a INTO @a":              "INTO writes the rows elsewhere",
		"SELECT * FROM t for\nupdate":        "may not lock rows",
		"SELECT * FROM t FOR SHARE":          "may not lock rows",
		"SELECT * FROM t LOCK IN SHARE MODE": "may not lock rows",
		"SELECT 1) AS q; DELETE FROM t":      "nothing opens this parenthesis",
	} {
		_, err := dialect.Parse(query)
		require.ErrorContains(t, err, want, query)
	}
}
