package alertevaluate_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/alertevaluate"
	"github.com/dagctl/dagctl/operators/operatortest"
)

func operator(t *testing.T) operators.Operator {
	t.Helper()
	op, err := alertevaluate.New(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	return op
}

// row returns a row of the output, as a test writes it.
func row(alert, key, severity, status, times, value, labels, summary string) string {
	return "'alert': " + alert + ", 'key': " + key + ", 'severity': " + severity + ", 'status': " + status +
		", " + times + ", 'value': " + value + ", 'labels': " + labels + ", 'summary': " + summary + ", 'late': false"
}

func TestConforms(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)
	end := start.Add(24 * time.Hour)
	day := &operators.PartitionRange{Key: "2026-01-31", Start: &start, End: &end}
	rule := func(name, condition string, more ...any) map[string]any {
		r := map[string]any{"name": name, "condition": condition, "key": []any{"host"}}
		for i := 0; i < len(more); i += 2 {
			r[more[i].(string)] = more[i+1]
		}
		return r
	}
	rules := func(all ...any) map[string]any { return map[string]any{"rules": all} }
	in := func(rows string) operatortest.Input {
		return operatortest.Input{As: "in", Query: "SELECT * FROM (VALUES " + rows + ") AS v(host, used)"}
	}
	const times = "'started_at': '2026-02-01 00:00:00+00', 'evaluated_at': '2026-02-01 00:00:00+00'"
	makes := func(name string, config map[string]any, in operatortest.Input, want ...string) operatortest.Case {
		return operatortest.Case{Name: name, Config: config, Inputs: []operatortest.Input{in}, Partition: day,
			PartitionBy: dag.Partitioning{Kind: dag.ByTime, Unit: "day"},
			Want:        map[string][]string{"out": append([]string{}, want...)}}
	}
	fails := func(message string, config map[string]any, in operatortest.Input) operatortest.Case {
		c := makes(message, config, in)
		c.Fails, c.Permanent, c.Want = message, true, nil
		return c
	}
	refused := func(message string, config map[string]any) operatortest.Case {
		return operatortest.Case{Name: message, Config: config, Refused: message}
	}
	whole := func(c operatortest.Case) operatortest.Case {
		c.Partition, c.PartitionBy = nil, dag.Partitioning{}
		return c
	}
	filtered, empty := in("('a', 99), ('b', 99)"), in("('a', 99)")
	filtered.Where = []dag.Condition{{Column: "host", Values: []any{"b"}}}
	empty.Empty = true
	state := json.RawMessage(`{"stream": "", "keys": [["full", "a", "{\"team\":\"x\"}"]], "announced": [[0, 1769817600000000]],
		"evaluations": [{"at": 1769817600000000, "holds": [0], "fired": [[0, 1769817600000000]]}]}`)
	ended := makes("what fired before has ended", rules(rule("full", "used > 90")), in("('a', 5)"),
		row("full", "a", "warning", "resolved",
			"'started_at': '2026-01-31 00:00:00+00', 'evaluated_at': '2026-02-01 00:00:00+00'", "NULL",
			`'{"team":"x"}'`, "''"))
	ended.State = state
	timed := map[string]any{"time": "used", "rules": []any{rule("old", "true")}}
	moments := operatortest.Input{As: "in", Query: "SELECT 'a' AS host, TIMESTAMPTZ '2026-02-01 00:00:00Z' AS used"}
	timeless := whole(makes("rows without a time", timed, operatortest.Input{As: "in",
		Query: "SELECT 'a' AS host, NULL::DATE AS used"}))
	another := whole(makes("a state of another stream", timed, moments))
	another.State, another.Want, another.Fails, another.Permanent = state, nil, "set `state_key: \"{partition}\"`", true

	operatortest.Run(t, operator(t),
		makes("one alert for each key", rules(rule("full", "used > 90 -- much", "value", "used * 2",
			"severity", "error", "summary", "{host} has {USED}{{%}}",
			"labels", map[string]any{"host": "{host}", "team": "ops"})),
			in("('b', 95), ('a', 99), ('c', 50), ('a', 98), ('é\"''', 91), (NULL, 1)"),
			row("full", "a", "error", "firing", times, "198.0", `'{"host":"a","team":"ops"}'`, "'a has 99{%}'"),
			row("full", "b", "error", "firing", times, "190.0", `'{"host":"b","team":"ops"}'`, "'b has 95{%}'"),
			row("full", `'é"\''`, "error", "firing", times, "182.0", `'{"host":"é\\"\'","team":"ops"}'`,
				`'é"\' has 91{%}'`)),
		makes("rules and keys of several columns", rules(rule("z", "true", "key", []any{"host", "used"}),
			rule("a", "used < 0 OR NULL"), rule("t", "used = 2", "key", "{host}/{used}"),
			rule("one", "true", "key", "all")),
			in("('a', 1), ('b', 2)"),
			row("one", "all", "warning", "firing", times, "NULL", "'{}'", "''"),
			row("t", "b/2", "warning", "firing", times, "NULL", "'{}'", "''"),
			row("z", `'["a","1"]'`, "warning", "firing", times, "NULL", "'{}'", "''"),
			row("z", `'["b","2"]'`, "warning", "firing", times, "NULL", "'{}'", "''")),
		makes("a value that is no number", rules(rule("r", "true", "value", "'nan'::DOUBLE")), in("('a', 1)"),
			row("r", "a", "warning", "firing", times, "NULL", "'{}'", "''")),
		makes("where", rules(rule("r", "used > 90")), filtered,
			row("r", "b", "warning", "firing", times, "NULL", "'{}'", "''")),
		makes("not long enough", rules(rule("r", "true", "for", 2), rule("s", "true", "for", "30m")), in("('a', 1)")),
		makes("the times of a partition", rules(rule("r", "getvariable('end') > getvariable('start')")), in("('a', 1)"),
			row("r", "a", "warning", "firing", times, "NULL", "'{}'", "''")),
		makes("no rows", rules(rule("r", "true")), empty),
		whole(makes("the time of the rows", timed, moments,
			row("old", "a", "warning", "firing", times, "NULL", "'{}'", "''"))),
		ended, timeless, another,

		fails("the condition holds for a row without \"host\"", rules(rule("r", "used = 1")), in("(NULL, 1)")),
		fails("nope", rules(rule("r", "nope > 1")), in("('a', 1)")),
		fails("rule r: more than 20000 keys fire at once", rules(rule("r", "true", "key", []any{"used"})),
			operatortest.Input{As: "in", Query: "SELECT 'a' AS host, range AS used FROM range(20001)"}),
		fails("a key has 2000 bytes", rules(rule("r", "true")), in("(repeat('x', 2000), 1)")),
		fails("leave `time` out", timed, in("('a', 1)")),
		whole(fails("set `time`", rules(rule("r", "true")), in("('a', 1)"))),

		refused("there are two rules", rules(rule("r", "true"), rule("r", "false"))),
		refused("neither a number of evaluations nor a duration", rules(rule("r", "true", "for", "soon"))),
		refused("without the name of a column", rules(rule("r", "true", "summary", "{}"))),
		refused("write }} for a brace", rules(rule("r", "true", "labels", map[string]any{"a": "}"}))),
		refused("syntax error", rules(rule("r", "true) OR (true"))),
		refused("syntax error", rules(rule("r", "true THEN true WHEN false"))),
		refused("syntax error", rules(rule("r", "true", "value", "1, 2"))),
		refused("read_csv", rules(rule("r", "(SELECT count(*) > 0 FROM read_csv('/etc/passwd'))"))),
		refused("severity", rules(rule("r", "true", "severity", "bad"))),
		refused("key", rules(rule("r", "true", "key", []any{}))),
		refused("rules", map[string]any{}),
	)
}

func TestJobsWhoseEvaluationsDoNotFollowEachOther(t *testing.T) {
	t.Parallel()
	spec := operator(t).Spec()
	check := func(j *dag.Job) *dag.ConfigError {
		if fault := spec.CheckJob(j); fault != nil {
			return fault
		}
		return spec.CheckPartitions(j)
	}
	job := func(change func(*dag.Job)) *dag.Job {
		j := &dag.Job{Name: "j", Outputs: []string{"out"}, Inputs: []dag.Input{{As: "in"}},
			PartitionBy: dag.Partitioning{Kind: dag.ByTime},
			Config: map[string]any{"rules": []any{map[string]any{"name": "r", "condition": "true",
				"key": []any{"host"}}}}}
		change(j)
		return j
	}
	require.Nil(t, check(job(func(*dag.Job) {})))
	byKey := func(j *dag.Job) { j.PartitionBy.Kind, j.Config["time"], j.StateKey = dag.ByKey, "at", "{partition}" }
	require.Nil(t, check(job(byKey)))
	for want, change := range map[string]func(*dag.Job){
		"one input and one output":    func(j *dag.Job) { j.Outputs = nil },
		"update_strategy: append":     func(j *dag.Job) { j.UpdateStrategy = dag.Append },
		"of time, by key or none":     func(j *dag.Job) { j.PartitionBy.Kind = dag.ByRange },
		"leave `time` out":            func(j *dag.Job) { j.Config["time"] = "at" },
		"leave `state_key` out":       func(j *dag.Job) { j.StateKey = "{partition}" },
		`set ` + "`state_key: \"{par": func(j *dag.Job) { byKey(j); j.StateKey = "" },
		"set `time`":                  func(j *dag.Job) { byKey(j); delete(j.Config, "time") },
		`has no input "elsewhere"`: func(j *dag.Job) {
			j.Config["rules"].([]any)[0].(map[string]any)["condition"] = "(FROM elsewhere)"
		},
	} {
		fault := check(job(change))
		require.NotNil(t, fault, want)
		require.Contains(t, fault.Message, want)
	}
}

// A job that states no partitioning has that of its input.
func TestInheritedPartitionsAreChecked(t *testing.T) {
	t.Parallel()
	catalog := dag.Catalog{Operators: map[string]dag.OperatorSpec{"alert_evaluate": operator(t).Spec(),
		"command": {Name: "command", Source: true, Reactive: true}}}
	for _, c := range []struct{ from, state, time, want string }{
		{"keys", `state_key: "{partition}",`, ", time: at", ""},
		{"keys", `state_key: "{partition}",`, "", "set `time`"},
		{"keys", "", ", time: at", "set `state_key: \"{partition}\"`"},
		{"days", "", "", ""},
		{"days", "", ", time: at", "leave `time` out"},
		{"whole", "", "", "set `time`"},
		{"whole", "", ", time: at", ""},
	} {
		_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(`
name: alerting
jobs:
  - { name: keys, operator: command, source: { kind: manual }, partition_by: key }
  - { name: days, operator: command, source: { kind: manual }, partition_by: { time: day } }
  - { name: whole, operator: command, source: { kind: manual } }
  - { name: look, operator: alert_evaluate, inputs: [{ from: { job: ` + c.from + ` }}], ` + c.state + `
      config: { rules: [{ name: r, condition: "true", key: [host] }]` + c.time + ` } }
`)}, catalog)
		if c.want == "" {
			require.Empty(t, problems, "%v", c)
			continue
		}
		require.Len(t, problems, 1, "%v", c)
		require.Contains(t, problems[0].Message, c.want)
	}
}

// Comments and layout change no definition; what is asked does.
func TestConditionsAreComparedInTheirParsedForm(t *testing.T) {
	t.Parallel()
	form := func(condition string) string {
		found, fault := operator(t).Spec().Canonical(map[string]any{"rules": []any{map[string]any{"name": "r",
			"condition": condition, "key": []any{"host"}}}})
		require.Nil(t, fault)
		text, err := json.Marshal(found)
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, form("used > 90"), form("used  > 90 -- much"))
	require.NotEqual(t, form("used > 90"), form("used > 91"))
}

// A column that the input does not have is found before anything runs.
func TestColumnsThatARuleNames(t *testing.T) {
	t.Parallel()
	job := &dag.Job{Name: "j", Outputs: []string{"out"}, Inputs: []dag.Input{{As: "in", Job: "up"}},
		PartitionBy: dag.Partitioning{Kind: dag.ByTime},
		Config: map[string]any{"rules": []any{
			map[string]any{"name": "good", "condition": "used > 1", "key": []any{"host"}},
			map[string]any{"name": "bad", "condition": "usage > 1", "key": []any{"host"}}}}}
	shape, err := operator(t).Spec().Shape(job, [][]dag.Column{{{Name: "host", Type: "VARCHAR"},
		{Name: "used", Type: "DOUBLE"}}})
	require.NoError(t, err)
	require.Len(t, shape.Refused, 1)
	require.Equal(t, "rules.1", shape.Refused[0].Key)
	require.True(t, strings.HasPrefix(shape.Refused[0].Message, `rule bad: it names the column "usage"`),
		shape.Refused[0].Message)
	require.Len(t, shape.Writes[0], 10)
}

// So are those of keys, times, summaries and labels, whether they are compared as DuckDB does or not there at all.
func TestColumnsThatTextsName(t *testing.T) {
	t.Parallel()
	job := &dag.Job{Name: "j", Outputs: []string{"out"}, Inputs: []dag.Input{{As: "in", Job: "up"}},
		Config: map[string]any{"time": "nope", "rules": []any{
			map[string]any{"name": "good", "condition": "used > 1", "key": "{HOST}", "summary": "{used} {{x}}"},
			map[string]any{"name": "bad", "condition": "used > 1", "key": []any{"nokey"}, "summary": "{zzz}",
				"labels": map[string]any{"team": "{no team}"}},
			map[string]any{"name": "worse", "condition": "nope > 1", "key": []any{"host"}}}}}
	columns := []dag.Column{{Name: "host", Type: "VARCHAR"}, {Name: "used", Type: "DOUBLE"}}
	shape, err := operator(t).Spec().Shape(job, [][]dag.Column{columns})
	require.NoError(t, err)
	var said []string
	for _, one := range shape.Refused {
		said = append(said, one.Key+" "+one.Message)
	}
	require.Len(t, said, 5, "%q", said)
	lacks := ", which the input does not have; the columns are host, used"
	require.Equal(t, []string{"time `time` names the column \"nope\"" + lacks,
		"rules.1 rule bad: `key` names the column \"nokey\"" + lacks,
		"rules.1 rule bad: `summary` names the column \"zzz\"" + lacks,
		"rules.1 rule bad: label team names the column \"no team\"" + lacks}, said[:4])
	require.Contains(t, said[4], `rules.2 rule worse: it names the column "nope"`)

	shape, err = operator(t).Spec().Shape(job, [][]dag.Column{nil})
	require.NoError(t, err)
	require.Empty(t, shape.Refused, "the columns are not known")
}
