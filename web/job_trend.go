package web

import (
	"context"
	"slices"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/usage"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/web/chart"
)

// trendDays is how many days the trend of a job covers.
const trendDays = 30

// jobTrend is how a job did lately: a table of its days, and a chart of how long its attempts took.
type jobTrend struct {
	usage.Trend
	Chart *chart.Chart // nil: there is but one day
}

// Latest returns the days, the latest first.
func (t *jobTrend) Latest() []usage.DayOf {
	days := slices.Clone(t.Days)
	slices.Reverse(days)
	return days
}

// trend returns how a job did over some days; nil: no attempt ended in them, or the version that serves lacks the job.
func (s *Site) trend(
	ctx context.Context, caller authz.Caller, dagName, job string, now time.Time,
) (*jobTrend, error) {
	t, err := s.Dispatcher.Usage.Trend(ctx, caller, dagName, job, trendDays, now)
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil || len(t.Days) == 0 {
		return nil, err
	}
	return &jobTrend{t, durationChart(t.Days)}, nil
}

// durationChart draws how long attempts took by day: half of them, and nearly all. It returns nil for one day.
func durationChart(days []usage.DayOf) *chart.Chart {
	if len(days) < 2 {
		return nil
	}
	columns := []chart.Column{{Name: "day", Type: "DATE"}, {Name: "seconds", Type: "DOUBLE"},
		{Name: "share", Type: "VARCHAR"}}
	var rows [][]any
	for _, d := range days {
		day := d.Day.Format(time.DateOnly)
		rows = append(rows, []any{day, d.P50, "half of the attempts"}, []any{day, d.P95, "95 % of them"})
	}
	c := chart.Draw(columns, rows, chart.Spec{Kind: chart.Line, X: "day", Y: "seconds", By: "share"})
	c.Title = "How long attempts took at most, in seconds, by day"
	return &c
}
