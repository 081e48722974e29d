package why_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/operators"
)

// A source that is asked for its partitions says of each when it is asked for it, and who else may ask.
func TestWhyNotOfPartitionsThatASourceIsAskedFor(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	day := func(ago int) string { return now.AddDate(0, 0, -ago).Format(time.DateOnly) }
	w := dispatchertest.NewWorld(t)
	w.Probe.On("days", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		if task.Partition.Key == day(4) {
			return operators.Result{Unchanged: true}, nil
		}
		return operators.Result{}, w.Probe.Write(ctx, task, task.Partition.Key)
	})
	yaml := `
name: late
jobs:
  - name: days
    operator: hook
    source: { kind: cron, schedule: "30 0 * * *", first_partition: FIRST, lookback: 2 }
    partition_by: { time: day }
publish: { days: { from: { job: days } } }
`
	w.Serve(dispatchertest.Edit(yaml, "FIRST", day(5)))
	w.Settle()

	last := func(key string) why.Reason {
		reasons := w.WhyNot("days", key).Reasons
		require.NotEmpty(t, reasons)
		return reasons[len(reasons)-1]
	}
	again := func(key string) string {
		return "; ask for it: dagctl backfill late/days --from " + key + " --to " + key + " --existing all"
	}
	about := func(key, text string) string { return "late/days " + key + ": the source " + text }
	require.Equal(t, about(day(6), "is asked for partitions from "+day(5)+" on: an earlier `first_partition` lets it "+
		"be asked for this one"), last(day(6)).Text)
	require.Equal(t, about(day(5), "was asked for it, and is not asked again, as its `lookback` of 2 does not go back "+
		"so far")+again(day(5)), last(day(5)).Text)
	require.Regexp(t, about(day(4), "was asked for it at [^ ]*Z, and published nothing")+again(day(4)),
		last(day(4)).Text)
	require.Regexp(t, about(day(1), "is asked for it again at [^ ]*Z, as its `lookback` is 2"), last(day(1)).Text)
	require.Equal(t, about(day(0), "is asked for a partition once it has ended, this one at "+day(-1)+"T00:00:00Z"),
		last(day(0)).Text)
	require.Equal(t, why.Code("published"), w.WhyNot("days", day(1)).Reasons[0].Code)

	// Without a lookback it is asked once.
	w.Serve(dispatchertest.Edit(yaml, "FIRST", day(5), ", lookback: 2", ""))
	require.Equal(t, about(day(1), "was asked for it, and is not asked again")+again(day(1)), last(day(1)).Text)
	w.Pause("late", "days")
	reasons := w.WhyNot("days", day(0)).Reasons
	require.Len(t, reasons, 2)
	require.Equal(t, why.WhyPaused, reasons[0].Code)
}
