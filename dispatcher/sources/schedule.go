package sources

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
)

// nextFire returns when a source fires next, after it fired for the time at; nil: no clock fires it. With catchup, or
// if ours says that it is our fault, a schedule goes on from at; otherwise it skips windows that were missed meanwhile.
func nextFire(s *dag.Source, at, now time.Time, ours bool) (*time.Time, error) {
	switch s.Kind {
	case "poll":
		next := at.Add(s.Every)
		if next.Before(now) {
			next = now.Add(s.Every)
		}
		return &next, nil

	case "cron":
		from := at
		if !s.Catchup && !ours && now.After(at) {
			from = now
		}
		next, err := nextCron(s, from)
		return &next, err
	}
	return nil, nil
}

// resumeAt returns when a source fires next after a cutover. was is when it was due before, first when a new source
// with its definition would fire. The earlier of both wins, unless was is no longer a time of its schedule.
func resumeAt(s *dag.Source, was, first *time.Time) (*time.Time, error) {
	if was == nil || first == nil || first.Before(*was) {
		return first, nil
	}
	if s.Kind == "cron" {
		if again, err := nextCron(s, was.Add(-time.Second)); err != nil || !again.Equal(*was) {
			return first, err
		}
	}
	return was, nil
}

// nextCron returns the first time after t that a schedule names. It searches on an ideal wall clock, on which no hour
// is missing and none comes twice, and maps the result to the zone's real clock: a local time that the clocks skip
// fires right after the skip, and one that comes twice fires the first time.
func nextCron(s *dag.Source, t time.Time) (time.Time, error) {
	schedule, err := cron.ParseStandard(s.Schedule)
	if err != nil {
		return time.Time{}, fmt.Errorf("schedule %q: %w", s.Schedule, err)
	}
	zone, err := time.LoadLocation(s.Timezone)
	if err != nil {
		return time.Time{}, fmt.Errorf("time zone %q: %w", s.Timezone, err)
	}
	start, err := startOf(s, zone)
	if err != nil {
		return time.Time{}, err
	}
	if t.Before(start) {
		t = start.Add(-time.Second)
	}

	wall := onWall(t, zone)
	for {
		wall = schedule.Next(wall)
		if wall.IsZero() {
			return time.Time{}, fault.New(fault.Conflict, "schedule %q never fires", s.Schedule)
		}
		if at := dag.FirstInstant(wall, zone); at.After(t) {
			return at, nil
		}
	}
}

// NextTimes returns when a source is due next, at most n times, from the time at which it fires next; that alone for
// what no clock fires. It is pure.
func NextTimes(s *dag.Source, next time.Time, n int) (times []time.Time) {
	for len(times) < n && !next.IsZero() {
		times = append(times, next)
		following, err := nextFire(s, next, next, true)
		if err != nil || following == nil {
			return times
		}
		next = *following
	}
	return times
}

// onWall returns what the zone's clocks show at t, as a UTC time.
func onWall(t time.Time, zone *time.Location) time.Time {
	_, offset := t.In(zone).Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// startOf returns the first instant at which a schedule may fire.
func startOf(s *dag.Source, zone *time.Location) (time.Time, error) {
	if s.Start == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, s.Start); err == nil {
		return t, nil
	}
	t, err := time.ParseInLocation(time.DateOnly, s.Start, zone)
	if err != nil {
		return time.Time{}, fmt.Errorf("start %q is neither a date nor an RFC 3339 time", s.Start)
	}
	return t, nil
}
