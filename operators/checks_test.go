package operators_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
)

func TestChecks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := func(query string) (operators.Assignment, operators.Written) {
		a := assignment("sql", map[string]any{"query": query})
		return a, w.mustRun(t, a).Written[0]
	}

	a, output := made(`SELECT * FROM (VALUES (1, 'SFO', TIMESTAMPTZ '2024-01-31 10:00:00+00', '2024-01-31'::DATE),
			(2, 'XXX', NULL, NULL), (2, NULL, TIMESTAMPTZ '2024-01-31 12:00:00+00', NULL), (NULL, 'LAX', NULL,
			NULL)) t(id, iata, seen, day)`)
	b, airports := made(`SELECT * FROM (VALUES ('SFO'), ('LAX'), (NULL)) t(code)`)
	wide, wideOut := made("SELECT repeat('x', 10000) AS x FROM range(100)")
	now := time.Date(2024, 1, 31, 13, 0, 0, 0, time.UTC)
	one, ten := int64(1), int64(10)

	for _, test := range []struct {
		check    dag.Check
		failures int64
		sample   string
		err      string
	}{
		{check: dag.Check{Kind: "not_null", Columns: []string{"id"}}, failures: 1,
			sample: `{"columns": ["id", "iata", "seen", "day"], "rows": [[null, "LAX", null, null]]}`},
		{check: dag.Check{Kind: "not_null", Columns: []string{"id", "iata"}}, failures: 2},
		{check: dag.Check{Kind: "not_null", Columns: []string{`id" OR 1=1 --`}}, err: "the output has no column"},
		{check: dag.Check{Kind: "not_null"}, err: "names no column"},
		{check: dag.Check{Kind: "unique", Columns: []string{"id"}}, failures: 2},
		{check: dag.Check{Kind: "unique", Columns: []string{"id", "iata"}}},
		{check: dag.Check{Kind: "accepted_values", Columns: []string{"id"}, Values: []any{1.0, "2"}}},
		{check: dag.Check{Kind: "accepted_values", Columns: []string{"iata"}, Values: []any{"SFO", "LAX"}}, failures: 1,
			sample: `{"columns": ["id", "iata", "seen", "day"], "rows": [[2, "XXX", null, null]]}`},
		{check: dag.Check{Kind: "accepted_values", Columns: []string{"day"}, Values: []any{"2024-01-31"}}},
		{check: dag.Check{Kind: "accepted_values", Columns: []string{"id"}, Values: []any{"x"}},
			err: `no value of it equals the text "x"; write a whole number`},
		{check: dag.Check{Kind: "row_count", Min: &one, Max: &ten}},
		{check: dag.Check{Kind: "row_count", Min: &ten}, failures: 1,
			sample: `{"columns": ["row_count"], "rows": [[4]]}`},
		{check: dag.Check{Kind: "row_count", Max: &one}, failures: 1},
		{check: dag.Check{Kind: "freshness", Columns: []string{"seen"}, Within: time.Hour}},
		{check: dag.Check{Kind: "freshness", Columns: []string{"seen"}, Within: time.Minute}, failures: 1,
			sample: `{"columns": ["latest"], "rows": [["2024-01-31 12:00:00+00"]]}`},
		{check: dag.Check{Kind: "freshness", Columns: []string{"day"}, Within: 14 * time.Hour}},
		{check: dag.Check{Kind: "freshness", Columns: []string{"iata"}, Within: time.Hour},
			err: `freshness: column "iata" is VARCHAR`},
		{check: dag.Check{Kind: "relationships", Columns: []string{"iata"}, To: &dag.CheckRelation{Input: "airports",
			Column: "code"}}, failures: 1},
		{check: dag.Check{Kind: "relationships", Columns: []string{"iata"}, To: &dag.CheckRelation{Input: "airports",
			Column: "nope"}}, err: `has no column "nope"`},
		{check: dag.Check{Kind: "relationships", Columns: []string{"iata"},
			To: &dag.CheckRelation{Input: "nope", Column: "code"}}, err: "has no input"},
		{check: dag.Check{Kind: "sql", SQL: "SELECT iata FROM output WHERE id = 1; -- all"}, failures: 1,
			sample: `{"columns": ["iata"], "rows": [["SFO"]]}`},
		{check: dag.Check{Kind: "sql", SQL: "SELECT * FROM output JOIN airports ON iata = code WHERE " +
			"getvariable('partition') <> 'all'"}},
		{check: dag.Check{Kind: "sql", SQL: "SELECT * FROM read_text('/etc/passwd')"}, err: "not allowed"},
		{check: dag.Check{Kind: "sql", SQL: "DELETE FROM output"}, err: "only a SELECT"},
		{check: dag.Check{Kind: "sql", SQL: "SELECT nope FROM output"}, err: "not found in FROM clause"},
		{check: dag.Check{Kind: "magic"}, err: "unknown check kind"},
	} {
		test.check.Name, test.check.Severity = "the check", "error"
		outcomes, err := w.Check(t.Context(), operators.CheckTask{
			Generation: a.Outputs[0].Generation, Held: &output.Manifest,
			Partition: &operators.PartitionRange{Key: "all"},
			Inputs:    []operators.AssignedInput{input("airports", b, airports)}, Checks: []dag.Check{test.check},
			Now: now,
		})
		require.NoError(t, err)
		require.Len(t, outcomes, 1)

		got := outcomes[0]
		require.Equal(t, test.failures, got.Failures, "%+v", test.check)
		require.Equal(t, test.err == "" && test.failures == 0, got.Passed)
		if test.err == "" {
			require.Empty(t, got.Error, "%+v", test.check)
		} else {
			require.Contains(t, got.Error, test.err)
		}
		if test.sample != "" {
			require.JSONEq(t, test.sample, string(got.Sample))
		}
	}

	outcomes, err := w.Check(t.Context(), operators.CheckTask{
		Generation: wide.Outputs[0].Generation, Published: &storage.Partition{Key: "all", Revision: 1,
			Files: wideOut.Manifest.Files},
		Checks: []dag.Check{{Name: "a", Kind: "sql", SQL: "FROM output"}, {Name: "b", Kind: "row_count", Min: &ten}},
	})
	require.NoError(t, err)
	require.Equal(t, int64(100), outcomes[0].Failures)
	require.Less(t, len(outcomes[0].Sample), 33<<10)
	require.True(t, json.Valid(outcomes[0].Sample))
	require.Contains(t, string(outcomes[0].Sample), strings.Repeat("x", 10000))
	require.True(t, outcomes[1].Passed)

	missing := output.Manifest
	missing.Files = []storage.File{{Path: missing.Location + "none.parquet"}}
	_, err = w.Check(t.Context(), operators.CheckTask{Generation: a.Outputs[0].Generation, Held: &missing,
		Checks: []dag.Check{{Kind: "row_count"}}})
	require.ErrorContains(t, err, "missing from the storage")

	left, err := os.ReadDir(w.scratch)
	require.NoError(t, err)
	require.Empty(t, left)
}
