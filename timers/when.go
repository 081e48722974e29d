package timers

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
)

// When timers fire. Everything here is pure; local times are UTC times that show what the zone's wall clock shows.

// Layouts of local times: with and without seconds.
const (
	localLayout  = "2006-01-02T15:04:05"
	minuteLayout = "2006-01-02T15:04"
)

func parseLocal(text string) (time.Time, error) {
	for _, layout := range []string{localLayout, minuteLayout} {
		if local, err := time.Parse(layout, text); err == nil && local.Year() >= 1900 && local.Year() < 9000 {
			return local, nil
		}
	}
	return time.Time{}, fault.New(fault.Invalid, "%q is not a local time", text).
		WithHint("write it as 2027-03-14T09:00:00, without a zone; years from 1900 to 8999")
}

// Zone returns an IANA time zone by its name.
func Zone(name string) (*time.Location, error) {
	zone, err := time.LoadLocation(name)
	if err != nil || name == "" || name == "Local" {
		return nil, fault.New(fault.Invalid, "%q is not an IANA time zone", name).
			WithHint("such as Europe/Berlin or UTC")
	}
	return zone, nil
}

// instant returns when a zone's clocks show a local time. For a time that they skip it is the end of the gap; of two
// instants at which they show the same time it is the first.
func instant(local time.Time, zone *time.Location) time.Time {
	return dag.FirstInstant(local, zone).UTC()
}

// wall returns what a zone's clocks show at t.
func wall(t time.Time, zone *time.Location) time.Time {
	_, offset := t.In(zone).Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// first returns the first occurrence of a timer that is created at now: the local time itself or, if it repeats, the
// first that is not past.
func first(t Timer, zone *time.Location, now time.Time) (time.Time, error) {
	switch t.Repeat {
	case yearly:
		if !instant(t.anchor, zone).Before(now) {
			return t.anchor, nil
		}
		return yearlyAfter(t.anchor, zone, now), nil
	case byCron:
		from := t.anchor.Add(-time.Second) // the anchor itself counts
		if instant(t.anchor, zone).Before(now) {
			from = wall(now, zone)
		}
		return cronAfter(t.Schedule, from, zone, time.Time{})
	}
	return t.anchor, nil
}

// next returns the occurrence after the one at t.local, which has fired: the first after now, so that one late firing
// makes up for all that were missed while no process ran. ok is false if there is none.
func next(t Timer, zone *time.Location, now time.Time) (local time.Time, ok bool, err error) {
	after := instant(t.local, zone)
	if now.After(after) {
		after = now
	}
	switch t.Repeat {
	case yearly:
		return yearlyAfter(t.anchor, zone, after), true, nil
	case byCron:
		local, err = cronAfter(t.Schedule, t.local, zone, after)
		return local, err == nil, err
	}
	return time.Time{}, false, nil
}

// yearlyAfter returns the first anniversary of anchor after an instant. That of 29 February is the 28th in common
// years.
func yearlyAfter(anchor time.Time, zone *time.Location, after time.Time) time.Time {
	for year := max(after.Year()-1, anchor.Year()+1); ; year++ {
		day := anchor.Day()
		if anchor.Month() == time.February && day == 29 && !leap(year) {
			day = 28
		}
		local := time.Date(year, anchor.Month(), day, anchor.Hour(), anchor.Minute(), anchor.Second(), 0, time.UTC)
		if instant(local, zone).After(after) {
			return local
		}
	}
}

func leap(year int) bool { return year%4 == 0 && (year%100 != 0 || year%400 == 0) }

// cronAfter returns the first local time after from that a schedule names and whose instant is after another.
func cronAfter(text string, from time.Time, zone *time.Location, after time.Time) (time.Time, error) {
	schedule, err := parseSchedule(text)
	if err != nil {
		return time.Time{}, err
	}
	if earlier := wall(after, zone).Add(-26 * time.Hour); earlier.After(from) {
		from = earlier // nothing before it can be after the instant
	}
	for local := schedule.Next(from); !local.IsZero(); local = schedule.Next(local) {
		if instant(local, zone).After(after) {
			return local, nil
		}
	}
	return time.Time{}, fault.New(fault.Invalid, "schedule %q never fires", text)
}

func parseSchedule(text string) (cron.Schedule, error) {
	// A schedule on a wall clock has neither a zone of its own nor intervals.
	if len(text) > 100 || len(text) == 0 || strings.Contains(text, "TZ=") || strings.HasPrefix(text, "@every") {
		return nil, fault.New(fault.Invalid, "schedule %.100q is not a cron schedule", text).
			WithHint("use five fields, or @hourly, @daily, @weekly, @monthly, @yearly")
	}
	schedule, err := cron.ParseStandard(text)
	if err != nil {
		return nil, fault.New(fault.Invalid, "schedule %q is not a cron schedule: %w", text, err).
			WithHint("use five fields, or @hourly, @daily, @weekly, @monthly, @yearly")
	}
	return schedule, nil
}

// occurrence returns the name of one firing of a timer. It has the local time, so that a change of zone adds no firing.
func occurrence(t Timer) string {
	return fmt.Sprintf("timer:%s@%s", t.ID, t.local.Format(localLayout))
}
