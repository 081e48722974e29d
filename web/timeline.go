package web

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/views"
)

// timeline is a drawing of bars over time, in lanes; the template "timeline" writes it as SVG.
type timeline struct {
	Width, Height int
	Label         string // for those who do not see it
	Left          int    // where time begins
	Lanes         []lane
	Bars          []bar
	Ticks         []tick
	States        []barCount // what its bars stand for
}

type lane struct {
	Y    int
	Name string // what fits
	Full string
	Line int // under it
}

type bar struct {
	X, Y, Width, Height int
	State               string // class
	Mark                string // letter that says the state where colours do not; empty: the bar is too short for it
	Title, Link         string
}

type tick struct {
	X    int
	Text string
}

// barCount is how many bars are in a state.
type barCount struct {
	State, Mark string
	N           int
}

// span is what a bar shows.
type span struct {
	lane, state, title, link string
	from, to                 time.Time
}

// Sizes in user units of the SVG.
const (
	timelineWidth = 1200
	laneNames     = 210 // room for the names of lanes
	barHeight     = 12
	barGap        = 3
	shortestBar   = 4
	markFits      = 14
	tickEvery     = 200
	mostLanes     = 16
	mostRows      = 6 // of overlapping bars in a lane with a name
	mostBars      = 24
)

// barStates are the states of bars, with their marks.
var barStates = []barCount{{State: "completed", Mark: "✓"}, {State: "failed", Mark: "✕"}, {State: "running", Mark: "▸"},
	{State: "queued", Mark: "…"}, {State: "canceled", Mark: "–"}, {State: "handed_back", Mark: "↩"}}

// markOf returns the mark of a state.
func markOf(state string) string {
	for _, s := range barStates {
		if s.State == state {
			return s.Mark
		}
	}
	return "·"
}

// drawTimeline draws spans; nothing if there are none. Spans of one lane that overlap are below each other. Where the
// spans have no lanes, all are in one.
func drawTimeline(label string, spans []span) *timeline {
	if len(spans) == 0 {
		return nil
	}
	from, to := spans[0].from, spans[0].to
	for _, s := range spans {
		if s.from.Before(from) {
			from = s.from
		}
		if s.to.After(to) {
			to = s.to
		}
	}
	if to.Sub(from) < time.Second {
		to = from.Add(time.Second)
	}

	t := &timeline{Width: timelineWidth, Label: label}
	names, lanes := inLanes(spans)
	if len(names) > 1 || names[0] != "" {
		t.Left = laneNames
	}
	x := func(at time.Time) int {
		return t.Left + int(at.Sub(from).Seconds()/to.Sub(from).Seconds()*float64(t.Width-t.Left))
	}
	y := barGap
	for _, name := range names {
		y = t.addLane(name, lanes[name], x, y)
	}

	t.Height = y + 20
	for at := t.Left; at < t.Width; at += tickEvery {
		moment := from.Add(time.Duration(float64(to.Sub(from)) * float64(at-t.Left) / float64(t.Width-t.Left)))
		t.Ticks = append(t.Ticks, tick{X: at, Text: moment.UTC().Format(tickLayout(to.Sub(from)))})
	}
	t.count(spans)
	return t
}

// inLanes sorts spans into lanes, in the order in which these come up; what is too much for the drawing shares a lane.
func inLanes(spans []span) (names []string, lanes map[string][]span) {
	const others = "other jobs"
	lanes = map[string][]span{}
	for _, s := range spans {
		name := s.lane
		if lanes[name] == nil && len(names) >= mostLanes {
			name = others
		}
		if lanes[name] == nil {
			names = append(names, name)
		}
		lanes[name] = append(lanes[name], s)
	}
	return names, lanes
}

// addLane draws one lane from y down, and returns where the next one begins.
func (t *timeline) addLane(name string, spans []span, x func(time.Time) int, y int) int {
	slices.SortStableFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
	most := mostBars
	if name != "" {
		most = mostRows
	}

	var ends []int // of the last bar of each row
	for _, s := range spans {
		b := bar{X: x(s.from), Height: barHeight, State: s.state, Title: s.title, Link: s.link}
		b.Width = max(x(s.to)-b.X, shortestBar)
		b.X = min(b.X, t.Width-b.Width)
		if b.Width >= markFits {
			b.Mark = markOf(s.state)
		}

		row := slices.IndexFunc(ends, func(end int) bool { return end < b.X })
		switch {
		case row < 0 && len(ends) < most:
			row, ends = len(ends), append(ends, 0)
		case row < 0:
			row = most - 1
		}
		ends[row] = max(ends[row], b.X+b.Width)
		b.Y = y + row*(barHeight+barGap)
		t.Bars = append(t.Bars, b)
	}

	next := y + len(ends)*(barHeight+barGap)
	if name != "" {
		next += barGap
		t.Lanes = append(t.Lanes, lane{Y: y + barHeight - 2, Name: shorten(name, 30), Full: name, Line: next - barGap})
	}
	return next + barGap
}

// count counts the states of the spans, for the legend.
func (t *timeline) count(spans []span) {
	for _, s := range barStates {
		for _, span := range spans {
			if span.state == s.State {
				s.N++
			}
		}
		if s.N > 0 {
			t.States = append(t.States, s)
		}
	}
}

// tickLayout returns how the times of a drawing are written that covers so much.
func tickLayout(covered time.Duration) string {
	switch {
	case covered < 10*time.Second:
		return "15:04:05.0"
	case covered < 10*time.Minute:
		return "15:04:05"
	case covered < 20*time.Hour:
		return "15:04"
	}
	return "2 Jan 15:04"
}

// taskSpans returns when tasks ran, or since when they wait. Where lanes are named, each job has one.
func taskSpans(tasks []views.Task, now time.Time, named bool) (spans []span) {
	for _, t := range tasks {
		s := span{state: class(t.Status), link: "/tasks/" + t.ID.String(), from: t.CreatedAt, to: now}
		if named {
			s.lane = t.DAG + "/" + t.Job
		}
		if t.StartedAt != nil && t.Status != "Queued" {
			s.from = *t.StartedAt
		}
		if t.CompletedAt != nil {
			s.to = *t.CompletedAt
		} else if t.Status == "Failed" || t.Status == "Canceled" {
			s.to = s.from
		}
		s.title = fmt.Sprintf("%s: %s, %s from %s", taskTitle(t), class(t.Status), rough(s.to.Sub(s.from)),
			stamp(s.from))
		spans = append(spans, s)
	}
	return spans
}

// attemptSpans returns how long a task waited, and when its attempts ran.
func attemptSpans(t views.TaskDetail, now time.Time) (spans []span) {
	if len(t.Attempts) > 0 {
		first := t.Attempts[0].StartedAt
		spans = append(spans, span{lane: "waited", state: "queued", from: t.CreatedAt, to: first,
			title: "Waited " + rough(first.Sub(t.CreatedAt))})
	}
	for _, a := range t.Attempts {
		s := span{lane: fmt.Sprintf("attempt %d", a.Number), from: a.StartedAt, to: now,
			state: cmp.Or(class(a.Outcome), "running")}
		if a.EndedAt != nil {
			s.to = *a.EndedAt
		} else if s.state != "running" {
			s.to = s.from
		}
		s.title = fmt.Sprintf("Attempt %d on %s: %s, %s", a.Number, a.Worker, s.state, rough(s.to.Sub(s.from)))
		spans = append(spans, s)
	}
	return spans
}

// taskTitle names a task for people: DAG/JOB, with its partition where it has one.
func taskTitle(t views.Task) string {
	if t.Partition == "" || t.Partition == dag.WholeKey {
		return t.DAG + "/" + t.Job
	}
	return t.DAG + "/" + t.Job + "@" + t.Partition
}
