package rangeaggregator_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/operatortest"
	"github.com/dagctl/dagctl/operators/rangeaggregator"
)

func TestRangeAggregatorConforms(t *testing.T) {
	t.Parallel()
	op, err := rangeaggregator.New(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	parts := func(rows string) operatortest.Input {
		return operatortest.Input{As: "parts",
			Query: "SELECT * FROM (VALUES " + rows + ") AS v(range_start, range_end)"}
	}
	collects := func(name, state string, in operatortest.Input, covered string, rows ...string) operatortest.Case {
		return operatortest.Case{Name: name, Config: map[string]any{"size": 100}, State: json.RawMessage(state),
			Inputs: []operatortest.Input{in}, Want: map[string][]string{"out": append([]string{}, rows...)},
			Check: func(t *testing.T, r operators.Result) {
				t.Helper()
				require.JSONEq(t, `{"partition": "all", "covered": `+covered+`}`, string(r.State))
			}}
	}
	fails := func(name string, in operatortest.Input, message string) operatortest.Case {
		return operatortest.Case{Name: name, Config: map[string]any{"size": 100}, Inputs: []operatortest.Input{in},
			Fails: message, Permanent: true}
	}
	refused := func(name string, config map[string]any, message string) operatortest.Case {
		return operatortest.Case{Name: name, Config: config, Refused: message}
	}

	with := func(c operatortest.Case, more map[string]any) operatortest.Case {
		more["size"] = 100
		c.Config = more
		return c
	}
	filtered, empty := parts("(0, 50), (50, 100), (100, 200)"), parts("(0, 100)")
	filtered.Where = []dag.Condition{{Column: "range_start", Values: []any{"50", "100"}}}
	empty.Empty = true
	named := operatortest.Input{As: "parts", Query: `SELECT 100 AS "First", 200::UBIGINT AS "p ast"`}

	operatortest.Run(t, op,
		collects("in any order, twice", "", parts("(250, 300), (50, 100), (0, 60), (200, 255), (50, 100)"),
			"[[0,100],[200,300]]", "'range_start': 0, 'range_end': 100", "'range_start': 200, 'range_end': 300"),
		collects("nothing is whole", "", parts("(1, 100), (100, 199)"), "[[1,199]]"),
		collects("what was there before", `{"partition": "all", "covered": [[0, 99], [101, 200]]}`, parts("(99, 101)"), "[[0,200]]",
			"'range_start': 0, 'range_end': 100", "'range_start': 100, 'range_end': 200"),
		collects("only what parts reach into", `{"partition": "all", "covered": [[0, 1000]]}`, parts("(300, 301)"), "[[0,1000]]",
			"'range_start': 300, 'range_end': 400"),
		collects("where", "", filtered, "[[50,200]]", "'range_start': 100, 'range_end': 200"),
		collects("no parts", `{"partition": "all", "covered": [[0, 100]]}`, empty, "[[0,100]]"),
		collects("far away", "", parts("(4611686018427387804, 4611686018427387904)"),
			"[[4611686018427387804,4611686018427387904]]"),
		with(collects("from a start to an end", "", parts("(20, 130), (0, 22), (130, 999)"), "[[20,250]]",
			"'range_start': 0, 'range_end': 100", "'range_start': 100, 'range_end': 200",
			"'range_start': 200, 'range_end': 300"), map[string]any{"start": 20, "end": 250}),
		with(collects("columns by name", "", named, "[[100,200]]", "'range_start': 100, 'range_end': 200"),
			map[string]any{"start_column": "first", "end_column": "p ast"}),

		operatortest.Case{Name: "a state of another partition", Config: map[string]any{"size": 100},
			State: json.RawMessage(`{"partition": "eth", "covered": [[0, 1]]}`), Fails: "set `state_key: \"{partition}\"`",
			Permanent: true, Inputs: []operatortest.Input{parts("(0, 100)")}},
		fails("a range backwards", parts("(0, 10), (20, 20)"),
			"a row with the range [20, 20), which is none: 0 ≤ start < end ≤ 2^62. It is in "),
		fails("a range without an end", parts("(0, 10), (20, NULL)"), "a row with the range [20, NULL), which is none"),
		fails("a negative position", parts("(-1, 10)"), "a row with the range [-1, 10), which is none"),
		fails("a position that is too great", parts("(1, 4611686018427387905)"), "which is none"),
		fails("no such column", operatortest.Input{As: "parts", Query: "SELECT 1 AS range_start"},
			`input "parts" has no column "range_end"`),
		fails("a fraction", parts("(0.5, 1)"), `column "range_start" of input "parts" is DECIMAL(2,1): positions are whole`),

		refused("no size", map[string]any{}, "size"),
		refused("no positions", map[string]any{"size": 0}, "size"),
		refused("an end before the start", map[string]any{"size": 1, "start": 5, "end": 5}, "greater than start, 5"),
		refused("an unknown field", map[string]any{"size": 1, "sizes": 2}, "sizes"),
	)
}

func TestRangeAggregatorRefusesJobs(t *testing.T) {
	t.Parallel()
	op, err := rangeaggregator.New(operators.Options{})
	require.NoError(t, err)
	job := func(change func(*dag.Job)) *dag.Job {
		j := &dag.Job{Outputs: []string{"out"}, UpdateStrategy: dag.Append, UniqueKey: []string{"range_start"},
			Inputs: []dag.Input{{As: "parts", Map: dag.Mapping{Kind: dag.MapSame}}}}
		change(j)
		return j
	}
	require.Nil(t, op.Spec().CheckJob(job(func(*dag.Job) {})))
	byKey := func(j *dag.Job) { j.PartitionBy.Kind = dag.ByKey }
	require.Nil(t, op.Spec().CheckPartitions(job(func(j *dag.Job) { byKey(j); j.StateKey = "{partition}" })))

	for message, change := range map[string]func(*dag.Job){
		"has one output":          func(j *dag.Job) { j.Outputs = nil },
		"update_strategy: append": func(j *dag.Job) { j.UpdateStrategy = dag.Replace },
		"unique_key":              func(j *dag.Job) { j.UniqueKey = []string{"range_end"} },
		"partition_by: none":      func(j *dag.Job) { j.PartitionBy.Kind = dag.ByRange },
		`"{partition}"`:           byKey,
		"leave `map` out":         func(j *dag.Job) { j.Inputs[0].Map.Kind = dag.MapLatest },
	} {
		fault := op.Spec().CheckJob(job(change))
		if fault == nil {
			fault = op.Spec().CheckPartitions(job(change))
		}
		require.NotNil(t, fault, message)
		require.Contains(t, fault.Message, message)
		require.Contains(t, fault.Message, "range_aggregator")
	}
}
