package dag

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestJobsWithOneTargetAreRefused checks jobs that write to one place, or to places in each other, and jobs whose
// partitions show only once they are settled.
func TestJobsWithOneTargetAreRefused(t *testing.T) {
	t.Parallel()
	catalog := testCatalog()
	spec := catalog.Operators["notifier"]
	spec.Targets = func(dag string, job *Job) []Target {
		target := Target{Key: "webhook", Name: job.Config["webhook"].(string), Harm: "give each its own",
			Path: []string{dag, job.Config["webhook"].(string)}, Adds: job.Config["retries"] != nil}
		if job.PartitionBy.Kind == ByTime {
			target.Path = append(target.Path, AnyDigit)
		}
		return []Target{target}
	}
	catalog.Operators["notifier"] = spec

	const line = 5 // of the second job's config
	for _, c := range []struct{ first, second, want string }{
		{"config: { webhook: w }", "config: { webhook: w }",
			`the target w is that of job "first" (line 5), too: give each its own`},
		{"config: { webhook: w }", "config: { webhook: v }", ""},
		{"config: { webhook: w, retries: 1 }", "config: { webhook: w, retries: 1 }", ""},
		{"config: { webhook: w }", "config: { webhook: w, retries: 1 }",
			`the target w is that of job "first" (line 5), too: give each its own`},
		{"config: { webhook: w }, partition_by: none", "config: { webhook: w }",
			`the target w lies in w, that of job "first" (line 5): give each its own`},
		{"config: { webhook: w }", "config: { webhook: w }, execution_strategy: PerUpdate",
			`the target w holds w, that of job "first" (line 5): give each its own`},
	} {
		_, problems := Parse(File{Name: "dag.yaml", Text: fmt.Appendf(nil, `
name: settled
jobs:
  - { name: days, operator: command, source: { kind: manual }, partition_by: { time: day } }
  - { name: first, operator: notifier, outputs: 0, inputs: [{ from: { job: days } }], %s }
  - { name: second, operator: notifier, outputs: 0, inputs: [{ from: { job: days } }], %s }
`, c.first, c.second)}, catalog)
		if c.want == "" {
			require.Empty(t, problems, c.second)
			continue
		}
		require.Len(t, problems, 1, c.second)
		require.Equal(t, c.want, problems[0].Message)
		require.Equal(t, line+1, problems[0].Line, "at the config of the second")
	}
}

func TestTargetsOverlap(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b []string
		want bool
	}{
		{[]string{"out"}, []string{"out"}, true},
		{[]string{"out"}, []string{"out", "sub"}, true},
		{[]string{"out"}, []string{"outer"}, false},
		{[]string{"out", "a"}, []string{"out", "b"}, false},
		{[]string{"day=" + AnyText}, []string{"day=2026"}, true},
		{[]string{"day=" + AnyText}, []string{"hour=" + AnyText}, false},
		{[]string{AnyText + "=x"}, []string{"day=" + AnyText}, true},
		{[]string{AnyText + "=x"}, []string{"day=" + AnyText + "y"}, false},
		{[]string{AnyDigit + AnyDigit}, []string{"12", "more"}, true},
		{[]string{AnyDigit + AnyDigit}, []string{"latest"}, false},
		{[]string{AnyDigit + AnyDigit}, []string{"123"}, false},
		{[]string{AnyDigit + AnyText}, []string{"1"}, true},
		{[]string{"ä" + AnyText}, []string{"äö"}, true},
	} {
		one, other := writer{Target{Path: c.a}, &Job{}}, writer{Target{Path: c.b}, &Job{}}
		require.Equal(t, c.want, one.clash(other) != nil, "%q %q", c.a, c.b)
		require.Equal(t, c.want, other.clash(one) != nil, "%q %q", c.b, c.a)
	}
}

// TestAnExternalOperatorHasNoInternalJob checks jobs that would let a build change what is outside.
func TestAnExternalOperatorHasNoInternalJob(t *testing.T) {
	t.Parallel()
	parse := func(operator, effect string) Problems {
		_, problems := Parse(File{Name: "dag.yaml", Text: fmt.Appendf(nil, `
name: effects
jobs:
  - { name: rows, operator: command, source: { kind: manual } }
  - name: tell
    inputs: [{ from: { job: rows } }]
    effect: %s
    operator: %s
    outputs: 0
`, effect, operator)}, testCatalog())
		return problems
	}
	problems := parse("notifier\n    config: { webhook: w }", "internal")
	require.Len(t, problems, 1)
	require.Equal(t, "operator notifier changes what is outside, so the job is not internal", problems[0].Message)
	require.Equal(t, 7, problems[0].Line)
	require.Contains(t, problems[0].Suggestion, "leave `effect: internal` out")
	require.Empty(t, parse("notifier\n    config: { webhook: w }", "external"))
	require.Empty(t, parse("command", "internal"))
	require.Empty(t, parse("command", "external"), "a program may change what is outside")
}
