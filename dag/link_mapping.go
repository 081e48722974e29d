package dag

import (
	"cmp"
	"fmt"
)

// mapsAlone checks the rules of a mapping that hold whatever the input is.
func (d *decoder) mapsAlone(node value, in Input, j *Job) {
	place := cmp.Or(node.key("map"), node.node)
	switch {
	case in.Map.Kind == MapWindow && j.ExecutionStrategy == PerUpdate:
		d.node(place, CodeMapping, "`window` is for jobs that compute per partition").suggest("set `execution_strategy: PerPartition`")
	case in.Map.Kind == MapWindow && j.PartitionBy.Kind != ByTime:
		d.node(place, CodeMapping, "`window` needs time partitions, but job %q has %s", j.Name, j.PartitionBy).
			suggest("set `partition_by: { time: %s }`", cmp.Or(in.Map.Window, Day))
	case in.Map.Window != "" && in.Map.Window != j.PartitionBy.Unit:
		d.node(place, CodeMapping, "a window of a %s makes %s partitions, but job %q has %s", in.Map.Window, in.Map.Window, j.Name, j.PartitionBy).
			suggest("set `partition_by: { time: %s }`", in.Map.Window)
	case in.Map.Kind == MapSlice && j.PartitionBy.Kind != ByRange:
		d.node(place, CodeMapping, "`map: slice` needs range partitions, but job %q has %s", j.Name, j.PartitionBy).
			suggest("set `partition_by: { range: SIZE, column: NAME }`, or use `map: latest`")
	}
}

// maps checks that an input's partitions lead to the output's.
func (d *decoder) maps(node value, in Input, from Partitioning, j *Job) {
	told := len(d.problems)
	if d.mapsAlone(node, in, j); len(d.problems) > told {
		return
	}
	place := cmp.Or(node.key("map"), node.get("from").get("job").node, node.node)
	to := j.PartitionBy
	wrong := func(suggestion, format string, args ...any) {
		d.node(place, CodeMapping, "job %q has %s, but input %q has %s: %s", j.Name, to, in.As, from, fmt.Sprintf(format, args...)).Suggestion = suggestion
	}
	switch in.Map.Kind {
	case MapSlice:
		if from.Kind != ByCursor {
			wrong("`map: latest` reads all of it", "`map: slice` takes rows of a cursor input")
		}
	case MapWindow:
		mapsWindow(in.Map, from, to, wrong)
	case MapSame:
		if j.ExecutionStrategy == PerPartition {
			mapsSame(from, to, wrong)
		}
	}
}

func mapsWindow(m Mapping, from, to Partitioning, wrong func(suggestion, format string, args ...any)) {
	switch {
	case from.Kind != ByTime:
		wrong("`map: latest` reads all of it", "a window is made of time partitions")
	case from.Timezone != to.Timezone:
		wrong(fmt.Sprintf("set `timezone: %s`", from.Timezone), "the time zones differ")
	case m.Last > 0 && from.Unit != to.Unit:
		wrong(fmt.Sprintf("set `partition_by: { time: %s }`", from.Unit), "the last %d partitions are counted in one unit", m.Last)
	case m.Last == 0 && from.Unit == to.Unit:
		wrong("leave `map` out", "each is made of one")
	case m.Last == 0 && !nests(from.Unit, to.Unit):
		wrong("`map: latest` reads all of it", "a %s is not made of whole %ss", to.Unit, from.Unit)
	}
}

func mapsSame(from, to Partitioning, wrong func(suggestion, format string, args ...any)) {
	const latest = "`map: latest` reads what is current without triggering"
	switch {
	case from.Kind == Unpartitioned && to.Kind == Unpartitioned:
	case from.Kind == Unpartitioned:
		wrong(latest, "no partition of it is the same")
	case from.Kind == ByCursor && to.Kind == ByRange:
		wrong("`map: slice` takes the rows of each range; `execution_strategy: PerUpdate` follows the cursor", "no partition of it is the same")
	case from.Kind == ByCursor, to.Kind == ByCursor:
		wrong("use `execution_strategy: PerUpdate`", "a cursor has no partitions that could be computed one by one")
	case to.Kind == Unpartitioned:
		wrong("use `execution_strategy: PerUpdate`, or give the job a `partition_by`", "no partition of it is the same")
	case from.Kind != to.Kind:
		wrong(latest, "no partition of it is the same")
	case from.Kind == ByTime && from.Timezone != to.Timezone:
		wrong(fmt.Sprintf("set `timezone: %s`", from.Timezone), "the time zones differ")
	case from.Kind == ByTime && nests(from.Unit, to.Unit):
		wrong(fmt.Sprintf("`map: { window: %s }`", to.Unit), "a %s is made of many of them", to.Unit)
	case from.Kind == ByTime && from.Unit != to.Unit:
		wrong(latest, "no partition of it is the same")
	case from.Kind == ByRange && (from.Size != to.Size || from.Column != to.Column):
		wrong(latest, "the ranges differ")
	}
}

// nests says whether every outer partition is made of whole inner ones. Months are not made of weeks.
func nests(inner, outer TimeUnit) bool {
	switch inner {
	case Hour:
		return outer == Day || outer == Week || outer == Month
	case Day:
		return outer == Week || outer == Month
	}
	return false
}
