package web

import (
	"net/http"
	"strings"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/web/chart"
)

// resultView is an answer as a grid, and as a chart.
type resultView struct {
	Answer  query.Answer
	Columns []resultColumn
	Rows    [][]resultCell
	Took    string

	HiddenColumns int // how many the page does not show; below 1: it shows all

	Asked   chart.Spec // as the form has it: empty fields are chosen by the page
	None    bool       // no chart is wanted
	Kinds   []choice
	X, Y, B []choice // columns to choose from
	Chart   *chart.Chart
	NoChart string // why there is none, though one was asked for
}

type resultColumn struct {
	Name, Type string
	Number     bool
}

type resultCell struct {
	Text         string
	Null, Number bool
}

// noChart is the kind of chart that is none.
const noChart = "none"

// chartAsked returns what a form says about the chart.
func chartAsked(r *http.Request) chart.Spec {
	return chart.Spec{Kind: chart.Kind(r.PostFormValue("chart")), X: r.PostFormValue("x"), Y: r.PostFormValue("y"),
		By: r.PostFormValue("by")}
}

func viewResult(a query.Answer, asked chart.Spec) *resultView {
	v := &resultView{Answer: a, Took: rough(time.Duration(a.Duration) * time.Millisecond), Asked: asked,
		None: asked.Kind == noChart}
	if v.HiddenColumns = len(a.Columns) - shownColumns; v.HiddenColumns > 0 {
		a.Columns = a.Columns[:shownColumns]
	}
	columns := make([]chart.Column, len(a.Columns))
	for i, c := range a.Columns {
		columns[i] = chart.Column{Name: c.Name, Type: c.Type}
		v.Columns = append(v.Columns, resultColumn{c.Name, c.Type, chart.IsNumber(columns[i])})
	}
	for _, row := range a.Rows {
		cells := make([]resultCell, len(columns))
		for i, value := range row[:len(columns)] {
			cells[i] = resultCell{shorten(query.Text(value), shownText), value == nil, v.Columns[i].Number}
		}
		v.Rows = append(v.Rows, cells)
	}

	if len(a.Rows) > 0 {
		v.draw(columns)
	}
	return v
}

// draw draws the chart that was asked for, or else the one that the types suggest, if they suggest one.
func (v *resultView) draw(columns []chart.Column) {
	if !v.None {
		if spec, err := chart.Choose(columns, v.Asked); err == nil {
			drawn := chart.Draw(columns, v.Answer.Rows, spec)
			v.Chart = &drawn
		} else if v.Asked != (chart.Spec{}) {
			v.NoChart = fault.Hinted(err).Error()
		}
	}

	v.Kinds = []choice{{Value: "", Text: "by type"}, {Value: string(chart.Bar), Text: "bars"},
		{Value: string(chart.Line), Text: "line"}, {Value: string(chart.Scatter), Text: "scatter"},
		{Value: string(chart.Multiples), Text: "small multiples"}, {Value: noChart, Text: "none"}}
	for i := range v.Kinds {
		v.Kinds[i].Chosen = v.Kinds[i].Value == string(v.Asked.Kind)
	}
	v.X, v.Y, v.B = choicesOf(columns, v.Asked.X, true), choicesOf(columns, v.Asked.Y, false),
		choicesOf(columns, v.Asked.By, true)
}

// choicesOf returns the columns to choose from, of which those without numbers may be left out.
func choicesOf(columns []chart.Column, chosen string, all bool) []choice {
	list := []choice{{Value: "", Text: "by type"}}
	for _, c := range columns {
		if all || chart.IsNumber(c) {
			list = append(list, choice{Value: c.Name, Text: c.Name, Chosen: c.Name == chosen})
		}
	}
	return list
}

// Count says how many rows there are.
func (v *resultView) Count() string {
	words := number(int64(len(v.Rows))) + " rows"
	if len(v.Rows) == 1 {
		words = "1 row"
	}
	if v.Answer.Truncated {
		words = "First " + words
	}
	return strings.TrimSpace(words)
}
