package dag

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPartitionsAreCheckedOnceTheyAreSettled checks that an operator sees the partitioning that a job states or
// inherits, and is not asked where nobody knows it.
func TestPartitionsAreCheckedOnceTheyAreSettled(t *testing.T) {
	t.Parallel()
	catalog := testCatalog()
	spec := catalog.Operators["notifier"]
	spec.CheckPartitions = func(job *Job) *ConfigError {
		return &ConfigError{Key: "webhook", Message: fmt.Sprintf("it has %s", job.PartitionBy)}
	}
	catalog.Operators["notifier"] = spec
	known := map[string]Partitioning{"flights": {Kind: ByKey}}
	for _, c := range []struct {
		job      string
		datasets map[string]Partitioning
		want     string
	}{
		{"inputs: [{ from: { job: days } }]", nil, "it has day partitions"},
		{"inputs: [{ from: { job: between } }]", nil, "it has day partitions"},
		{"inputs: [{ from: { job: days } }], partition_by: none", nil, "it has " + Partitioning{}.String()},
		{"inputs: [{ from: { job: days } }], execution_strategy: PerUpdate", nil, "it has " + Partitioning{}.String()},
		{"inputs: [{ from: { job: days }, map: { window: month } }]", nil, "it has month partitions"},
		{"inputs: [{ from: { dataset: flights } }]", known, "it has " + Partitioning{Kind: ByKey}.String()},
		{"inputs: [{ from: { dataset: flights } }]", nil, ""},
		{"inputs: [{ from: { dataset: flights } }], partition_by: { time: day }", nil, "it has day partitions"},
	} {
		_, problems := Parse(File{Name: "dag.yaml", Datasets: c.datasets, Text: fmt.Appendf(nil, `
name: settled
jobs:
  - { name: days, operator: command, source: { kind: manual }, partition_by: { time: day } }
  - { name: tell, operator: notifier, outputs: 0, config: { webhook: w }, %s }
  - { name: between, operator: command, inputs: [{ from: { job: days } }] }
`, c.job)}, catalog)
		if c.want == "" {
			require.Empty(t, problems, c.job)
			continue
		}
		require.Len(t, problems, 1, c.job)
		require.Equal(t, c.want, problems[0].Message, c.job)
		require.Equal(t, 5, problems[0].Line, "at its config")
	}
}
