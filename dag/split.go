package dag

import (
	"slices"
	"strings"
)

// A job splits its rows if its time partitions name a column. One task, of the partition WholeKey, then makes all
// partitions at once; its rows are cut by the dates of that column when it ends.

// MaxSplit is how many partitions a task may split its rows into, and MaxSplitTables how many of them in Postgres
// storage, which has a table for each until the commit locks them all.
const (
	MaxSplit       = 10_000
	MaxSplitTables = 1_000
)

// Splits reports whether one task of the job makes all partitions.
func (j *Job) Splits() bool { return j.SplitBy != "" }

// TasksBy returns how the work of the job is cut into tasks: as its outputs are, or not at all if it splits its rows.
func (j *Job) TasksBy() Partitioning {
	if j.Splits() {
		return Partitioning{}
	}
	return j.PartitionBy
}

// Partitions describes the partitions of the job's outputs, and how they are made, for people.
func (j *Job) Partitions() string {
	if j.Splits() {
		return j.PartitionBy.String() + ", split by " + j.SplitBy
	}
	return j.PartitionBy.String()
}

// splitTypes are the types of columns by which rows can be split, by DuckDB's names.
var splitTypes = []string{"DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS",
	"TIMESTAMP WITH TIME ZONE"}

// SplitMismatch returns why rows cannot be split into partitions by a column of a type; empty: they can.
func (p Partitioning) SplitMismatch(columnType string) string {
	switch {
	case !slices.Contains(splitTypes, columnType):
		return "rows are split by a DATE, a TIMESTAMP or a TIMESTAMPTZ"
	case columnType == "DATE" && p.Unit.Minutes() > 0:
		return "a DATE has no time of day"
	}
	return ""
}

// splitColumn returns the column by which a job with time partitions splits its rows.
func splitColumn(partitionBy value) string {
	if !partitionBy.has("time") {
		return ""
	}
	return partitionBy.get("column").text()
}

// split reports what does not go together with a job that splits its rows.
func (d *decoder) split(v value, j *Job, op OperatorSpec) {
	if !j.Splits() {
		return
	}
	column := v.get("partition_by").key("column")
	if op.Name != "" && !op.Splits {
		d.node(column, CodeConflict, "operator %s does not split its rows by a column", op.Name).
			suggest("these do: %s", strings.Join(d.splitters(), ", "))
	}
	if len(j.Outputs) != 1 {
		d.node(column, CodeConflict, "a job that splits its rows has one output, not %d", len(j.Outputs))
	}

	if j.UpdateStrategy == Append {
		d.node(v.get("update_strategy").node, CodeConflict,
			"a job that splits its rows replaces partitions whose rows have changed, and appends to none").
			suggest("leave `update_strategy` and `unique_key` out")
	}
	if j.Source != nil && j.Source.Kind == SourceAlwaysOn {
		d.node(v.get("source").get("kind").node, CodeConflict,
			"an always_on source has no end, at which its rows could be split").suggest("use `kind: poll`")
	}
	if strategy := v.get("execution_strategy"); strategy.text() == string(PerPartition) {
		d.node(strategy.node, CodeConflict, "one task of job %q makes all partitions: it splits its rows", j.Name).
			suggest("leave `execution_strategy` out, or `column` to make each partition by itself")
	}
}

// splitters lists the operators whose rows can be split.
func (d *decoder) splitters() (names []string) {
	for _, name := range sortedKeys(d.cat.Operators) {
		if d.cat.Operators[name].Splits {
			names = append(names, name)
		}
	}
	return names
}
