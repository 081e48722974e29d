package dag

import (
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
)

// Precedes reports whether a partition lies wholly before a bound. It compares times by the clock, whatever unit the
// bound is written in (2001-02 can bound days too), ranges and cursors by their positions, and keys as text. It returns
// an error for an unpartitioned output, and for a bound that does not fit the partitions.
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
			boundBy := Partitioning{Kind: ByTime, Unit: unit, Timezone: p.Timezone}
			if start, _, err := boundBy.Bounds(bound); err == nil {
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
	return false, fault.New(fault.Invalid, "%q cannot be a bound: the output has no partitions", bound)
}
