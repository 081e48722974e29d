package rangesplitter_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/operatortest"
	"github.com/dagctl/dagctl/operators/rangesplitter"
)

func TestRangeSplitterConforms(t *testing.T) {
	t.Parallel()
	op, err := rangesplitter.New(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	splits := func(name string, config map[string]any, covered, rows string, want ...string) operatortest.Case {
		return operatortest.Case{Name: name, Config: config,
			Inputs: []operatortest.Input{{As: "big",
				Query: "SELECT * FROM (VALUES " + rows + ") AS v(range_start, range_end)"}},
			Want: map[string][]string{"out": append([]string{}, want...)},
			Check: func(t *testing.T, r operators.Result) {
				t.Helper()
				require.JSONEq(t, `{"partition": "all", "covered": `+covered+`}`, string(r.State))
			}}
	}

	operatortest.Run(t, op,
		splits("aligned", map[string]any{"size": 10}, "[[20,40]]", "(20, 40), (20, 40)",
			"'range_start': 20, 'range_end': 30", "'range_start': 30, 'range_end': 40"),
		splits("what two share needs both", map[string]any{"size": 10}, "[[5,40]]", "(25, 40), (5, 25)",
			"'range_start': 10, 'range_end': 20", "'range_start': 20, 'range_end': 30",
			"'range_start': 30, 'range_end': 40"),
		splits("a half of one is not listed", map[string]any{"size": 10}, "[[5,25]]", "(5, 25)",
			"'range_start': 10, 'range_end': 20"),
		splits("the last one is short", map[string]any{"size": 10, "end": 25}, "[[10,25]]", "(10, 25)",
			"'range_start': 10, 'range_end': 20", "'range_start': 20, 'range_end': 30"),
		operatortest.Case{Name: "no size", Config: map[string]any{}, Refused: "size"},
		operatortest.Case{Name: "too many at once", Config: map[string]any{"size": 1},
			Inputs: []operatortest.Input{{As: "big", Query: "SELECT 0 AS range_start, 100000000 AS range_end"}},
			Fails:  "a task writes at most 10000000", Permanent: true},
	)
}
