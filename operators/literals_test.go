package operators_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
)

// typed is one row of each of several types, beside one that a rounded literal would find.
const typed = `SELECT * FROM (VALUES
	(1::BIGINT, 1.2::DECIMAL(2,1), 0.1::DOUBLE, 9007199254740992::DOUBLE, '1', DATE '2024-01-01',
		TIMESTAMP '2024-01-01 09:00:00', TIMESTAMPTZ '2024-01-01 00:00:00+00', 9007199254740993::BIGINT, false),
	(2::BIGINT, 1.3::DECIMAL(2,1), 0.2::DOUBLE, 9007199254740994::DOUBLE, '2', DATE '2024-01-02',
		TIMESTAMP '2024-01-02 09:00:00', TIMESTAMPTZ '2024-01-02 00:00:00+00', 9007199254740992::BIGINT, true)
	) AS t(whole, price, ratio, big, word, day, local, "at", id, flag)`

func TestLiteralsCompareExactly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	source := assignment("sql", map[string]any{"query": typed})
	made := w.mustRun(t, source).Written[0]

	for _, test := range []struct {
		column, value string // as JSON
		rows          int
		err           string
	}{
		{column: "whole", value: `1`, rows: 1},
		{column: "whole", value: `1.5`},
		{column: "whole", value: `"2"`, rows: 1},
		{column: "whole", value: `true`, err: `column "whole" is BIGINT: no value of it equals true`},
		{column: "whole", value: `"abc"`, err: `no value of it equals the text "abc"`},
		{column: "price", value: `1.26`},
		{column: "price", value: `1.3`, rows: 1},
		{column: "ratio", value: `0.1`, rows: 1},
		{column: "big", value: `9007199254740993`},
		{column: "big", value: `9007199254740992`, rows: 1},
		{column: "id", value: `9007199254740993`, rows: 1},
		{column: "word", value: `"1"`, rows: 1},
		{column: "word", value: `1`, err: "is VARCHAR: no value of it equals 1; quote it"},
		{column: "day", value: `"2024-01-02"`, rows: 1},
		{column: "day", value: `"2024-1-2"`, err: "is DATE"},
		{column: "local", value: `"2024-01-01 09:00:00"`, rows: 1},
		{column: "local", value: `"2024-01-01"`, err: "is TIMESTAMP"},
		{column: "at", value: `"2024-01-02T09:00:00+09:00"`, rows: 1},
		{column: "at", value: `"2024-01-02 00:00:00"`, err: "is TIMESTAMP WITH TIME ZONE"},
		{column: "flag", value: `true`, rows: 1},
		{column: "flag", value: `1`, err: "is BOOLEAN"},
	} {
		var where dag.Condition
		text := fmt.Sprintf(`{"column": %q, "values": [%s]}`, test.column, test.value)
		require.NoError(t, json.Unmarshal([]byte(text), &where))

		a := assignment("sql", map[string]any{"query": "SELECT * FROM rows"})
		a.PartitionBy.Timezone = "Asia/Tokyo" // no zone changes what a literal means
		a.Inputs = []operators.AssignedInput{input("rows", source, made)}
		a.Inputs[0].Where = []dag.Condition{where}
		out := w.Run(t.Context(), a, nil)
		check, err := w.Check(t.Context(), operators.CheckTask{Generation: source.Outputs[0].Generation,
			Held: &made.Manifest, Checks: []dag.Check{{Kind: "accepted_values", Columns: []string{test.column},
				Values: where.Values}}})
		require.NoError(t, err)

		if test.err != "" {
			require.ErrorContains(t, out.Err, test.err, text)
			require.False(t, out.Retryable)
			require.Contains(t, check[0].Error, test.err)
			continue
		}
		require.NoError(t, out.Err, text)
		require.Len(t, w.rows(t, a, out.Written[0]), test.rows, text)
		require.Empty(t, check[0].Error)
		require.EqualValues(t, 2-test.rows, check[0].Failures, text)
	}
}

// PostgreSQL cannot store them, so that a completion with one would be tried again and again.
func TestARunsNumbersAreRefusedBeyondTheLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := assignment("command", map[string]any{"argv": []any{"/bin/sh", "-c",
		`cat > /dev/null; echo '{"result": {"n": 1e40000000}}'`}})
	out := w.Run(t.Context(), a, nil)
	require.ErrorContains(t, out.Err, "the number 1e40000000 is refused")
	require.False(t, out.Retryable)
}
