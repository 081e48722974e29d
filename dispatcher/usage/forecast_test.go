package usage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry/footprint"
)

func moment(t *testing.T, text string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err)
	return v.UTC()
}

func TestWhatIsDueNext(t *testing.T) {
	t.Parallel()
	berlin := footprint.Due{Name: "d", By: dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day, Timezone: "Europe/Berlin"},
		Within: 3 * time.Hour}
	made := func(pairs ...string) (list []footprint.Made) {
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, footprint.Made{Partition: pairs[i], At: moment(t, pairs[i+1])})
		}
		return list
	}

	// The clocks go back in the night of 25 October 2026: the day has 25 hours, and ends at 23:00 UTC.
	n, ok := dueNext(berlin, made("2026-10-24", "2026-10-24T23:00:00Z", "2026-10-23", "2026-10-22T23:00:00Z"),
		moment(t, "2026-10-25T12:00:00Z"))
	require.True(t, ok)
	require.Equal(t, "2026-10-25", n.Partition)
	require.Equal(t, moment(t, "2026-10-26T02:00:00Z"), n.At)
	require.Equal(t, "2026-10-26 03:00 CET", n.Local)
	require.Equal(t, moment(t, "2026-10-26T00:00:00Z"), *n.Estimate, "an hour after its end, as lately")
	require.False(t, n.LikelyLate)

	// They go forward on 29 March: the day has 23 hours, and ends at 22:00 UTC.
	n, ok = dueNext(berlin, made("2026-03-28", "2026-03-29T05:00:00Z"), moment(t, "2026-03-29T12:00:00Z"))
	require.True(t, ok)
	require.Equal(t, "2026-03-29", n.Partition)
	require.Equal(t, moment(t, "2026-03-30T01:00:00Z"), n.At)
	require.Equal(t, moment(t, "2026-03-30T04:00:00Z"), *n.Estimate)
	require.True(t, n.LikelyLate)

	// What is there already is not due any more, and what nothing is known of has no estimate.
	n, ok = dueNext(berlin, made("2026-06-02", "2026-06-02T22:30:00Z"), moment(t, "2026-06-03T00:00:00Z"))
	require.True(t, ok)
	require.Equal(t, "2026-06-03", n.Partition)
	n, ok = dueNext(berlin, nil, moment(t, "2026-06-03T00:00:00Z"))
	require.True(t, ok)
	require.Equal(t, "2026-06-02", n.Partition)
	require.Nil(t, n.Estimate)

	// Without partitions, it comes as often as lately. What is late already is no forecast.
	updated := moment(t, "2026-06-03T00:00:00Z")
	whole := footprint.Due{Name: "w", Within: 24 * time.Hour, Updated: &updated}
	history := made("all", "2026-06-03T00:00:00Z", "all", "2026-06-01T00:00:00Z")
	n, ok = dueNext(whole, history, moment(t, "2026-06-03T10:00:00Z"))
	require.True(t, ok)
	require.Equal(t, moment(t, "2026-06-04T00:00:00Z"), n.At)
	require.Equal(t, moment(t, "2026-06-05T00:00:00Z"), *n.Estimate)
	require.True(t, n.LikelyLate)
	_, ok = dueNext(whole, history, moment(t, "2026-06-04T10:00:00Z"))
	require.False(t, ok)
}

func TestWhenASourceFiresIsToldInItsZone(t *testing.T) {
	t.Parallel()
	cron := footprint.Clock{DAG: "a", Job: "b",
		Source: dag.Source{Kind: "cron", Schedule: "30 2 * * *", Timezone: "America/New_York"}}
	require.Equal(t, "2026-03-08 03:00 EDT", fires(cron, moment(t, "2026-03-08T07:00:00Z")).Local)
	require.Equal(t, "2026-11-01 01:30 EST", fires(cron, moment(t, "2026-11-01T06:30:00Z")).Local)
	poll := footprint.Clock{Source: dag.Source{Kind: "poll", Every: time.Minute}}
	require.Equal(t, "every 1m0s", fires(poll, moment(t, "2026-03-08T07:00:00Z")).Schedule)
}

func TestQuantilesAreRightToATenth(t *testing.T) {
	t.Parallel()
	var h histogram
	for ms := 1; ms <= 10_000; ms++ {
		h.add(time.Duration(ms) * time.Millisecond)
	}
	require.InEpsilon(t, 5.0, h.quantile(0.5), 0.1)
	require.InEpsilon(t, 9.5, h.quantile(0.95), 0.1)
	require.Zero(t, histogram(nil).quantile(0.5))
	require.Equal(t, "{}", histogram(nil).text())
}
