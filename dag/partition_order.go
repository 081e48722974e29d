package dag

import (
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
)

// Precedes reports whether a partition lies wholly before a bound: times by the clock, whatever unit the bound is
// written in (2001-02 is the bound of days, too), ranges and cursors by their positions, keys as text. What has no
// partitions has nothing before anything, and is a fault, as is a bound that names no place among the partitions.
func (p Partitioning) Precedes(key, bound string) (bool, error) {
	switch p.Kind {
	case ByKey:
		if err := validKey(bound); err != nil {
			return false, err
		}
		return strings.Compare(key, bound) < 0, nil
	case ByTime:
		_, end, err := p.Bounds(key)
		if err != nil {
			return false, err
		}
		for _, unit := range []TimeUnit{Hour, Day, Week, Month} {
			if start, _, err := (Partitioning{Kind: ByTime, Unit: unit, Timezone: p.Timezone}).Bounds(bound); err == nil {
				return !end.After(start), nil
			}
		}
		_, _, err = p.Bounds(bound)
		return false, err
	case ByRange, ByCursor:
		_, to, err := p.Range(key)
		if err != nil {
			return false, err
		}
		from, _, err := (Partitioning{Kind: ByCursor}).Range(bound)
		return to <= from, err
	}
	return false, fault.New(fault.Invalid, "%q is no place among the partitions: there are none", bound)
}
