package web

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/usage"
	"github.com/dagctl/dagctl/internal/clock"
)

type costsView struct {
	usage.Costs
	Question     usage.Question
	Since, Until string // as the form has them
	Rows         []costsRow
	Stack        *stack
	Command      string
}

// costsRow is a row with its curve. Rank is its place in the stack, from 1; 0: it is among the others there.
type costsRow struct {
	usage.Row
	Path  string
	Rank  int
	Spark *spark
}

func (s *Site) costs(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	q := r.URL.Query()
	v := costsView{Since: q.Get("since"), Until: q.Get("until"), Command: "dagctl costs"}
	v.Question = usage.Question{By: usage.By(q.Get("by")), Step: usage.Step(q.Get("step")), DAG: q.Get("dag")}
	var err error
	if v.Question.Since, err = usage.ParseTime(v.Since); err != nil {
		return err
	}
	if v.Question.Until, err = usage.ParseTime(v.Until); err != nil {
		return err
	}
	if v.Costs, err = s.Dispatcher.Usage.Costs(r.Context(), caller, v.Question, clock.Now()); err != nil {
		return err
	}
	for _, flag := range []string{"by", "dag", "since", "until", "step"} {
		if value := q.Get(flag); value != "" {
			v.Command += " --" + flag + " " + value
		}
	}

	v.Question.By, v.Question.Step = v.Costs.By, v.Costs.Step
	if v.Since == "" {
		v.Since = v.Costs.Since.Format(time.DateOnly)
	}
	for i, row := range v.Costs.Rows {
		c := costsRow{Row: row, Path: costsPath(row), Spark: tinySpark(row.Name(), row.Trend, amountFormat(v.Currency))}
		if i < stacked {
			c.Rank = i + 1
		}
		v.Rows = append(v.Rows, c)
	}
	v.Stack = stackOf(v.Costs)
	return render(w, http.StatusOK, "costs.html", layout{Title: "Costs", Tab: "costs", Caller: caller, View: v})
}

// costsPath returns the page of what a row is about; empty if there is none.
func costsPath(r usage.Row) string {
	switch {
	case r.Dataset != "":
		return datasetPath(r.Dataset)
	case r.DAG != "":
		return "/dags/" + url.PathEscape(r.DAG)
	}
	return ""
}

// amountFormat formats money or, without a currency, seconds.
func amountFormat(currency string) func(float64) string {
	return func(v float64) string {
		if currency == "" {
			return rough(time.Duration(v * float64(time.Second)))
		}
		return Money(v, currency)
	}
}

// Money formats an amount of money: small ones with more digits.
func Money(v float64, currency string) string {
	switch {
	case v == 0:
		return "0 " + currency
	case v < 0.01:
		return "< 0.01 " + currency
	case v < 100:
		return fmt.Sprintf("%.2f %s", v, currency)
	}
	return number(int64(v+0.5)) + " " + currency
}

// tinySpark is a curve that fits into a line of a table; nil where there is nothing to see.
func tinySpark(name string, values []float64, format func(float64) string) *spark {
	most := 0.0
	for _, v := range values {
		most = max(most, v)
	}
	if len(values) < 2 || most == 0 {
		return nil
	}
	c := curve(name, values, format)
	return &c
}

// stack is a trend as bars, each of which is divided among what cost most.
type stack struct {
	Bars        []column
	Most        string // the value of the highest line
	First, Last string // the steps at the ends
	Width       int
	Height      int
	Says        string
}

// column is one step.
type column struct {
	At       string
	Value    string
	X, Width string
	Parts    []columnPart
}

// columnPart is what one row has of a step; Rank 0 is all others.
type columnPart struct {
	Rank      int
	Y, Height string
	Says      string
}

// stacked is how many rows have a place of their own in the stack.
const stacked, stackWidth, stackHeight = 6, 960, 160

// stackOf divides the steps among the rows that cost most; nil where there is nothing to see.
func stackOf(c usage.Costs) *stack {
	value := func(p usage.Total) float64 {
		if p.Money != nil {
			return *p.Money
		}
		return p.Seconds
	}
	most := 0.0
	for _, p := range c.Points {
		most = max(most, value(p))
	}
	if most == 0 {
		return nil
	}

	format, layout := amountFormat(c.Currency), time.DateOnly
	if c.Step == usage.Hour {
		layout = "2006-01-02 15:04"
	}
	step := float64(stackWidth) / float64(len(c.Points))
	s := &stack{Most: format(most), Width: stackWidth, Height: stackHeight,
		First: c.Points[0].At.Format(layout), Last: c.Points[len(c.Points)-1].At.Format(layout)}
	for i, p := range c.Points {
		b := column{At: p.At.Format(layout), Value: format(value(p)), X: fmt.Sprintf("%.1f", float64(i)*step+step*0.1),
			Width: fmt.Sprintf("%.1f", min(step*0.8, 60))}
		y, rest := float64(stackHeight), value(p)
		add := func(rank int, name string, v float64) {
			if h := v / most * (stackHeight - 4); h > 0 {
				y -= h
				b.Parts = append(b.Parts, columnPart{rank, fmt.Sprintf("%.1f", y), fmt.Sprintf("%.1f", h),
					fmt.Sprintf("%s, %s: %s", b.At, name, format(v))})
			}
			rest -= v
		}

		for rank, row := range c.Rows[:min(len(c.Rows), stacked)] {
			add(rank+1, rowName(row), row.Trend[i])
		}
		if rest > most/1e6 {
			add(0, "others", rest)
		}
		s.Bars = append(s.Bars, b)
	}
	says := "Costs"
	if c.Currency == "" {
		says = "Time"
	}
	s.Says = fmt.Sprintf("%s by %s, from %s to %s, at most %s", says, c.Step, s.First, s.Last, s.Most)
	return s
}

// rowName names a row, also one of what has no name.
func rowName(r usage.Row) string {
	if name := r.Name(); name != "" {
		return name
	}
	return "no name that you may see"
}
