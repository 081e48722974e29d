package duck_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
)

func TestColumns(t *testing.T) {
	t.Parallel()
	s := open(t, duck.Config{})
	relations := map[string][]duck.Column{"t": {{Name: "a"}, {Name: "B"}, {Name: "c"}}, "u": {{Name: "a"}, {Name: "d"}}}
	every := map[string][]string{"t": {"a", "B", "c"}, "u": {"a", "d"}}
	for _, test := range []struct {
		query string
		t, u  []string
	}{
		{query: "SELECT a FROM t", t: []string{"a"}, u: []string{"a"}},
		{query: "SELECT t.b FROM t WHERE C > 1", t: []string{"B", "c"}},
		{query: "SELECT 1 FROM t"},
		{query: "SELECT count(*) FROM t"},
		{query: "SELECT x.c AS total FROM t AS x ORDER BY total", t: []string{"c"}},
		{query: "SELECT c.field FROM t", t: []string{"c"}},
		{query: "SELECT 1 FROM t JOIN u USING (a)", t: []string{"a"}, u: []string{"a"}},
		{query: "WITH q AS (SELECT b FROM t) SELECT q.b FROM q", t: []string{"B"}},
		{query: "SELECT (SELECT max(d) FROM u) FROM t", u: []string{"d"}},
		{query: "SELECT list_transform([1], lambda x: x + c) FROM t", t: []string{"c"}},
		{query: "SELECT sum(b) OVER (PARTITION BY c) FROM t", t: []string{"B", "c"}},
		{query: "SELECT * FROM t", t: every["t"], u: every["u"]},
		{query: "FROM t", t: every["t"], u: every["u"]},
		{query: "SELECT x.* EXCLUDE (a) FROM t x", t: every["t"], u: every["u"]},
		{query: "SELECT COLUMNS('^b') FROM t", t: every["t"], u: every["u"]},
		{query: "SELECT t FROM t", t: every["t"], u: every["u"]},
		{query: "SELECT to_json(x) FROM t AS x", t: every["t"], u: every["u"]},
		{query: "SELECT 1 FROM t NATURAL JOIN u", t: every["t"], u: every["u"]},
		{query: "SELECT count(1) FROM (PIVOT t ON a IN (1) USING sum(b))", t: every["t"], u: every["u"]},
		{query: "SELECT 1 WHERE EXISTS (FROM t)", t: every["t"], u: every["u"]},
	} {
		q, err := s.Parse(t.Context(), test.query)
		require.NoError(t, err, test.query)

		read := q.Columns(relations)
		require.ElementsMatch(t, test.t, read["t"], test.query)
		require.ElementsMatch(t, test.u, read["u"], test.query)
	}
}

func TestPlaceAndRefusedFunctions(t *testing.T) {
	t.Parallel()
	s := open(t, duck.Config{})
	q, err := s.Parse(t.Context(), "SELECT 1\nFROM a,\n  \"B c\", (SELECT Upper('x') AS y), a AS again")
	require.NoError(t, err)
	require.Equal(t, " (line 2, column 6)", q.Place("A"))
	require.Equal(t, " (line 3, column 3)", q.Place("b C"))
	require.Empty(t, q.Place("nothing"))

	for _, query := range []string{
		"SELECT CURRENT_SETTING('x')", "SELECT main.current_setting('x')", "SELECT ('x').current_setting()",
		"SELECT [\"current_setting\"('x')]",
		"SELECT list_transform(['x'], lambda s: current_setting(s))",
		"WITH c AS (SELECT system.main.current_setting('x')) SELECT 1",
		"SELECT 1 ORDER BY current_setting('x')", "SELECT 1 LIMIT current_setting('x')",
		"SELECT max(1) FILTER (current_setting('x') = 'y')",
		"SELECT sum(1) OVER (ORDER BY current_setting('x'))", "FROM range(current_setting('x'))",
	} {
		_, err := s.Parse(t.Context(), query)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", query, err)
		require.ErrorContains(t, err, "the function current_setting is not allowed (line 1, column ", query)
	}
	_, err = s.Parse(t.Context(), "SELECT 1,\n  json_serialize_plan('SELECT 1')")
	require.ErrorContains(t, err, "the function json_serialize_plan is not allowed (line 2, column 3)")
}
