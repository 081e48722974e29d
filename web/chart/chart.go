// Package chart draws rows as charts: bars, lines, points, and small multiples of them. It computes where everything
// is; a template writes it down as SVG. It is pure.
//
// Vocabulary: a Spec says what to draw; a Panel is one pair of axes with its marks; a series is the rows with one value
// in the column By. Lengths are in pixels of the drawing. It owns no tables.
package chart

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/dagctl/dagctl/internal/fault"
)

// Column is a column of the rows, with DuckDB's type.
type Column struct{ Name, Type string }

// Kind is a kind of chart.
type Kind string

// The kinds of charts. Multiples is a panel for each value of By, all with the same axes.
const (
	Bar       Kind = "bar"
	Line      Kind = "line"
	Scatter   Kind = "scatter"
	Multiples Kind = "multiples"
)

// Kinds are the kinds in the order in which they are offered.
var Kinds = []Kind{Bar, Line, Scatter, Multiples}

// Spec says what to draw, by names of columns.
type Spec struct {
	Kind Kind
	X    string // categories of bars, times, or numbers
	Y    string // numbers
	By   string // series, or panels; may be empty
}

// The most that a chart shows. What is left out is said in its notes.
const (
	maxBars   = 25
	maxSeries = 6
	maxPanels = 12
)

// Chart is a drawing.
type Chart struct {
	Spec
	Title       string
	Description string // for those who do not see it
	Width       float64
	Height      float64
	Panels      []Panel
	Legend      []Series
	Notes       []string // what is left out, and what was added up
}

// Panel is one pair of axes. Its marks are inside of the rectangle X, Y, Width, Height.
type Panel struct {
	Title               string
	X, Y, Width, Height float64
	XTicks, YTicks      []Tick
	XLabel, YLabel      string
	Zero                float64 // where bars begin
	Bars                []Mark
	Lines               []Path
	Dots                []Mark
}

// Tick is a place on an axis.
type Tick struct {
	At   float64
	Text string
}

// Mark is a bar or a point; a point has no size.
type Mark struct {
	X, Y, Width, Height float64
	Series              int
	Title               string // its values
}

// Path is a line of a series, as the d of an SVG path.
type Path struct {
	D      string
	Series int
	Title  string
}

// Series is an entry of the legend.
type Series struct {
	Number int
	Name   string
}

// Choose completes a spec from the types of the columns: time and number make a line, text and number bars, two numbers
// points. It returns a fault.Invalid for what cannot be drawn.
func Choose(columns []Column, asked Spec) (Spec, error) {
	s := asked
	first := func(is func(Column) bool, but ...string) string {
		for _, c := range columns {
			if is(c) && !slices.Contains(but, c.Name) {
				return c.Name
			}
		}
		return ""
	}
	for _, name := range []string{s.X, s.Y, s.By} {
		if name != "" && !slices.ContainsFunc(columns, func(c Column) bool { return c.Name == name }) {
			return s, fault.New(fault.Invalid, "the result has no column %q to draw", name)
		}
	}
	if s.Kind != "" && !slices.Contains(Kinds, s.Kind) {
		return s, fault.New(fault.Invalid, "%q is no kind of chart", s.Kind).
			WithHint("bar, line, scatter or multiples")
	}

	if s.X == "" {
		numbersFirst := s.Kind == Scatter
		s.X = cmp.Or(onlyIf(numbersFirst, first(IsNumber, s.Y, s.By)), first(isTime, s.Y, s.By),
			first(isText, s.Y, s.By), first(IsNumber, s.Y, s.By))
	}
	if s.Y == "" {
		s.Y = first(IsNumber, s.X, s.By)
	}
	x, y := columnOf(columns, s.X), columnOf(columns, s.Y)
	switch {
	case s.Y == "" || s.X == "":
		return s, fault.New(fault.Invalid, "there is nothing to draw").
			WithHint("a chart needs a column of numbers and another column")
	case !IsNumber(y):
		return s, fault.New(fault.Invalid, "column %q has no numbers, but %s", s.Y, y.Type).
			WithHint("choose a column of numbers for the y axis")
	}

	switch {
	case s.Kind == "" && s.By == "" && isTime(x):
		s.Kind, s.By = Line, first(isText)
	case s.Kind == "" && isTime(x):
		s.Kind = Line
	case s.Kind == "" && IsNumber(x):
		s.Kind = Scatter
	case s.Kind == "":
		s.Kind = Bar
	case (s.Kind == Line || s.Kind == Scatter) && isText(x):
		return s, fault.New(fault.Invalid, "column %q has no times and no numbers, but %s", s.X, x.Type).
			WithHint("draw it as bars, or choose another column for the x axis")
	}
	if s.Kind == Multiples && s.By == "" {
		s.By = first(isText, s.X)
	}
	if s.Kind == Multiples && s.By == "" {
		return s, fault.New(fault.Invalid, "small multiples need a column that says which panel a row belongs to")
	}
	return s, nil
}

func onlyIf(yes bool, text string) string {
	if yes {
		return text
	}
	return ""
}

func columnOf(columns []Column, name string) Column {
	for _, c := range columns {
		if c.Name == name {
			return c
		}
	}
	return Column{}
}

// Draw draws rows, whose values are as JSON has them, by a spec that Choose has returned.
func Draw(columns []Column, rows [][]any, s Spec) Chart {
	data := read(columns, rows, s)
	c := Chart{Spec: s, Title: s.Y + " by " + s.X}
	if s.By != "" {
		c.Title += " and " + s.By
	}

	switch {
	case s.Kind == Multiples:
		c.multiples(data)
	case s.Kind == Bar:
		c.bars(data)
	default:
		c.plane(data)
	}
	if data.left > 0 {
		c.note("%d of %d rows have no value that can be drawn.", data.left, len(rows))
	}
	c.describe(data)
	return c
}

func (c *Chart) note(format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
}

// describe says in words what the chart shows.
func (c *Chart) describe(d data) {
	kind := map[Kind]string{Bar: "Bar chart", Line: "Line chart", Scatter: "Scatter plot",
		Multiples: "Small multiples"}[c.Kind]
	c.Description = fmt.Sprintf("%s of %s over %s, %d rows", kind, c.Y, c.X, len(d.points))
	if len(d.points) > 0 {
		low, high := d.points[0].y, d.points[0].y
		for _, p := range d.points {
			low, high = min(low, p.y), max(high, p.y)
		}
		c.Description += fmt.Sprintf("; %s is between %s and %s", c.Y, exact(low), exact(high))
	}
	c.Description += ". The table below has all values."
}
