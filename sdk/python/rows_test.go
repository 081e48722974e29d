package python_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/query"
)

const rowsDAG = `name: rows
defaults: { runtime: python }
jobs:
  - { name: parts, operator: handler, source: { kind: manual }, max_attempts: 1, config: { handler: parts } }
  - { name: made, operator: handler, source: { kind: manual }, max_attempts: 1, config: { handler: made } }
  - { name: passed, operator: handler, inputs: [{ from: { job: made } }], max_attempts: 1, config: { handler: passed } }
  - { name: listed, operator: handler, inputs: [{ from: { job: made } }], max_attempts: 1, config: { handler: listed } }
  - name: loaded
    operator: handler
    inputs: [{ from: { job: made } }]
    max_attempts: 1
    config: { handler: loaded }
    outputs: [ndjson, parquet]
publish:
  parts: { from: { job: parts } }
  made: { from: { job: made } }
  passed: { from: { job: passed } }
  listed: { from: { job: listed } }
  ndjson: { from: { job: loaded, output: ndjson } }
  parquet: { from: { job: loaded, output: parquet } }
`

// The types of rows are those that all rows of a commit show, in however many files they went up.
func TestRowsOfManyFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, rowsDAG)
	w.worker(t, "rows.py")
	for _, c := range []struct {
		payload, types string
		rows           int
		last           []any
	}{
		{"numbers", "i DOUBLE", 13, []any{1.5}},
		{"fields", "i BIGINT, more VARCHAR", 13, []any{12.0, "x"}},
		{"dates", "day VARCHAR", 5, []any{"n/a"}},
		{"decimals", "d DECIMAL", 8, []any{"0.125"}},
		{"nothing", "i BIGINT, t VARCHAR", 5, []any{1.0, "x"}},
		{"writes", "i BIGINT, t VARCHAR, f DOUBLE", 2, []any{nil, "y", 0.5}},
	} {
		w.ended(t, w.run(t, "rows/parts", `"`+c.payload+`"`), "Completed")
		found := w.preview(t, "parts")
		require.Equal(t, c.types, typesOf(found), c.payload)
		require.Len(t, found.Rows, c.rows, c.payload)
		require.Equal(t, c.last, found.Rows[c.rows-1], c.payload)
	}
}

// What a handler reads it may write, with the numbers that JSON does not have and those that a float does not hold.
func TestRowsThatArePassedOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, rowsDAG)
	w.worker(t, "rows.py")
	w.ended(t, w.run(t, "rows/made", "null"), "Completed")

	made := w.preview(t, "made")
	require.Equal(t, [][]any{{"NaN", "12345678901234567.25"}, {"-Infinity", "2.00"}, {0.5, "0.25"}}, made.Rows)
	for _, dataset := range []string{"passed", "ndjson", "parquet", "listed"} {
		var found query.Rows
		processtest.Eventually(t, "rows of "+dataset, func() bool {
			out, err := w.command(t, "datasets", "preview", dataset, "--output", "json").Output()
			return err == nil && json.Unmarshal(out, &found) == nil && len(found.Rows) > 0
		})
		if dataset == "listed" {
			require.Equal(t, "p", found.Columns[1].Name)
			require.Equal(t, "all", found.Rows[0][1])
			require.Len(t, found.Rows, 3)
			continue
		}
		if dataset == "passed" || dataset == "parquet" {
			require.Equal(t, typesOf(made), typesOf(found), dataset)
			require.Equal(t, made.Rows, found.Rows, dataset)
		}
		require.Len(t, found.Rows, 3)
		for i, row := range found.Rows {
			require.Equal(t, made.Rows[i][0], row[0], dataset)
		}
	}
}
