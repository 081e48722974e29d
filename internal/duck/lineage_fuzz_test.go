package duck_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/columnlineage"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/relations"
)

// FuzzLineage follows whatever can be parsed, also if it cannot be bound: the walk must end, and name no column that is
// not there.
func FuzzLineage(f *testing.F) {
	tables := readLineageSchema(f, corpus+"/constructs.json")
	files, err := filepath.Glob(corpus + "/*.txt")
	require.NoError(f, err)
	for _, file := range files {
		for _, c := range readCases(f, file) {
			f.Add(c.query, uint8(strings.Count(c.want, "\n")+1))
		}
	}
	s := open(f, duck.Config{})
	f.Fuzz(func(t *testing.T, query string, outputs uint8) {
		q, err := s.Parse(t.Context(), query)
		if err != nil {
			return
		}
		output := make([]relations.Column, outputs)
		for _, c := range q.Explain(tables, output) {
			require.NotEmpty(t, c.Transform)
			for _, source := range c.Sources {
				require.True(t, hasColumn(tables[source.Table], source.Column), "%+v", source)
			}
		}
	})
}

func hasColumn(columns []relations.Column, name string) bool {
	for _, c := range columns {
		if c.Name == name {
			return true
		}
	}
	return false
}

// What is nested or multiplied beyond reason is unsure, and takes no long time.
func TestLineageIsBounded(t *testing.T) {
	t.Parallel()
	s := open(t, duck.Config{})
	columns := make([]duck.Column, 400)
	for i := range columns {
		columns[i] = duck.Column{Name: fmt.Sprintf("c%d", i), Type: "INTEGER"}
	}
	tables := map[string][]duck.Column{"t": columns}

	deep := "SELECT " + strings.Repeat("(1 + ", 400) + "c1" + strings.Repeat(")", 400) + " AS x FROM t"
	q, err := s.Parse(t.Context(), deep)
	require.NoError(t, err)
	require.Equal(t, "x = expression t.c1", shownLineage(q.Explain(tables, []duck.Column{{Name: "x"}})))

	nested := "SELECT c1 AS x FROM t"
	for range 60 {
		nested = "SELECT x FROM (" + nested + ")"
	}
	q, err = s.Parse(t.Context(), nested)
	require.NoError(t, err)
	require.Equal(t, "x = identity t.c1", shownLineage(q.Explain(tables, []duck.Column{{Name: "x"}})))

	// Each of 12 recursive WITHs turns within the turns of the one around it.
	recursive := "SELECT greatest(*COLUMNS(*)) AS x FROM t"
	for i := range 12 {
		recursive = fmt.Sprintf("WITH RECURSIVE r%[1]d AS (SELECT x, 1 AS y, 2 AS z, 3 AS w FROM (%[2]s) UNION ALL "+
			"SELECT w, x, y, z FROM (WITH RECURSIVE q%[1]d AS (%[2]s UNION ALL SELECT x FROM r%[1]d) "+
			"SELECT * FROM q%[1]d) CROSS JOIN (SELECT y, z, w FROM r%[1]d)) SELECT x FROM r%[1]d", i, recursive)
		if len(recursive) > 1<<16 {
			break
		}
	}
	q, err = s.Parse(t.Context(), recursive)
	require.NoError(t, err)
	found := q.Explain(tables, []duck.Column{{Name: "x"}})
	require.Len(t, found, 1)
	require.Contains(t, found[0].Unsure, "too large")
}

func TestReadSchema(t *testing.T) {
	t.Parallel()
	tables, err := columnlineage.ReadSchema([]byte(`{"t": {"b": "INTEGER", "a": "DATE"}, "u": {"x": "VARCHAR"}}`))
	require.NoError(t, err)
	require.Equal(t, map[string][]relations.Column{"t": {{Name: "b", Type: "INTEGER"}, {Name: "a", Type: "DATE"}},
		"u": {{Name: "x", Type: "VARCHAR"}}}, tables)

	for text, want := range map[string]string{
		"":                                   "it is not JSON",
		"[]":                                 "it is not an object of tables",
		`{"t": 1}`:                           `the table "t" is not an object of columns`,
		`{"t": {}}`:                          `the table "t" has no columns`,
		"{\n\"t\": {\"a\": 1}}":              "line 2: the type of t.a is not a text",
		`{"t": {"a": "INT", "A": "INT"}}`:    `the table "t" has the column "A" twice`,
		`{"t": {"a": "INT"}, "T": {}}`:       `the table "T" is there twice`,
		`{"": {"a": "INT"}}`:                 "a table has no name",
		`{"t": {"a": "INT"}} {}`:             "something follows",
		`{"t": {"a": "INT"}`:                 "it is not JSON",
		`{"t": {"a": "INT", "b": ["INT"]}}`:  "the type of t.b is not a text",
		`{"t": {"a": "INT"}, "u": ["a", 1]}`: `the table "u" is not an object of columns`,
	} {
		_, err := columnlineage.ReadSchema([]byte(text))
		require.ErrorContains(t, err, want, text)
	}
}
