package dag

import (
	"fmt"
	"slices"

	"github.com/dagctl/dagctl/internal/fault"
)

// String returns the mapping as a DAG file states it.
func (m Mapping) String() string {
	switch {
	case m.Last > 0:
		return fmt.Sprintf("map: { window: { last: %d } }", m.Last)
	case m.Kind == MapWindow:
		return fmt.Sprintf("map: { window: %s }", m.Window)
	}
	return fmt.Sprintf("map: %s", m.Kind)
}

// OutputKeys returns the output partitions that get tasks when an input partition changes. There are none if the input
// does not trigger (latest, slice): such a change takes effect when the output is next computed, or through Refresh.
func (m Mapping) OutputKeys(in, out Partitioning, key string) ([]string, error) {
	if err := in.Valid(key); err != nil {
		return nil, err
	}

	switch m.Kind {
	case MapSame:
		if out.Kind == Unpartitioned {
			return []string{WholeKey}, nil
		}
		if err := sameKeys(in, out); err != nil {
			return nil, err
		}
		return []string{key}, nil

	case MapWindow:
		start, _, err := in.Bounds(key)
		if err != nil {
			return nil, err
		}
		if m.Last > 0 {
			return in.neighbors(key, m.Last, true)
		}
		if _, err := out.zone(); err != nil {
			return nil, err
		}
		return []string{out.KeyAt(start)}, nil

	case MapWithin:
		start, end, err := in.Bounds(key)
		if err != nil {
			return nil, err
		}
		if _, err := out.zone(); err != nil {
			return nil, err
		}
		return out.KeysBetween(start, end), nil
	}
	return nil, nil
}

// InputKeys returns the input partitions that an output partition is made of. All means every partition that exists or,
// for a slice, the rows of every partition that lie in the output's range.
func (m Mapping) InputKeys(in, out Partitioning, key string) (keys []string, all bool, err error) {
	if err := out.Valid(key); err != nil {
		return nil, false, err
	}
	if in.Kind == Unpartitioned {
		return []string{WholeKey}, false, nil
	}

	switch m.Kind {
	case MapSame:
		if out.Kind == Unpartitioned {
			return nil, true, nil
		}
		if err := sameKeys(in, out); err != nil {
			return nil, false, err
		}
		return []string{key}, false, nil

	case MapWindow:
		if m.Last > 0 {
			keys, err = in.neighbors(key, m.Last, false)
			return keys, false, err
		}
		start, end, err := out.Bounds(key)
		if err != nil {
			return nil, false, err
		}
		if _, err := in.zone(); err != nil {
			return nil, false, err
		}
		return in.KeysBetween(start, end), false, nil

	case MapWithin:
		start, _, err := out.Bounds(key)
		if err != nil {
			return nil, false, err
		}
		if _, err := in.zone(); err != nil {
			return nil, false, err
		}
		return []string{in.KeyAt(start)}, false, nil
	}
	return nil, true, nil
}

// Slice returns the segments of a cursor that hold rows of a range partition, and reports whether they reach the end of
// the range. Only then does the cursor have all rows of the partition, so that no later row is missing from what is
// computed from them. The segments may be in any order.
func (p Partitioning) Slice(key string, segments []string) (holding []string, reached bool, err error) {
	from, to, err := p.Range(key)
	if err != nil {
		return nil, false, err
	}
	for _, segment := range segments {
		start, end, err := Partitioning{Kind: ByCursor}.Range(segment)
		if err != nil {
			return nil, false, err
		}
		if start < to && end > from {
			holding, reached = append(holding, segment), reached || end >= to
		}
	}
	return holding, reached, nil
}

// RangesOver returns up to most of the range partitions that hold positions of a segment, and reports whether these are
// all of them.
func (p Partitioning) RangesOver(segment string, most int) (keys []string, all bool, err error) {
	from, to, err := Partitioning{Kind: ByCursor}.Range(segment)
	if err != nil {
		return nil, false, err
	}
	for at := from - from%p.Size; at < to; at += p.Size {
		if len(keys) == most {
			return keys, false, nil
		}
		keys = append(keys, p.RangeAt(at))
	}
	return keys, true, nil
}

func sameKeys(in, out Partitioning) error {
	if in != out && (in.Kind != ByKey || out.Kind != ByKey) {
		return fault.New(fault.Invalid, "the partitionings differ: %s and %s", in, out)
	}
	return nil
}

// neighbors returns n time partitions in order, of which key is the last, or the first if ahead. Those that the zone's
// clocks skip are none and do not count.
func (p Partitioning) neighbors(key string, n int, ahead bool) ([]string, error) {
	if _, _, err := p.Bounds(key); err != nil {
		return nil, err
	}
	zone, err := p.zone()
	if err != nil {
		return nil, err
	}
	clock, err := p.Unit.parse(key)
	if err != nil {
		return nil, err
	}

	towards := -1
	if ahead {
		towards = 1
	}
	keys := []string{key}
	for len(keys) < n {
		clock = p.Unit.step(clock, towards)
		if p.Unit.shownIn(zone, clock) {
			keys = append(keys, p.Unit.format(clock))
		}
	}
	if !ahead {
		slices.Reverse(keys)
	}
	return keys, nil
}
