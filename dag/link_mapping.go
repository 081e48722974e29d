package dag

import (
	"cmp"
	"fmt"
	"slices"
)

// Mismatch says why the partitions of an input do not lead to those of a job's outputs, and what would mend it.
type Mismatch struct {
	Text       string // the whole sentence
	Reason     string // the end of it, for those who say themselves what is mapped to what
	Suggestion string
}

// Mismatch returns why partitions of an input that is partitioned by from cannot be mapped to those of the job's
// outputs; nil if they can.
func (j *Job) Mismatch(in Input, from Partitioning) *Mismatch {
	if m := j.mismatchOfAny(in); m != nil {
		return m
	}

	var found *Mismatch
	differ := func(suggestion, format string, args ...any) {
		if suggestion == useLatest && j.onlyTrigger(in) {
			suggestion = followInput
		}
		reason := fmt.Sprintf(format, args...)
		found = &Mismatch{fmt.Sprintf("job %q has %s, but input %q has %s: %s",
			j.Name, j.PartitionBy, in.As, from, reason), reason, suggestion}
	}
	switch in.Map.Kind {
	case MapSlice:
		if from.Kind != ByCursor {
			differ(useLatest, "`map: slice` takes rows of a cursor input")
		}
	case MapWindow:
		mapsWindow(in.Map, from, j.PartitionBy, differ)
	case MapWithin:
		mapsWithin(from, j.PartitionBy, differ)
	case MapSame:
		if j.ExecutionStrategy == PerPartition {
			mapsSame(from, j.PartitionBy, differ)
		}
	}
	return found
}

// mismatchOfAny returns what is wrong with the mapping of an input, however the input is partitioned.
func (j *Job) mismatchOfAny(in Input) *Mismatch {
	var text, suggestion string
	switch {
	case in.Map.Kind == MapWithin && j.PartitionBy.Kind != ByTime:
		text = fmt.Sprintf("`map: within` needs time partitions, but job %q has %s", j.Name, j.PartitionBy)
		suggestion = "set `partition_by: { time: day }`, or another unit of time"
	case (in.Map.Kind == MapWindow || in.Map.Kind == MapWithin) && j.ExecutionStrategy == PerUpdate:
		text = fmt.Sprintf("`%s` is for jobs that compute per partition", in.Map.Kind)
		suggestion = "set `execution_strategy: PerPartition`"
	case in.Map.Kind == MapWindow && j.PartitionBy.Kind != ByTime:
		text = fmt.Sprintf("`window` needs time partitions, but job %q has %s", j.Name, j.PartitionBy)
		suggestion = fmt.Sprintf("set `partition_by: { time: %s }`", cmp.Or(in.Map.Window, Day))
	case in.Map.Window != "" && in.Map.Window != j.PartitionBy.Unit:
		text = fmt.Sprintf("`window: %s` makes %s partitions, but job %q has %s",
			in.Map.Window, in.Map.Window.adjective(), j.Name, j.PartitionBy)
		suggestion = fmt.Sprintf("set `partition_by: { time: %s }`", in.Map.Window)
	case in.Map.Kind == MapSlice && j.PartitionBy.Kind != ByRange:
		text = fmt.Sprintf("`map: slice` needs range partitions, but job %q has %s", j.Name, j.PartitionBy)
		suggestion = "set `partition_by: { range: SIZE, column: NAME }`, or use `map: latest`"
	default:
		return nil
	}

	return &Mismatch{text, text, suggestion}
}

// onlyTrigger reports whether no other input triggers the job.
func (j *Job) onlyTrigger(in Input) bool {
	return !slices.ContainsFunc(j.Inputs, func(other Input) bool { return other.Triggers() && other.As != in.As })
}

// A differs reports why the partitions of an input do not lead to those of a job, and suggests a way out.
type differs func(suggestion, format string, args ...any)

func mapsWindow(m Mapping, from, to Partitioning, differ differs) {
	switch {
	case from.Kind != ByTime:
		differ(useLatest, "a window is made of time partitions")
	case from.Timezone != to.Timezone:
		differ(fmt.Sprintf("set `timezone: %s`", from.Timezone), "the time zones differ")
	case m.Last > 0 && from.Unit != to.Unit:
		differ(fmt.Sprintf("set `partition_by: { time: %s }`", from.Unit),
			"the last %d partitions must be of the same unit", m.Last)
	case m.Last == 0 && from.Unit == to.Unit:
		differ("leave `map` out", "each window would hold a single partition")
	case m.Last == 0 && !Nests(from.Unit, to.Unit):
		differ(useLatest, "%s is not made of whole %s", to.Unit.one(), from.Unit.many())
	case m.Last == 0 && mostIn(from.Unit, to.Unit) > MaxWindow:
		differ("make days of them in a job between", "%s is made of up to %d %s, and a window has at most %d",
			to.Unit.one(), mostIn(from.Unit, to.Unit), from.Unit.many(), MaxWindow)
	}
}

// mapsWithin checks the mapping of a wider partition to those that lie in it.
func mapsWithin(from, to Partitioning, differ differs) {
	switch {
	case from.Kind != ByTime:
		differ(useLatest, "only a time lies within another")
	case from.Timezone != to.Timezone:
		differ(fmt.Sprintf("set `timezone: %s`", from.Timezone), "the time zones differ")
	case from.Unit == to.Unit:
		differ("leave `map` out", "each partition has the one of the same key")
	case Nests(from.Unit, to.Unit):
		differ(fmt.Sprintf("`map: { window: %s }`", to.Unit), "%s is made of many of them", to.Unit.one())
	case !Nests(to.Unit, from.Unit):
		differ(useLatest, "%s is not made of whole %s", from.Unit.one(), to.Unit.many())
	case mostIn(to.Unit, from.Unit) > MaxWindow:
		differ(useLatest, "%s has up to %d %s, and one partition feeds at most %d",
			from.Unit.one(), mostIn(to.Unit, from.Unit), to.Unit.many(), MaxWindow)
	}
}

// mapsSame checks the mapping of each partition of an input to the same partition of the job's outputs.
func mapsSame(from, to Partitioning, differ differs) {
	switch {
	case from.Kind != to.Kind:
		mapsOtherKind(from.Kind, to.Kind, differ)
	case from.Kind == ByCursor:
		differ(usePerUpdate, noneAlone)
	case from.Kind == ByTime:
		mapsSameTime(from, to, differ)
	case from.Kind == ByRange && (from.Size != to.Size || from.Column != to.Column):
		differ(useLatest, "the ranges differ")
	}
}

const (
	useLatest = "`map: latest` reads what is current without triggering"
	// followInput stands for useLatest where no other input would trigger the job then.
	followInput  = "leave `map` and `partition_by` out: the job's partitions follow from the input's"
	usePerUpdate = "use `execution_strategy: PerUpdate`"
	noneSame     = "no partition of it is the same"
	noneAlone    = "a cursor has no partitions that could be computed one by one"
)

// mapsOtherKind reports that two kinds of partition differ, with the way out that fits them.
func mapsOtherKind(from, to PartitionKind, differ differs) {
	switch {
	case from == Unpartitioned:
		differ(useLatest, noneSame)
	case from == ByCursor && to == ByRange:
		differ("`map: slice` takes the rows of each range; `execution_strategy: PerUpdate` follows the cursor",
			noneSame)
	case from == ByCursor, to == ByCursor:
		differ(usePerUpdate, noneAlone)
	case to == Unpartitioned:
		differ(usePerUpdate+", or give the job a `partition_by`", noneSame)
	default:
		differ(useLatest, noneSame)
	}
}

// mapsSameTime checks that two partitionings by time have the same zone and unit.
func mapsSameTime(from, to Partitioning, differ differs) {
	switch {
	case from.Timezone != to.Timezone:
		differ(fmt.Sprintf("set `timezone: %s`", from.Timezone), "the time zones differ")
	case Nests(from.Unit, to.Unit):
		differ(fmt.Sprintf("`map: { window: %s }`", to.Unit), "%s is made of many of them", to.Unit.one())
	case Nests(to.Unit, from.Unit):
		differ(fmt.Sprintf("`map: within` reads the %s that each %s lies in", from.Unit.noun(), to.Unit.noun()),
			noneSame)
	case from.Unit != to.Unit:
		differ(useLatest, noneSame)
	}
}
