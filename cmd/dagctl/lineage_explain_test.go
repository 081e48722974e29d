package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
)

func TestLineageExplain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	schema := filepath.Join(dir, "schema.json")
	query := filepath.Join(dir, "query.sql")
	write := func(path, text string) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write(schema, `{"Sales": {"day": "DATE", "Price": "DOUBLE", "region": "VARCHAR"}, "regions": {"region": "VARCHAR"}}`)
	write(query, "WITH s AS (SELECT *, price * 2 AS twice FROM sales)\n"+
		"SELECT sum(twice) AS total, day FROM s GROUP BY day;")

	for _, output := range []string{"table", "json"} {
		var got map[string]any
		require.NoError(t, json.Unmarshal([]byte(must(t, nil, "lineage", "explain", query, "--schema", schema,
			"--output", output)), &got))
		require.Equal(t, map[string]any{"outputs": []any{
			map[string]any{"column": "total", "transform": "aggregate",
				"sources": []any{map[string]any{"table": "Sales", "column": "Price"}}},
			map[string]any{"column": "day", "transform": "identity",
				"sources": []any{map[string]any{"table": "Sales", "column": "day"}}},
		}}, got)
	}

	piped := dagctlWithInput(t, nil, "SELECT region AS r FROM sales", "lineage", "explain", "-", "--schema", schema)
	require.Zero(t, piped.code, piped.err)
	require.Contains(t, piped.out, `"column": "r"`)
	require.Contains(t, dagctlWithInput(t, nil, "SELECT 1", "lineage", "explain", "-", "--schema", schema).out,
		`"sources": []`)

	for _, test := range []struct{ query, schema, err, next string }{
		{query: "SELECT pric FROM sales", err: `there is no column "pric" (line 1, column 8)`, next: `did you mean "Price"`},
		{query: "SELECT s.x\nFROM sales s", err: `the table "s" has no column "x" (line 1, column 8)`, next: "name a column"},
		{query: "SELECT day,\n  region FROM sales, regions", err: `the column "region" is in several tables (line 2, column 3)`,
			next: `write "Sales.region" or "regions.region"`},
		{query: "SELECT 1 FROM\nsale", err: `there is no table "sale" (line 2, column 1)`, next: "tables of the schema are"},
		{query: "SELECT 1 +", err: "syntax error at end of input", next: "write one SELECT"},
		{query: "SELECT 1; SELECT 2", err: "there are 2 statements; there must be exactly one SELECT",
			next: "write one SELECT"},
		{query: "", err: "there are 0 statements", next: "write one SELECT"},
		{query: "DELETE FROM sales", err: "only a SELECT is allowed here", next: "write one SELECT"},
		{query: "SELECT * FROM read_csv('/etc/passwd')", err: "the table function read_csv is not allowed",
			next: "allowed are range"},
		{query: "SELECT nofunction(day) FROM sales", err: "Scalar Function with name nofunction does not exist",
			next: "functions and types"},
		{query: "SELECT 1", schema: `{"t": {"a": "INTT"}}`, err: `the column "a" has a type that is not known: "INTT"`,
			next: "DuckDB's types"},
		{query: "SELECT 1", schema: "{\n\"t\": [\"a\"]}", err: `line 2: the table "t" is not an object of columns`,
			next: `write {"TABLE": {"COLUMN": "TYPE"`},
	} {
		write(query, test.query)
		path := schema
		if test.schema != "" {
			path = filepath.Join(dir, "other.json")
			write(path, test.schema)
		}
		r := dagctl(t, nil, "lineage", "explain", query, "--schema", path)
		require.Equal(t, cli.ExitFailed, r.code, test.query)
		require.Empty(t, r.out)
		require.Contains(t, r.err, test.err)
		require.Contains(t, r.err, "Next: ")
		require.Contains(t, r.err, test.next)
	}

	require.Contains(t, dagctl(t, nil, "lineage", "explain", query, "--schema", filepath.Join(dir, "none.json")).err,
		"there is no file")
	require.Contains(t, dagctl(t, nil, "lineage", "explain", query).err, "--schema is missing")
}
