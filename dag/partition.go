package dag

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // zones must exist on machines without a zone database too
	"unicode"
	"unicode/utf8"

	"github.com/dagctl/dagctl/internal/fault"
)

// Partition keys. The single partition of an unpartitioned output has the key WholeKey. Time partitions are named by
// the local clock of their zone, as TimeUnit has it. Ranges and segments of a cursor are half-open: 0-10000 is
// [0, 10000). Keys of kind key have up to MaxKeyBytes of printable UTF-8 without / and \, are not . or .., and have no
// white space at either end.
//
// A time partition begins at the first instant at which clocks in its zone show its beginning or later, and ends where
// the next one begins. So partitions follow each other without gap or overlap whatever a zone does: the hour that is
// repeated in autumn is one partition of two hours, the last quarter of it one of an hour and a quarter, and what is
// skipped in spring has none.

// String describes a partitioning in words, for messages and plans.
func (p Partitioning) String() string {
	switch p.Kind {
	case ByKey:
		return "key partitions"
	case ByTime:
		if p.Timezone != "" && p.Timezone != "UTC" {
			return fmt.Sprintf("%s partitions in %s", p.Unit.adjective(), p.Timezone)
		}
		return fmt.Sprintf("%s partitions", p.Unit.adjective())
	case ByRange:
		return fmt.Sprintf("ranges of %d of %s", p.Size, p.Column)
	case ByCursor:
		return fmt.Sprintf("the cursor %s", p.Column)
	}
	return "no partitions"
}

// Valid returns an error if key does not name a partition.
func (p Partitioning) Valid(key string) error {
	switch p.Kind {
	case ByKey:
		return validKey(key)
	case ByTime:
		_, _, err := p.Bounds(key)
		return err
	case ByRange, ByCursor:
		_, _, err := p.Range(key)
		return err
	}
	if key != WholeKey {
		return fault.New(fault.Invalid,
			"partition %q does not exist: the output is not partitioned, and its only key is %q", key, WholeKey)
	}
	return nil
}

func validKey(key string) error {
	switch {
	case key == "" || len(key) > MaxKeyBytes:
		return fault.New(fault.Invalid, "a partition key has 1 to %d bytes, not %d", MaxKeyBytes, len(key))
	case !utf8.ValidString(key):
		return fault.New(fault.Invalid, "partition key %q is not UTF-8 text", key)
	case key == "." || key == ".." || strings.ContainsAny(key, `/\`) || strings.TrimSpace(key) != key:
		return fault.New(fault.Invalid,
			`partition key %q is not allowed: it must not have / or \, be . or .., or begin or end with a space`, key)
	case strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fault.New(fault.Invalid, "partition key %q has characters that cannot be printed", key)
	}
	return nil
}

// Bounds returns the time that a time partition covers: start ≤ t < end.
func (p Partitioning) Bounds(key string) (start, end time.Time, err error) {
	zone, err := p.zone()
	if err != nil {
		return time.Time{}, time.Time{}, err
	}
	clock, err := p.Unit.parse(key)
	if err != nil {
		return time.Time{}, time.Time{}, err
	}

	start, end = FirstInstant(clock, zone), FirstInstant(p.Unit.step(clock, 1), zone)
	if !start.Before(end) {
		return time.Time{}, time.Time{}, fault.New(fault.Invalid, "there is no %s %s in %s: the clocks skip it",
			p.Unit.noun(), key, p.Timezone)
	}
	return start, end, nil
}

// KeyAt returns the key of the partition that t lies in. It is empty if the partitions are not of time.
func (p Partitioning) KeyAt(t time.Time) string {
	zone, err := p.zone()
	if err != nil {
		return ""
	}
	return p.Unit.format(p.clockAt(t, zone))
}

// clockAt returns the beginning, on the local clock, of the partition that t lies in.
func (p Partitioning) clockAt(t time.Time, zone *time.Location) time.Time {
	clock := p.Unit.truncate(shown(t, zone))
	// Where clocks were set back over a boundary, they show the earlier partition once more.
	for next := p.Unit.step(clock, 1); !FirstInstant(next, zone).After(t); next = p.Unit.step(clock, 1) {
		clock = next
	}
	return clock
}

// LastComplete returns the key of the last partition that is over at t: a cron source that fires at t computes it.
func (p Partitioning) LastComplete(t time.Time) string {
	start, _, err := p.Bounds(p.KeyAt(t))
	if err != nil {
		return ""
	}
	return p.KeyAt(start.Add(-1))
}

// KeysBetween returns the keys of the time partitions that begin at or after start and before end.
func (p Partitioning) KeysBetween(start, end time.Time) []string {
	zone, err := p.zone()
	if err != nil {
		return nil
	}
	var keys []string
	for clock := p.clockAt(start, zone); ; clock = p.Unit.step(clock, 1) {
		from, to := FirstInstant(clock, zone), FirstInstant(p.Unit.step(clock, 1), zone)
		if !from.Before(end) {
			return keys
		}
		if !from.Before(start) && from.Before(to) {
			keys = append(keys, p.Unit.format(clock))
		}
	}
}

// MaxAsked is how many partitions a source may be asked for: all hours of eleven years.
const MaxAsked = 100_000

// CompleteFrom returns the keys of the time partitions from the first one on that are over at now. It refuses to list
// more than MaxAsked.
func (p Partitioning) CompleteFrom(first string, now time.Time) ([]string, error) {
	start, _, err := p.Bounds(first)
	if err != nil {
		return nil, err
	}
	last := p.LastComplete(now)
	count, err := p.CountBetween(first, last)
	if err != nil || count <= 0 {
		return nil, err
	}
	if count > MaxAsked {
		return nil, fault.New(fault.Invalid, "there are %d partitions from %s to %s, and a source is asked for %d at "+
			"most", count, first, last, MaxAsked).WithHint("begin later, or use partitions of a longer unit of time")
	}

	_, end, err := p.Bounds(last)
	if err != nil {
		return nil, err
	}
	return p.KeysBetween(start, end), nil
}

// KeysUpTo returns the last n time partitions from one key to another, both included, in order.
func (p Partitioning) KeysUpTo(first, last string, n int) (keys []string) {
	zone, err := p.zone()
	if err != nil {
		return nil
	}
	from, err := p.Unit.parse(first)
	if err != nil {
		return nil
	}
	clock, err := p.Unit.parse(last)
	if err != nil {
		return nil
	}

	for ; len(keys) < n && !clock.Before(from); clock = p.Unit.step(clock, -1) {
		if p.Unit.shownIn(zone, clock) {
			keys = append(keys, p.Unit.format(clock))
		}
	}
	slices.Reverse(keys)
	return keys
}

// shownIn reports whether clocks in a zone show any of the time of the partition that begins at clock.
func (u TimeUnit) shownIn(zone *time.Location, clock time.Time) bool {
	return FirstInstant(clock, zone).Before(FirstInstant(u.step(clock, 1), zone))
}

// CountBetween returns how many time partitions there are from one key to another, both included. It counts by the
// clock, so one that the zone's clocks skip counts too.
func (p Partitioning) CountBetween(first, last string) (int64, error) {
	from, err := p.Unit.parse(first)
	if err != nil {
		return 0, err
	}
	to, err := p.Unit.parse(last)
	if err != nil {
		return 0, err
	}
	if months := p.Unit.width().months; months > 0 {
		between := 12*(to.Year()-from.Year()) + int(to.Month()) - int(from.Month())
		return int64(between/months) + 1, nil
	}
	length := p.Unit.step(from, 1).Unix() - from.Unix()
	return (to.Unix()-from.Unix())/length + 1, nil // a time.Duration holds 292 years only
}

// Range returns the positions that a range partition, or a segment of a cursor, covers: from ≤ position < to.
func (p Partitioning) Range(key string) (from, to int64, err error) {
	first, second, _ := strings.Cut(key, "-")
	from, err1 := strconv.ParseInt(first, 10, 64)
	to, err2 := strconv.ParseInt(second, 10, 64)
	if err1 != nil || err2 != nil || from < 0 || from >= to || key != fmt.Sprintf("%d-%d", from, to) {
		return 0, 0, fault.New(fault.Invalid,
			"range %q must be two whole numbers such as 0-10000, the second excluded", key)
	}
	if p.Kind == ByRange && (to-from != p.Size || from%p.Size != 0) {
		return 0, 0, fault.New(fault.Invalid, "range %q is not one of the ranges of %d", key, p.Size)
	}
	return from, to, nil
}

// RangeAt returns the key of the range partition that a position lies in.
func (p Partitioning) RangeAt(position int64) string {
	from := position - position%p.Size
	return fmt.Sprintf("%d-%d", from, from+p.Size)
}

func (p Partitioning) zone() (*time.Location, error) {
	if p.Kind != ByTime {
		return nil, fault.New(fault.Invalid, "%s have no bounds in time", p)
	}
	if known, ok := zones.Load(p.Timezone); ok {
		return known.(*time.Location), nil
	}
	zone, err := time.LoadLocation(p.Timezone)
	if err != nil {
		return nil, fault.New(fault.Invalid, "there is no time zone %q", p.Timezone)
	}
	zones.Store(p.Timezone, zone)
	return zone, nil
}

// zones caches loaded zones: loading one reads a file, and routing needs a zone for every event.
var zones sync.Map

// shown returns what clocks in a zone show at t, as a UTC time, in which every hour exists once.
func shown(t time.Time, zone *time.Location) time.Time {
	_, offset := t.In(zone).Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// FirstInstant returns the first instant at which clocks in a zone show clock or later.
func FirstInstant(clock time.Time, zone *time.Location) time.Time {
	// No zone is further than 26 hours from UTC, so at this instant clocks show less than clock.
	for t := clock.Add(-26 * time.Hour); ; {
		local := t.In(zone)
		_, offset := local.Zone()
		_, end := local.ZoneBounds()
		if !end.IsZero() && !end.After(t) {
			// Far in the future, the time package returns no usable end for the last day of a leap year.
			end = t.Add(time.Hour)
		}

		candidate := clock.Add(-time.Duration(offset) * time.Second)
		if end.IsZero() || candidate.Before(end) {
			return candidate
		}
		if !shown(end, zone).Before(clock) {
			return end.UTC() // the clocks were put forward to clock or over it
		}
		t = end
	}
}
