package chart

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
)

func columns(list ...string) (all []Column) {
	for _, c := range list {
		name, kind, _ := strings.Cut(c, " ")
		all = append(all, Column{name, kind})
	}
	return all
}

func TestTheTypesChooseTheChart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		columns []Column
		asked   Spec
		want    Spec
	}{
		{columns("day DATE", "n BIGINT"), Spec{}, Spec{Line, "day", "n", ""}},
		{columns("n BIGINT", "at TIMESTAMP WITH TIME ZONE", "who VARCHAR"), Spec{}, Spec{Line, "at", "n", "who"}},
		{columns("who VARCHAR", "n DECIMAL(18,2)"), Spec{}, Spec{Bar, "who", "n", ""}},
		{columns("ok BOOLEAN", "n HUGEINT"), Spec{}, Spec{Bar, "ok", "n", ""}},
		{columns("a DOUBLE", "b FLOAT"), Spec{}, Spec{Scatter, "a", "b", ""}},
		{columns("day DATE", "a DOUBLE", "b FLOAT"), Spec{Kind: Scatter}, Spec{Scatter, "a", "b", ""}},
		{columns("day DATE", "n BIGINT", "m BIGINT"), Spec{Kind: Bar, Y: "m"}, Spec{Bar, "day", "m", ""}},
		{columns("day DATE", "n BIGINT", "who VARCHAR"), Spec{Kind: Multiples}, Spec{Multiples, "day", "n", "who"}},
	} {
		got, err := Choose(test.columns, test.asked)
		require.NoError(t, err)
		require.Equal(t, test.want, got)
	}
	for want, test := range map[string]struct {
		columns []Column
		asked   Spec
	}{
		"nothing to draw":     {columns("n BIGINT"), Spec{}},
		"needs a column of n": {columns("a VARCHAR", "b INTEGER[]"), Spec{}},
		"no column \"z\"":     {columns("a VARCHAR", "n BIGINT"), Spec{X: "z"}},
		"no kind of chart":    {columns("a VARCHAR", "n BIGINT"), Spec{Kind: "pie"}},
		"has no numbers":      {columns("a VARCHAR", "n BIGINT"), Spec{X: "n", Y: "a"}},
		"no times":            {columns("a VARCHAR", "n BIGINT"), Spec{Kind: Line, X: "a"}},
		"which panel":         {columns("a DATE", "n BIGINT"), Spec{Kind: Multiples}},
	} {
		_, err := Choose(test.columns, test.asked)
		require.True(t, fault.Is(err, fault.Invalid), want)
		require.Contains(t, fault.Hinted(err).Error(), want)
	}
}

// requireDrawn checks that every number is finite, and every mark inside of its panel, and that inside of the drawing.
func requireDrawn(t *testing.T, c Chart, what string) {
	t.Helper()
	text, err := json.Marshal(c) // which refuses NaN and infinities
	require.NoError(t, err, what)
	require.NotContains(t, string(text), "NaN", what)
	require.NotContains(t, c.Title+c.Description, "\x00", what)
	for _, p := range c.Panels {
		require.LessOrEqual(t, p.X+p.Width, c.Width, what)
		require.LessOrEqual(t, p.Y+p.Height, c.Height, what)
		require.LessOrEqual(t, len(p.XTicks)+len(p.YTicks), 70, what)
		for _, m := range append(p.Bars, p.Dots...) {
			require.GreaterOrEqual(t, m.X, p.X-1, what)
			require.LessOrEqual(t, m.X+m.Width, p.X+p.Width+1.1, what)
			require.GreaterOrEqual(t, m.Y, p.Y-1, what)
			require.LessOrEqual(t, m.Y+m.Height, p.Y+p.Height+1.1, what)
		}
		for _, l := range p.Lines {
			require.NotRegexp(t, `Inf|NaN`, l.D, what)
		}
	}
}

func TestHostileValues(t *testing.T) {
	t.Parallel()
	values := map[string][]any{
		"none": {}, "one": {1.0}, "equal": {5.0, 5.0, 5.0}, "zeros": {0.0, 0.0}, "negative": {-3.0, -1.5},
		"both signs": {-1e9, 3.0}, "huge": {math.MaxFloat64, -math.MaxFloat64}, "tiny": {5e-324, 0.0, 1e-320},
		"close": {1e15, 1e15 + 1}, "equal and huge": {1e308, 1e308}, "words": {"NaN", "Infinity", "-Infinity", 1.0},
		"beyond": {json.Number("1e400"), 2.0}, "nulls": {nil, nil}, "bools": {true, 1.0},
		"lists": {json.RawMessage("[1]")},
		"hugeints": {"170141183460469231731687303715884105727",
			json.Number("-170141183460469231731687303715884105728")},
		"decimals": {"0.0000001", "0.0000002", "1.10"}, "not numbers": {"abc", ""}, "NaN itself": {math.NaN(),
			math.Inf(1)},
	}
	for name, list := range values {
		for _, kind := range Kinds {
			var rows [][]any
			for i, v := range list {
				rows = append(rows, []any{v, v, fmt.Sprint("c", i), "2026-01-0" + fmt.Sprint(i+1)})
			}
			cols := columns("x DOUBLE", "y DOUBLE", "who VARCHAR", "day DATE")
			for _, x := range []string{"x", "day", "who"} {
				spec, err := Choose(cols, Spec{Kind: kind, X: x, Y: "y"})
				if err != nil {
					require.Equal(t, "who", x)
					continue
				}
				requireDrawn(t, Draw(cols, rows, spec), fmt.Sprint(name, " ", kind, " ", x))
			}
		}
	}

	c := Draw(columns("who VARCHAR", "n DOUBLE"), [][]any{{"a", "NaN"}, {"b", 2.0}}, Spec{Bar, "who", "n", ""})
	require.Equal(t, []string{"1 of 2 rows have no value that can be drawn."}, c.Notes)
	require.Len(t, c.Panels[0].Bars, 1)
}

func TestManyCategoriesAreCut(t *testing.T) {
	t.Parallel()
	var rows [][]any
	for i := range 500 {
		rows = append(rows, []any{fmt.Sprint("category ", i), float64(i - 100), fmt.Sprint("by ", i%40), "2026-01-01"})
	}
	cols := columns("who VARCHAR", "n DOUBLE", "by VARCHAR", "day DATE")
	c := Draw(cols, rows, Spec{Bar, "who", "n", ""})
	requireDrawn(t, c, "bars")
	require.Len(t, c.Panels[0].Bars, 25)
	require.Equal(t, "category 499: 399", c.Panels[0].Bars[0].Title)
	require.Equal(t, []string{"The 25 largest of 500 bars."}, c.Notes)

	c = Draw(cols, rows, Spec{Line, "day", "n", "by"})
	require.Len(t, c.Legend, 6)
	require.Equal(t, []string{"The 6 largest of 40 series of by; a WHERE shows others."}, c.Notes)
	c = Draw(cols, rows, Spec{Multiples, "who", "n", "by"})
	requireDrawn(t, c, "multiples")
	require.Len(t, c.Panels, 12)
	require.Equal(t, []string{"12 of 40 panels.", "25 of 156 values of who."}, c.Notes)
	c = Draw(cols, append(rows, rows...), Spec{Bar, "day", "n", ""})
	require.Equal(t, []string{"Rows with the same day are added up."}, c.Notes)
	require.Equal(t, "2026-01-01: 149500", c.Panels[0].Bars[0].Title)
}

func TestAxes(t *testing.T) {
	t.Parallel()
	texts := func(ticks []Tick) (all []string) {
		for _, tick := range ticks {
			all = append(all, tick.Text)
		}
		return all
	}
	draw := func(kind string, x ...any) Panel {
		var rows [][]any
		for i, v := range x {
			rows = append(rows, []any{v, float64(i)})
		}
		return Draw(columns("x "+kind, "y DOUBLE"), rows, Spec{Line, "x", "y", ""}).Panels[0]
	}
	require.Equal(t, []string{"1 Jan 2026", "2 Jan 2026", "3 Jan 2026"}, texts(draw("DATE", "2026-01-01",
		"2026-01-03").XTicks))
	require.Equal(t, []string{"Jan 2026", "Apr 2026", "Jul 2026", "Oct 2026"},
		texts(draw("DATE", "2026-01-01", "2026-12-30").XTicks))
	zoned := draw("TIMESTAMP WITH TIME ZONE", "2026-01-01 12:00:00+02", "2026-01-01 13:00:00+01",
		"2026-01-01 10:10:00.5+00")
	require.Equal(t, "x (UTC)", zoned.XLabel)
	require.Equal(t, zoned.Dots[0].X, zoned.X, "10:00 UTC is the first")
	require.Equal(t, zoned.Dots[2].X, zoned.X+zoned.Width, "12:00 UTC the last")
	require.Equal(t, []string{"1500", "1600", "1700", "1800", "1900"}, texts(draw("DATE", "1500-01-01",
		"1900-01-02").XTicks))
	require.Empty(t, draw("TIMESTAMP", "infinity", "0044-03-15 (BC)").Dots)
	require.Equal(t, []string{"0", "20k", "40k", "60k", "80k", "100k"}, texts(draw("DOUBLE", 0.0, 100_000.0).XTicks))
	require.Equal(t, []string{"0.00", "0.05", "0.10", "0.15", "0.20", "0.25", "0.30"},
		strings.Split(strings.Replace(strings.Join(texts(draw("DOUBLE", 0.0, 0.3).XTicks), ","), "0,", "0.00,", 1),
			","))
}
