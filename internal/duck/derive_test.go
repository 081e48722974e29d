package duck_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
)

// known are the relations of these tests: two whose columns are known, and one whose are not.
var known = map[string][]string{"a": {"k", "x", "y", "Name"}, "b": {"k", "z", "t"}, "o": nil}

func derive(t *testing.T, s *duck.Session, query string) (duck.Derivation, bool) {
	t.Helper()
	q, err := s.Parse(t.Context(), query)
	require.NoError(t, err, query)
	return q.Derive(known)
}

// An edit leaves those parts of a result as they are that it does not touch.
func TestDeriveComparesParts(t *testing.T) {
	t.Parallel()
	s := open(t, duck.Config{})
	for _, c := range []struct {
		name, before, after string
		rows                bool     // the same rows
		same                []string // columns that stay as they are
	}{
		{"layout", "SELECT x, y FROM a", "select x ,  y\nFROM A -- all", true, []string{"x", "y"}},
		{"name in capitals", "SELECT x, y FROM a", "SELECT X, y FROM a", true, []string{"y"}},
		{"added", "SELECT x FROM a", "SELECT x + 1 AS w, x FROM a", true, []string{"x"}},
		{"changed", "SELECT x, y AS v FROM a", "SELECT x, y + 1 AS v FROM a", true, []string{"x"}},
		{"cast", "SELECT x, y FROM a", "SELECT x::VARCHAR AS x, y FROM a", true, []string{"y"}},
		{"renamed", "SELECT x, y FROM a", "SELECT x, y AS Y2 FROM a", true, []string{"x"}},
		{"case of a name", "SELECT x, y AS v FROM a", "SELECT x, y AS V FROM a", true, []string{"x"}},
		{"swapped", "SELECT x, y FROM a", "SELECT y AS x, x AS y FROM a", true, nil},
		{"where", "SELECT x, y FROM a", "SELECT x, y FROM a WHERE y > 1", false, []string{"x", "y"}},
		{"order", "SELECT x, y FROM a ORDER BY x", "SELECT x, y FROM a ORDER BY y", true, []string{"x", "y"}},
		{"join", "SELECT x FROM a JOIN b ON a.k = b.k", "SELECT x FROM a LEFT JOIN b ON a.k = b.k", false,
			[]string{"x"}},
		{"condition", "SELECT x FROM a JOIN b ON a.k = b.k", "SELECT x FROM a JOIN b ON a.k = b.z", false,
			[]string{"x"}},
		{"another aggregate", "SELECT x, sum(y) AS s FROM a GROUP BY x",
			"SELECT x, sum(y) AS s, max(y) AS m FROM a GROUP BY x", true, []string{"x", "s"}},
		{"the first aggregate", "SELECT 1 AS one FROM a", "SELECT 1 AS one, count(*) AS n FROM a", false,
			[]string{"one"}},
		{"an aggregate in a window", "SELECT 1 AS one FROM a", "SELECT 1 AS one, sum(count(*)) OVER () AS n FROM a",
			false, []string{"one"}},
		{"an aggregate in the order", "SELECT 1 AS one FROM a", "SELECT 1 AS one FROM a ORDER BY count(*)", false,
			[]string{"one"}},
		{"a window", "SELECT x FROM a", "SELECT x, sum(y) OVER (PARTITION BY x) AS s FROM a", true, []string{"x"}},
		{"distinct", "SELECT DISTINCT x FROM a", "SELECT DISTINCT x, y FROM a", false, []string{"x"}},
		{"group by place", "SELECT x, count(*) AS n FROM a GROUP BY 1",
			"SELECT y AS x, count(*) AS n FROM a GROUP BY 1", false, []string{"n"}},
		{"group by alias", "SELECT lower(name) AS g, count(*) AS n FROM a GROUP BY g",
			"SELECT upper(name) AS g, count(*) AS n FROM a GROUP BY g", false, []string{"n"}},
		{"alias further on", "SELECT x + 1 AS v, v * 2 AS w, y FROM a", "SELECT x + 2 AS v, v * 2 AS w, y FROM a", true,
			[]string{"y"}},
		{"alias in where", "SELECT x + 1 AS v, y FROM a WHERE v > 1", "SELECT x + 2 AS v, y FROM a WHERE v > 1", false,
			[]string{"y"}},
		{"with", "WITH c AS (SELECT x, y + 1 AS v FROM a) SELECT x, v FROM c",
			"WITH c AS (SELECT x, y + 2 AS v, k FROM a) SELECT x, v FROM c", false, []string{"x"}},
		{"rows of with", "WITH c AS (SELECT x FROM a) SELECT x FROM c",
			"WITH c AS (SELECT x FROM a WHERE y > 1) SELECT x FROM c", false, []string{"x"}},
		{"qualify", "SELECT x FROM a", "SELECT x FROM a QUALIFY rank() OVER (ORDER BY y) = 1", false, []string{"x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, ok := derive(t, s, c.before)
			require.True(t, ok, c.before)
			after, ok := derive(t, s, c.after)
			require.True(t, ok, c.after)
			if c.name != "with" { // columns that nobody reads are no part of the rows
				require.Equal(t, c.rows, before.Rows.Form == after.Rows.Form, "rows")
			}
			var same []string
			for _, b := range before.Columns {
				if slices.ContainsFunc(after.Columns, func(a duck.DerivedPart) bool {
					return a.Name == b.Name && a.Form == b.Form
				}) {
					same = append(same, b.Name)
				}
			}
			require.Equal(t, c.same, same)
		})
	}
}

// What is named is read, by everything that the name could mean.
func TestDeriveListsWhatIsRead(t *testing.T) {
	t.Parallel()
	s := open(t, duck.Config{})
	for query, want := range map[string]string{
		"SELECT count(*) AS n FROM a":                       "",
		"SELECT NAME FROM a":                                "a.name",
		`SELECT "x" FROM a AS q WHERE q.y > 1`:              "a.x a.y",
		"SELECT x FROM a ORDER BY y":                        "a.x a.y",
		"SELECT x FROM a JOIN b USING (k)":                  "a.k a.x b.k",
		"SELECT k FROM a JOIN b ON a.x = b.z":               "a.k a.x b.k b.z",
		"SELECT x, whatever FROM a, o":                      "a.x",
		"WITH c AS (SELECT x, y FROM a) SELECT x FROM c":    "a.x a.y",
		"SELECT x FROM (SELECT x, k FROM a WHERE y = 1) q":  "a.k a.x a.y",
		"WITH a AS (SELECT z AS x FROM b) SELECT x FROM a":  "b.z",
		"SELECT b.t FROM b WHERE z = getvariable('start')":  "b.t b.z",
		"SELECT x FROM a SEMI JOIN b ON a.k = b.k":          "a.k a.x b.k",
		"SELECT CASE WHEN x > 1 THEN y END AS c FROM a":     "a.x a.y",
		"SELECT max(x) FILTER (WHERE y IN (1, 2)) m FROM a": "a.x a.y",
	} {
		d, ok := derive(t, s, query)
		require.True(t, ok, query)
		var reads []string
		for _, c := range d.Reads {
			reads = append(reads, c.Relation+"."+c.Column)
		}
		require.Equal(t, want, strings.Join(reads, " "), query)
	}
}

// Two columns of one name, and names that DuckDB makes up, are no columns that a reader could name.
func TestDeriveWithoutNames(t *testing.T) {
	t.Parallel()
	s := open(t, duck.Config{})
	for _, query := range []string{"SELECT x + 1 FROM a", "SELECT x, y AS X FROM a"} {
		d, ok := derive(t, s, query)
		require.True(t, ok, query)
		require.Nil(t, d.Columns, query)
		require.NotEmpty(t, d.Reads, query)
	}
}

func TestDeriveIsUnsure(t *testing.T) {
	t.Parallel()
	s := open(t, duck.Config{})
	for _, query := range []string{
		"SELECT * FROM a",
		"SELECT a.* FROM a",
		"SELECT a FROM a",
		"SELECT COLUMNS('x') FROM a",
		"SELECT missing FROM a",
		"SELECT a.missing FROM a",
		"SELECT x.y FROM a",
		"SELECT a.x.y FROM a",
		"SELECT t.k FROM a AS t JOIN b ON t.k = b.k",
		"SELECT random() AS r FROM a",
		"SELECT now() AS r FROM a",
		"SELECT current_date AS r FROM a",
		"SELECT uuid() AS r FROM a",
		"SELECT unknown_function(x) AS r FROM a",
		"SELECT unnest([x]) AS r FROM a",
		"SELECT first(x) AS r FROM a",
		"SELECT string_agg(x, ',') AS r FROM a",
		"SELECT list(x) AS r FROM a",
		"SELECT arg_max(x, y) AS r FROM a",
		"SELECT max(x, 2) AS r FROM a",
		"SELECT row_number() OVER (ORDER BY y) AS r FROM a",
		"SELECT lag(x) OVER (ORDER BY y) AS r FROM a",
		"SELECT sum(x) OVER (ORDER BY y ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS r FROM a",
		"SELECT x FROM a LIMIT 3",
		"SELECT x FROM a ORDER BY x LIMIT 3",
		"SELECT DISTINCT ON (x) x, y FROM a",
		"SELECT x, count(*) AS n FROM a GROUP BY ALL",
		"SELECT x FROM a ORDER BY ALL",
		"SELECT x FROM a GROUP BY GROUPING SETS ((x), ())",
		"SELECT x FROM a GROUP BY ROLLUP (x)",
		"SELECT 1 AS x FROM a GROUP BY ()",
		"SELECT x FROM a UNION ALL SELECT z FROM b",
		"SELECT x FROM a NATURAL JOIN b",
		"SELECT x FROM a POSITIONAL JOIN b",
		"SELECT x FROM a ASOF JOIN b ON a.k = b.k AND a.y >= b.z",
		"SELECT x FROM a, (SELECT z FROM b) q",
		"SELECT x, (SELECT max(z) FROM b) AS m FROM a",
		"SELECT x FROM a WHERE k IN (SELECT k FROM b)",
		"SELECT x FROM a WHERE EXISTS (FROM b)",
		"SELECT x FROM a USING SAMPLE 3",
		"SELECT x FROM a TABLESAMPLE 10%",
		"SELECT q FROM a AS t(q)",
		"SELECT range FROM range(3)",
		"SELECT x FROM a, a",
		"FROM a",
		"VALUES (1)",
		"SELECT 1 AS one",
		"WITH RECURSIVE c AS (SELECT x FROM a UNION ALL SELECT x + 1 FROM c WHERE x < 3) SELECT x FROM c",
		"WITH c(q) AS (SELECT x FROM a) SELECT q FROM c",
		"WITH c AS (SELECT x + 1 FROM a) SELECT 1 AS one FROM c",
		"SELECT o FROM o",
		"PIVOT a ON x IN (1, 2) USING sum(y)",
	} {
		q, err := s.Parse(t.Context(), query)
		if err != nil {
			continue // no such query has keys, either
		}
		_, ok := q.Derive(known)
		require.False(t, ok, query)
	}
}

// Sets of groups that differ make different rows, so their queries are different definitions.
func TestGroupingSetsAreInTheCanonicalForm(t *testing.T) {
	t.Parallel()
	s := open(t, duck.Config{})
	forms := map[string]string{}
	for _, query := range []string{"SELECT x FROM a GROUP BY x", "SELECT x FROM a GROUP BY ROLLUP (x)",
		"SELECT 1 AS x FROM a", "SELECT 1 AS x FROM a GROUP BY ()"} {
		q, err := s.Parse(t.Context(), query)
		require.NoError(t, err)
		require.NotContains(t, forms, string(q.Canonical), "%s has the form of %s", query, forms[string(q.Canonical)])
		forms[string(q.Canonical)] = query
	}
}
