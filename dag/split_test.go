package dag

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// splitCatalog is testCatalog with operators whose rows can be split.
func splitCatalog() Catalog {
	catalog := testCatalog()
	for _, name := range []string{"sql", "file_source"} {
		op := catalog.Operators[name]
		op.Splits = true
		catalog.Operators[name] = op
	}
	return catalog
}

const wholeJob = "name: d\njobs:\n  - { name: whole, operator: command, source: { kind: manual } }\n" +
	"  - { name: parts, operator: sql, inputs: [{ from: { job: whole } }], config: { query: SELECT 1 }, "

func TestOneTaskMakesAllPartitionsOfASplit(t *testing.T) {
	t.Parallel()
	doc, problems := Parse(File{Name: "dag.yaml", Text: []byte(wholeJob +
		"partition_by: { time: day, column: at } }\n" +
		"  - { name: days, operator: sql, inputs: [{ from: { job: parts } }], config: { query: SELECT 1 } }\n")},
		splitCatalog())
	require.Empty(t, problems.Error())
	parts, _ := doc.Job("parts")
	require.Equal(t, PerUpdate, parts.ExecutionStrategy)
	require.Equal(t, "at", parts.SplitBy)
	require.Equal(t, Partitioning{}, parts.TasksBy())

	days, _ := doc.Job("days")
	require.Equal(t, PerPartition, days.ExecutionStrategy)
	require.Equal(t, parts.PartitionBy, days.PartitionBy)
	require.False(t, days.Splits(), "it inherits the partitions, which it makes one by one")
	require.Equal(t, days.PartitionBy, days.TasksBy())
}

func TestWhatDoesNotGoWithASplit(t *testing.T) {
	t.Parallel()
	const day = "partition_by: { time: day, column: at }, "
	for _, c := range []struct{ text, want string }{
		{day + "outputs: 2 }", "dag.yaml:4:127: a job that splits its rows has one output"},
		{day + "execution_strategy: PerPartition }", "makes all partitions"},
		{day + "update_strategy: append, unique_key: [id] }", "appends to none"},
		{"partition_by: { cursor: id, column: at } }", "cannot have both `cursor` and `column`"},
	} {
		_, problems := Parse(File{Name: "dag.yaml", Text: []byte(wholeJob + c.text)}, splitCatalog())
		require.ErrorContains(t, problems, c.want, c.text)
	}
	_, problems := Parse(File{Name: "dag.yaml", Text: []byte("name: d\njobs:\n  - { name: a, operator: command, " +
		"source: { kind: manual }, partition_by: { time: day, column: at } }\n")}, splitCatalog())
	require.ErrorContains(t, problems, "operator command does not split its rows by a column")
	require.ErrorContains(t, problems, "these do: file_source, sql")

	_, problems = Parse(File{Name: "dag.yaml", Text: []byte("name: d\njobs:\n  - { name: a, operator: file_source, " +
		"source: { kind: poll, every: 1m, lookback: 2 }, partition_by: { time: day, column: at }, " +
		"config: { path: a, pattern: a, format: csv } }\n")}, splitCatalog())
	require.ErrorContains(t, problems, `one task of job "a" reads everything each time, late rows too`)
}

func TestColumnsThatRowsAreSplitBy(t *testing.T) {
	t.Parallel()
	day, hour := Partitioning{Kind: ByTime, Unit: Day}, Partitioning{Kind: ByTime, Unit: Hour}
	for _, fits := range []string{"DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"} {
		require.Empty(t, day.SplitMismatch(fits))
	}
	require.Equal(t, "a DATE has no time of day", hour.SplitMismatch("DATE"))
	require.NotEmpty(t, day.SplitMismatch("VARCHAR"))
}
