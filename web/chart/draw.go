package chart

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Measures of the drawing.
const (
	width      = 880.0
	planeTall  = 280.0
	barTall    = 22.0
	left       = 64.0 // room for the ticks of the y axis
	labels     = 190.0
	right      = 20.0
	top        = 14.0
	bottom     = 44.0
	panelWide  = 270.0
	panelTall  = 120.0
	panelSpace = 64.0
)

// plane draws lines or points over two axes.
func (c *Chart) plane(d data) {
	c.Width, c.Height = width, top+planeTall+bottom
	names := c.series(&d)
	p := Panel{X: left, Y: top, Width: width - left - right, Height: planeTall, XLabel: c.label(d), YLabel: c.Y}
	xs, ys := axes(d, false)
	p.axes(d, &xs, &ys, 7, 5)
	p.marks(d, c.Kind, xs, ys, names)
	c.Panels = []Panel{p}
}

// label names the x axis.
func (c *Chart) label(d data) string {
	if d.time && d.zone {
		return c.X + " (UTC)"
	}
	return c.X
}

// series keeps the rows of the largest series, and returns their names in the order in which they come.
func (c *Chart) series(d *data) []string {
	names, dropped := mostFrequent(d.points, maxSeries, func(p point) string { return p.series })
	if dropped > 0 {
		d.points = slices.DeleteFunc(d.points, func(p point) bool { return !slices.Contains(names, p.series) })
		c.note("The %d largest of %d series of %s; a WHERE shows others.", len(names), len(names)+dropped, c.By)
	}
	if c.By != "" {
		for i, name := range names {
			c.Legend = append(c.Legend, Series{i, name})
		}
	}
	return names
}

// mostFrequent returns the n most frequent names, in the order in which they first come, and how many others there are.
func mostFrequent(points []point, n int, name func(point) string) (names []string, dropped int) {
	count := map[string]int{}
	for _, p := range points {
		if count[name(p)]++; count[name(p)] == 1 {
			names = append(names, name(p))
		}
	}
	if len(names) <= n {
		return names, 0
	}

	order := slices.Clone(names)
	slices.SortStableFunc(order, func(a, b string) int { return cmp.Compare(count[b], count[a]) })
	kept := order[:n]
	return slices.DeleteFunc(names, func(s string) bool { return !slices.Contains(kept, s) }), len(order) - n
}

// axes returns the scales of all points.
func axes(d data, zero bool) (xs, ys scale) {
	var x, y []float64
	for _, p := range d.points {
		x, y = append(x, p.x), append(y, p.y)
	}
	ys = span(y, zero)
	if !zero && ys.low > 0 && ys.low < ys.high/3 {
		ys.low = 0 // close enough to zero to show it
	}
	xs = span(x, false)
	if d.time && len(x) > 0 && slices.Min(x) == slices.Max(x) {
		xs = scale{x[0] - 43200, x[0] + 43200} // the day around the only moment
	}
	return xs, ys
}

// axes sets the ticks of a panel over scales, which it widens to round numbers.
func (p *Panel) axes(d data, xs, ys *scale, across, up int) {
	for _, m := range ys.numbers(up) {
		p.YTicks = append(p.YTicks, Tick{At: m.value, Text: m.text})
	}
	for i := range p.YTicks {
		p.YTicks[i].At = p.up(*ys, p.YTicks[i].At)
	}
	if d.category {
		return
	}

	var marks []mark
	if d.time {
		marks = xs.times(across, d.dates)
	} else {
		marks = xs.numbers(across)
	}
	for _, m := range marks {
		p.XTicks = append(p.XTicks, Tick{At: p.across(*xs, m.value), Text: m.text})
	}
}

func (p *Panel) across(s scale, v float64) float64 { return tenth(p.X + s.at(v)*p.Width) }
func (p *Panel) up(s scale, v float64) float64     { return tenth(p.Y + (1-s.at(v))*p.Height) }

// tenth rounds to a tenth of a pixel.
func tenth(v float64) float64 { return math.Round(v*10) / 10 }

// marks adds the lines and points of the series.
func (p *Panel) marks(d data, kind Kind, xs, ys scale, names []string) {
	for i, name := range names {
		var of []point
		for _, q := range d.points {
			if q.series == name {
				of = append(of, q)
			}
		}
		if kind != Scatter {
			slices.SortStableFunc(of, func(a, b point) int { return cmp.Compare(a.x, b.x) })
			p.line(of, xs, ys, i, name)
		}
		if kind == Scatter || len(of) <= 60 {
			for _, q := range of {
				p.Dots = append(p.Dots, Mark{X: p.across(xs, q.x), Y: p.up(ys, q.y), Series: i, Title: q.title})
			}
		}
	}
}

func (p *Panel) line(of []point, xs, ys scale, series int, name string) {
	var path strings.Builder
	for i, q := range of {
		verb := "L"
		if i == 0 {
			verb = "M"
		}
		fmt.Fprintf(&path, "%s%g %g", verb, p.across(xs, q.x), p.up(ys, q.y))
	}
	p.Lines = append(p.Lines, Path{D: path.String(), Series: series, Title: name})
}

// bars draws a bar for each category, the names of which stand beside them.
func (c *Chart) bars(d data) {
	names := c.series(&d)
	points := c.categories(d.points)
	c.Width = width
	p := Panel{X: labels, Y: top, Width: width - labels - right, Height: barTall * float64(max(len(points), 1)),
		XLabel: c.Y, YLabel: c.X}
	c.Height = top + p.Height + bottom

	values := make([]float64, len(points))
	for i, q := range points {
		values[i] = q.y
	}
	s := span(values, true)
	for _, m := range s.numbers(6) {
		p.XTicks = append(p.XTicks, Tick{At: m.value, Text: m.text})
	}
	for i := range p.XTicks {
		p.XTicks[i].At = p.across(s, p.XTicks[i].At)
	}

	p.Zero = p.across(s, 0)
	for i, q := range points {
		y, end := tenth(p.Y+float64(i)*barTall), p.across(s, q.y)
		p.YTicks = append(p.YTicks, Tick{At: y + barTall/2, Text: cut(q.label, 26)})
		p.Bars = append(p.Bars, Mark{X: min(end, p.Zero), Y: y + 3, Width: max(math.Abs(end-p.Zero), 1),
			Height: barTall - 6, Series: slices.Index(names, q.series), Title: q.title})
	}
	c.Panels = []Panel{p}
}

// categories adds up the rows of each category and series, and keeps the largest.
func (c *Chart) categories(points []point) []point {
	var all []point
	at, added := map[[2]string]int{}, false
	for _, p := range points {
		key := [2]string{p.label, p.series}
		i, ok := at[key]
		if !ok {
			at[key] = len(all)
			all = append(all, p)
			continue
		}
		sum := all[i].y + p.y
		if math.IsInf(sum, 0) {
			sum = math.Copysign(math.MaxFloat64, sum)
		}
		all[i].y, added = sum, true
		all[i].title = strings.TrimPrefix(p.series+", "+p.label+": "+exact(sum), ", ")
	}

	if added {
		c.note("Rows with the same %s are added up.", strings.TrimSuffix(c.X+" and "+c.By, " and "))
	}
	if len(all) <= maxBars {
		return all
	}
	c.note("The %d largest of %d bars.", maxBars, len(all))
	slices.SortStableFunc(all, func(a, b point) int { return cmp.Compare(math.Abs(b.y), math.Abs(a.y)) })
	return all[:maxBars]
}

// multiples draws a panel for each value of By, all over the same scales.
func (c *Chart) multiples(d data) {
	names, dropped := mostFrequent(d.points, maxPanels, func(p point) string { return p.series })
	if dropped > 0 {
		d.points = slices.DeleteFunc(d.points, func(p point) bool { return !slices.Contains(names, p.series) })
		c.note("%d of %d panels.", len(names), len(names)+dropped)
	}
	places := c.places(&d)
	xs, ys := axes(d, d.category)
	columns := min(3, max(len(names), 1))
	c.Width = float64(columns)*(panelWide+left*0.3) + left
	c.Height = float64((max(len(names), 1)+columns-1)/columns)*(panelTall+panelSpace) + top

	for i, name := range names {
		p := Panel{Title: cut(name, 34), X: left + float64(i%columns)*(panelWide+left*0.3),
			Y: top + 16 + float64(i/columns)*(panelTall+panelSpace), Width: panelWide, Height: panelTall}
		same := ys
		p.axes(d, &xs, &same, 3, 3)
		if i%columns > 0 {
			for t := range p.YTicks {
				p.YTicks[t].Text = ""
			}
		}

		own := data{}
		for _, q := range d.points {
			if q.series == name {
				own.points = append(own.points, q)
			}
		}
		if d.category {
			p.columns(own.points, places, same)
		} else {
			p.marks(own, Line, xs, same, []string{name})
		}
		c.Panels = append(c.Panels, p)
	}
}

// places returns the places of categories, which all panels share.
func (c *Chart) places(d *data) []string {
	if !d.category {
		return nil
	}
	names, dropped := mostFrequent(d.points, maxBars, func(p point) string { return p.label })
	if dropped > 0 {
		d.points = slices.DeleteFunc(d.points, func(p point) bool { return !slices.Contains(names, p.label) })
		c.note("%d of %d values of %s.", len(names), len(names)+dropped, c.X)
	}
	return names
}

// columns adds upright bars to a panel.
func (p *Panel) columns(points []point, places []string, s scale) {
	wide := p.Width / float64(max(len(places), 1))
	p.Zero = p.up(s, 0)
	for i, name := range places {
		if len(places) <= 6 {
			p.XTicks = append(p.XTicks, Tick{At: tenth(p.X + (float64(i)+0.5)*wide), Text: cut(name, int(wide/7))})
		}
	}
	for _, q := range points {
		i, end := slices.Index(places, q.label), p.up(s, q.y)
		p.Bars = append(p.Bars, Mark{X: tenth(p.X + (float64(i)+0.1)*wide), Y: min(end, p.Zero),
			Width: tenth(0.8 * wide), Height: max(math.Abs(end-p.Zero), 1), Title: q.title})
	}
}

// cut shortens a text.
func cut(text string, most int) string {
	text = strings.Join(strings.Fields(text), " ")
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:max(most-1, 0)]) + "…"
}
