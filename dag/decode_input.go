package dag

import (
	"cmp"
	"slices"
	"strings"
)

// input decodes the fields of an input. link adds what follows from the upstream job.
func (d *decoder) input(v value, j *Job) Input {
	from := v.get("from")
	in := Input{
		Job:      from.get("job").text(),
		Dataset:  from.get("dataset").text(),
		Map:      d.mapping(v.get("map")),
		Refresh:  v.get("refresh").boolean(false),
		Read:     ReadMode(v.get("read").text()),
		Position: v.position(d.file),
	}
	if by, known := d.datasets[in.Dataset]; known && in.Job == "" {
		in.PartitionBy = &by
	}
	in.As = cmp.Or(v.get("as").text(), in.Job, in.Dataset)

	for column, values := range v.get("where").pairs() {
		in.Where = append(in.Where, Condition{Column: column.Value, Values: value{values}.scalars()})
	}
	// Conditions are ANDed, so their order must not matter to any hash.
	slices.SortFunc(in.Where, func(a, b Condition) int { return strings.Compare(a.Column, b.Column) })

	if in.Read == "" {
		in.Read = ReadAll
		if j.UpdateStrategy == Append && in.Triggers() {
			in.Read = ReadNew
		}
	} else if in.Read == ReadNew && !in.Triggers() {
		d.node(v.get("read").node, CodeConflict, "`read: new` is for inputs that trigger; `map: %s` does not",
			in.Map.Kind)
	}

	if in.Refresh && in.Map.Kind != MapLatest {
		d.node(v.key("refresh"), CodeConflict, "`refresh` is only allowed with `map: latest`")
	}
	return in
}

func (d *decoder) mapping(v value) Mapping {
	if !v.has("window") {
		return Mapping{Kind: MapKind(cmp.Or(v.text(), string(MapSame)))}
	}
	window := v.get("window")
	return Mapping{
		Kind:    MapWindow,
		Window:  TimeUnit(window.text()),
		Last:    int(window.get("last").integer()),
		Require: cmp.Or(v.get("require").text(), "complete"),
	}
}
