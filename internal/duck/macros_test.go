package duck

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const testMacros = `-- Money and dates; a semicolon in a comment: ;
CREATE MACRO net(amount, rate := 0.19) AS amount / (1 + rate);
CREATE OR REPLACE MACRO gross(amount) AS net(amount, rate := 0.07) * 2;
/* tables */
CREATE MACRO recent(since, lowest := 1 + 1) AS TABLE
  SELECT o.id, net(o.amount) AS amount, since AS since FROM orders o WHERE o.day >= since AND o.amount > lowest;
create macro label(x) as CASE WHEN x LIKE 'it''s;%' THEN 'a;b' ELSE $$c;$$ END;
CREATE MACRO is_big(x) AS x > 3;
CREATE MACRO among(x) AS x IN (1, 5, 7) OR is_big(x);
CREATE MACRO two() AS 2.5;
CREATE MACRO total() AS (SELECT sum(amount) FROM orders);
CREATE MACRO doubled(l) AS list_transform(l, lambda e: e * 2);
`

func macros(t *testing.T, s *Session, files ...string) Macros {
	t.Helper()
	all, faults, err := s.ReadMacros(t.Context(), files)
	require.NoError(t, err)
	for _, of := range faults {
		require.Empty(t, of)
	}
	return all
}

// What is written out is what DuckDB itself computes with the macros.
func TestMacrosAreWrittenOutAsDuckDBUnderstandsThem(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Config{Threads: 1})
	require.NoError(t, err)
	defer s.Close()
	real, err := Open(t.Context(), Config{Threads: 1})
	require.NoError(t, err)
	defer real.Close()
	const orders = "CREATE TABLE orders AS SELECT i AS id, i * 1.5 AS amount, DATE '2026-01-01' + i::INTEGER AS day " +
		"FROM range(20) AS r(i)"
	require.NoError(t, s.Exec(t.Context(), orders))
	require.NoError(t, real.Exec(t.Context(), orders))
	require.NoError(t, real.Exec(t.Context(), testMacros))

	all := macros(t, s, testMacros)
	for _, query := range []string{
		"SELECT net(amount) FROM orders",
		"SELECT net(amount), net(amount) + 1, NET(amount, 0.5) AS n, net(rate := id, amount := 2) FROM orders",
		"SELECT gross(net(gross(amount))) AS x FROM orders ORDER BY net(amount) DESC",
		"SELECT net(sum(amount)) AS n, day FROM orders GROUP BY day HAVING net(sum(amount)) > 3 ORDER BY ALL",
		"SELECT * FROM recent(DATE '2026-01-05') ORDER BY id",
		"SELECT r.id, o.amount FROM orders o JOIN recent(DATE '2026-01-05', 5) r USING (id) ORDER BY 1",
		"SELECT * FROM recent(DATE '2026-01-05') AS r(a, b, c) WHERE net(b) > 2 ORDER BY a",
		"WITH big AS (FROM recent(DATE '2026-01-09')) SELECT count(*), total() FROM big",
		"SELECT label('it''s;x') AS a, label('no') AS b, doubled([1, 2]) AS c",
		"SELECT id, sum(net(amount)) OVER (PARTITION BY id % 2 ORDER BY net(id)) AS s FROM orders",
		"SELECT CASE WHEN net(amount) > 3 THEN net(1) ELSE -net(-amount) END FROM orders WHERE id IN (SELECT id FROM " +
			"recent(DATE '2026-01-10')) UNION ALL SELECT net(5)",
		"SELECT NOT is_big(amount), -two(), is_big(id) AND is_big(amount) AND NOT among(id) AS x FROM orders",
		"SELECT COLUMNS(c -> c LIKE 'a%') FROM recent(DATE '2026-01-15')",
	} {
		written, err := s.Expand(t.Context(), query, all)
		require.NoError(t, err, query)
		require.NotEqual(t, query, written)
		_, err = s.Parse(t.Context(), written)
		require.NoError(t, err, written)

		want, err := real.Describe(t.Context(), query)
		require.NoError(t, err, query)
		have, err := s.Describe(t.Context(), written)
		require.NoError(t, err, written)
		require.Equal(t, want, have, "%s\n%s", query, written)
		var wanted, got string
		const rows = "SELECT list(q::VARCHAR)::VARCHAR FROM (%s) q"
		require.NoError(t, real.Value(t.Context(), &wanted, strings.Replace(rows, "%s", query, 1)), query)
		require.NoError(t, s.Value(t.Context(), &got, strings.Replace(rows, "%s", written, 1)), written)
		require.Equal(t, wanted, got, "%s\n%s", query, written)
	}

	const none = "SELECT  id -- as it is\nFROM orders"
	written, err := s.Expand(t.Context(), none, all)
	require.NoError(t, err)
	require.Equal(t, none, written)
}

// The columns of an input are followed through macros.
func TestLineageSeesThroughMacros(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Config{Threads: 1})
	require.NoError(t, err)
	defer s.Close()
	written, err := s.Expand(t.Context(), "SELECT id, gross(amount) AS g FROM recent(DATE '2026-01-05')",
		macros(t, s, testMacros))
	require.NoError(t, err)
	q, err := s.Parse(t.Context(), written)
	require.NoError(t, err)
	require.Equal(t, []string{"orders"}, q.Relations)
	known := map[string][]Column{"orders": {{Name: "id", Type: "BIGINT"}, {Name: "amount", Type: "DOUBLE"},
		{Name: "day", Type: "DATE"}}}
	require.Equal(t, []Origin{{OutputColumn: "id", Relation: "orders", Column: "id", Transform: "identity"},
		{OutputColumn: "g", Relation: "orders", Column: "amount", Transform: "expression"}},
		q.Lineage(known, []Column{{Name: "id", Type: "BIGINT"}, {Name: "g", Type: "DOUBLE"}}))
}

func TestFilesOfMacrosThatAreRefused(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Config{Threads: 1})
	require.NoError(t, err)
	defer s.Close()
	const many = "CREATE MACRO a(x) AS x+x+x+x; CREATE MACRO b(x) AS a(a(a(a(a(a(a(a(a(a(x))))))))))"
	for file, says := range map[string]string{
		"CREATE TABLE x AS SELECT 1":                               "statements only (line 1, column 1)",
		"\n  SELECT 1;":                                            "statements only (line 2, column 3)",
		"CREATE TEMP MACRO f() AS 1":                               "has CREATE MACRO statements only",
		"CREATE MACRO s.f() AS 1":                                  "(line 1, column 15)",
		"CREATE MACRO f AS 1":                                      "its parameters in brackets",
		"CREATE MACRO f(a INTEGER) AS a":                           "a parameter is a name, or a name with",
		"CREATE MACRO f(a, A) AS a":                                `has two parameters "A"`,
		"CREATE MACRO f(a := 1, b) AS a":                           `parameter "b" of macro "f" needs a default`,
		"CREATE MACRO f(a := ) AS a":                               "has no default",
		"CREATE MACRO f(a)":                                        "stands AS",
		"CREATE MACRO f(a) AS":                                     "has no body",
		"CREATE MACRO f(a) AS a, (a, b) AS c":                      "a macro is one expression",
		"CREATE MACRO f(a) AS a FROM t":                            "a macro is one expression",
		"CREATE MACRO f(a) AS\n  a + ) 2":                          "(line 2",
		"CREATE MACRO f() AS 'x":                                   "a quote is not closed (line 1, column 21)",
		"/* CREATE MACRO f() AS 1":                                 "a comment is not closed",
		"CREATE MACRO f() AS 1; CREATE MACRO F() AS 2":             `there are two macros "F"`,
		"CREATE MACRO sum(a) AS a":                                 "has the name of a function of DuckDB",
		"CREATE MACRO f() AS g(); CREATE MACRO g() AS f()":         "calls itself",
		"CREATE MACRO f(x) AS list_transform([1], lambda x: x)":    "has the macro's parameter",
		"CREATE MACRO f() AS\n getenv('HOME')":                     "getenv is not allowed (line 2, column 2)",
		"CREATE MACRO f(a := current_setting('x')) AS a":           "the function current_setting is not allowed",
		"CREATE MACRO f() AS TABLE FROM read_csv('/etc/passwd')":   "the table function read_csv is not allowed",
		"CREATE MACRO f() AS TABLE FROM '/etc/passwd'":             "",
		"CREATE MACRO f() AS (SELECT 1 FROM glob('*'))":            "the table function glob is not allowed",
		"CREATE MACRO f() AS TABLE FROM information_schema.tables": "is not allowed",
		"CREATE MACRO f() AS TABLE FROM query('SELECT 1')":         "the table function query is not allowed",
		"CREATE MACRO f() AS TABLE DELETE FROM x":                  "SELECT",
		"CREATE MACRO f() AS $1":                                   "parameters ($name, ?) are not allowed",
		"CREATE MACRO f() AS 1; ATTACH 'x'":                        "has CREATE MACRO statements only",
		many:                                                       "more than 50000 parts",
	} {
		_, faults, err := s.ReadMacros(t.Context(), []string{file})
		require.NoError(t, err, file)
		if says == "" {
			continue // a plain name of a relation, which no job has as an input
		}
		require.NotEmpty(t, faults[0], file)
		require.Contains(t, faults[0][0].Message, says, file)
	}
}

func TestCallsThatAreRefused(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Config{Threads: 1})
	require.NoError(t, err)
	defer s.Close()
	all := macros(t, s, testMacros)
	for query, says := range map[string]string{
		"SELECT 1,\n net()":                        `"amount": it is net(amount, rate := ...) (line 2, column 2)`,
		"SELECT net(1, 2, 3)":                      `gets 3 arguments`,
		"SELECT net(1, tax := 2)":                  `has no parameter "tax"`,
		"SELECT net(1, amount := 2)":               `gets its parameter "amount" twice`,
		"SELECT net(x) OVER () FROM orders":        "takes no OVER",
		"SELECT net(DISTINCT x) FROM orders":       "takes no OVER",
		"SELECT recent(1)":                         "is a table: it stands in FROM",
		"FROM net(1)":                              "is an expression and no table",
		"SELECT main.net(1)":                       "is called by its name alone",
		"WITH orders AS (SELECT 1) SELECT total()": `a WITH beside its call defines another`,
		"SELECT net(getenv('HOME'))":               "the function getenv is not allowed (line 1, column 12)",
		"SELECT net(1) FROM read_csv('x')":         "the table function read_csv is not allowed",
	} {
		_, err := s.Expand(t.Context(), query, all)
		require.ErrorContains(t, err, says, query)
	}
}
