package dag

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
)

// ValidBound returns an error for a bound that no partition can lie before or after.
func (p Partitioning) ValidBound(bound string) error {
	switch p.Kind {
	case ByKey:
		return validKey(bound)

	case ByTime:
		_, err := p.boundStart(bound)
		return err

	case ByRange, ByCursor:
		_, _, err := (Partitioning{Kind: ByCursor}).Range(bound)
		return err
	}
	return fault.New(fault.Invalid, "%q cannot be a bound: the output has no partitions", bound)
}

// boundStart returns when a bound begins that is written in any unit of time.
func (p Partitioning) boundStart(bound string) (time.Time, error) {
	for _, unit := range namedUnits {
		boundBy := Partitioning{Kind: ByTime, Unit: unit, Timezone: p.Timezone}
		if start, _, err := boundBy.Bounds(bound); err == nil {
			return start, nil
		}
	}
	_, _, err := p.Bounds(bound)
	return time.Time{}, err
}

// Precedes reports whether a partition lies wholly before a bound. It compares times by the clock, whatever unit the
// bound is written in (2001-02 can bound days too), ranges and cursors by their positions, and keys as text. It returns
// an error for an unpartitioned output, and for a bound that does not fit the partitions.
func (p Partitioning) Precedes(key, bound string) (bool, error) {
	if err := p.ValidBound(bound); err != nil {
		return false, err
	}
	switch p.Kind {
	case ByTime:
		_, end, err := p.Bounds(key)
		if err != nil {
			return false, err
		}
		start, err := p.boundStart(bound)
		return !end.After(start), err

	case ByRange, ByCursor:
		_, to, err := p.Range(key)
		if err != nil {
			return false, err
		}
		from, _, err := (Partitioning{Kind: ByCursor}).Range(bound)
		return to <= from, err

	default: // ByKey
		return strings.Compare(key, bound) < 0, nil
	}
}

// CompareKeys compares the keys of two partitions of one output: ranges by their positions, and others as text, which
// is the order of time for times.
func CompareKeys(a, b string) int {
	fromA, toA, errA := (Partitioning{Kind: ByCursor}).Range(a)
	fromB, toB, errB := (Partitioning{Kind: ByCursor}).Range(b)
	if errA != nil || errB != nil {
		return strings.Compare(a, b)
	}
	return cmp.Or(cmp.Compare(fromA, fromB), cmp.Compare(toA, toB))
}

// KeyBetween reports whether a key lies between two others, both included. An end that is "" is open. One that is a
// longer time has all of it: the days up to 2001-02 are those of February, too.
func KeyBetween(key, from, to string) bool {
	return (from == "" || CompareKeys(from, key) <= 0) && (to == "" || CompareKeys(key, to) <= 0 || inPeriod(key, to))
}

// inPeriod reports whether a key is that of a time in a day, month or year.
func inPeriod(key, period string) bool {
	layouts := []string{"2006", "2006-01", time.DateOnly}
	isPeriod := func(layout string) bool { _, err := time.Parse(layout, period); return err == nil }
	rest, found := strings.CutPrefix(key, period)
	return found && strings.IndexAny(rest, "-T") == 0 && slices.ContainsFunc(layouts, isPeriod)
}
