package dag

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDatasetsAsJobs checks that an input from another DAG settles and restricts a job as the same input from a job of
// this DAG does: the same partitionings, the same problems, suggestions and places.
func TestDatasetsAsJobs(t *testing.T) {
	t.Parallel()
	const jobs = `
name: datasets
jobs:
  - { name: whole, operator: command, source: { kind: manual } }
  - { name: days, operator: command, source: { kind: manual }, partition_by: { time: day } }
  - { name: berlin, operator: command, source: { kind: manual }, partition_by: { time: day, timezone: Europe/Berlin } }
  - { name: months, operator: command, source: { kind: manual }, partition_by: { time: month } }
  - { name: keyed, operator: command, source: { kind: manual }, partition_by: key }
  - { name: rows, operator: command, source: { kind: manual }, partition_by: { cursor: id } }
  - { name: made, operator: command, %s }
  - { name: after, operator: command, inputs: [{ from: { job: made } }] }
`
	shapes := map[string]Partitioning{"whole": {}, "days": {Kind: ByTime, Unit: Day, Timezone: "UTC"},
		"berlin": {Kind: ByTime, Unit: Day, Timezone: "Europe/Berlin"},
		"months": {Kind: ByTime, Unit: Month, Timezone: "UTC"}, "keyed": {Kind: ByKey},
		"rows": {Kind: ByCursor, Column: "id"}}

	for _, job := range []string{
		"inputs: [{ from: { job: whole } }]",
		"inputs: [{ from: { job: days } }]",
		"inputs: [{ from: { job: months } }], execution_strategy: PerPartition",
		"inputs: [{ from: { job: keyed } }]",
		"inputs: [{ from: { job: rows } }]",
		"inputs: [{ from: { job: rows } }], partition_by: { range: 10, column: id }",
		"inputs: [{ from: { job: days }, map: { window: month } }]",
		"inputs: [{ from: { job: days }, map: { window: { last: 7 } } }]",
		"inputs: [{ from: { job: whole }, map: latest }, { from: { job: berlin } }]",
		"inputs: [{ from: { job: days } }], partition_by: none",
		"inputs: [{ from: { job: days } }], execution_strategy: PerUpdate",
		"inputs: [{ from: { job: months } }], partition_by: { time: day }",
		"inputs: [{ from: { job: days } }], partition_by: { time: month }",
		"inputs: [{ from: { job: days } }, { from: { job: months } }]",
		"inputs: [{ from: { job: days } }, { from: { job: berlin } }]",
		"inputs: [{ from: { job: keyed }, map: { window: month } }], partition_by: { time: month }",
		"inputs: [{ from: { job: months }, map: { window: month } }]",
		"inputs: [{ from: { job: keyed } }, { from: { job: rows }, map: slice }]",
	} {
		parse := func(text string) (*Document, string) {
			doc, problems := Parse(File{Text: []byte(strings.Replace(jobs, "%s", text, 1)), Datasets: shapes},
				testCatalog())
			return doc, strings.ReplaceAll(problems.Error(), "dag.yaml", "")
		}

		inside, problems := parse(job)
		outside, same := parse(strings.NewReplacer("from: { job: ", "from: { dataset: ").Replace(job))
		require.Equal(t, withoutColumns(problems), withoutColumns(same), job)
		if inside == nil {
			require.Nil(t, outside, job)
			continue
		}
		for _, name := range []string{"made", "after"} {
			in, _ := inside.Job(name)
			out, _ := outside.Job(name)
			require.Equal(t, in.PartitionBy, out.PartitionBy, "%s: %s", name, job)
			require.Equal(t, in.ExecutionStrategy, out.ExecutionStrategy, "%s: %s", name, job)
			require.Equal(t, in.Trigger, out.Trigger, "%s: %s", name, job)
		}
	}
}

// withoutColumns returns problems without the columns, since `dataset` is longer than `job`.
func withoutColumns(problems string) string {
	var b strings.Builder
	for line := range strings.Lines(problems) {
		parts := strings.SplitN(line, ":", 4)
		if len(parts) == 4 {
			parts[2] = ""
		}
		b.WriteString(strings.Join(parts, ":"))
	}
	return b.String()
}

// TestDatasetPlace checks that a problem with a dataset's mapping points at the dataset's name.
func TestDatasetPlace(t *testing.T) {
	t.Parallel()
	const text = `name: copies
jobs:
  - name: copy
    operator: command
    inputs: [{ from: { dataset: flights } }]
    partition_by: { time: day }
`
	_, problems := Parse(File{Name: "dag.yaml", Text: []byte(text),
		Datasets: map[string]Partitioning{"flights": {Kind: ByTime, Unit: Month, Timezone: "UTC"}}}, testCatalog())
	require.Equal(t, `dag.yaml:5:33: job "copy" has day partitions, but input "flights" has month partitions: `+
		"no partition of it is the same (`map: within` reads the month that each day lies in)", problems.Error())
}

// TestDatasetsUnknown checks that a file is valid without a server where some server might accept it.
func TestDatasetsUnknown(t *testing.T) {
	t.Parallel()
	const text = `name: copies
jobs:
  - { name: copy, operator: command, inputs: [{ from: { dataset: flights } }], execution_strategy: PerPartition }
  - { name: summed, operator: command, inputs: [{ from: { dataset: flights }, map: { window: month } }] }
  - { name: again, operator: command, inputs: [{ from: { job: copy }, map: { window: month } }] }
  - { name: further, operator: command, inputs: [{ from: { job: again } }], partition_by: { time: month } }
`
	_, problems := Parse(File{Text: []byte(text)}, testCatalog())
	require.Empty(t, problems.Error())

	_, problems = Parse(File{Text: []byte(text), Datasets: map[string]Partitioning{"flights": {Kind: ByKey}}},
		testCatalog())
	require.Len(t, problems, 3)
}

func TestReads(t *testing.T) {
	t.Parallel()
	const text = `name: copies
vars: { from: { default: trains }, other: {} }
jobs:
  - { name: copy, inputs: [{ from: { dataset: "${var.from}" } }, { from: { job: copy } }] }
  - { name: made, inputs: [{ from: { dataset: flights } }, { from: { dataset: "${var.other}" } }, { from: 1 }, 2] }
  - { name: same, inputs: [{ from: { dataset: flights } }] }
`
	require.Equal(t, []string{"flights", "ships", "trains"},
		File{Text: []byte(text), Vars: map[string]string{"other": "ships"}}.Reads())

	for _, broken := range []string{"", "dataset", "jobs: {", "jobs: [dataset, [dataset]]", "dataset: 1\njobs: 2"} {
		require.Empty(t, File{Text: []byte(broken)}.Reads(), broken)
	}
}
