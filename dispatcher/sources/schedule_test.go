package sources

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
)

func instant(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	require.NoError(t, err)
	return at.UTC()
}

// A local time that the clocks skip fires right after the skip, one that comes twice fires the first time, and every
// other fires once.
func TestNextCronAcrossClockChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, zone, schedule, after string
		want                        []string
	}{
		{"New York, spring: 02:30 is skipped", "America/New_York", "30 2 * * *", "2024-03-09T12:00:00Z",
			[]string{"2024-03-10T07:00:00Z", "2024-03-11T06:30:00Z"}},
		{"New York, autumn: 01:30 comes twice", "America/New_York", "30 1 * * *", "2024-11-02T12:00:00Z",
			[]string{"2024-11-03T05:30:00Z", "2024-11-04T06:30:00Z"}},
		{"New York, autumn: once an hour", "America/New_York", "@hourly", "2024-11-03T04:30:00Z",
			[]string{"2024-11-03T05:00:00Z", "2024-11-03T07:00:00Z", "2024-11-03T08:00:00Z"}},
		{"London, spring: 01:15 is skipped", "Europe/London", "15 1 * * *", "2024-03-30T12:00:00Z",
			[]string{"2024-03-31T01:00:00Z", "2024-04-01T00:15:00Z"}},
		{"London, autumn: 01:15 comes twice", "Europe/London", "15 1 * * *", "2024-10-26T12:00:00Z",
			[]string{"2024-10-27T00:15:00Z", "2024-10-28T01:15:00Z"}},
		{"London, midnight is never in question", "Europe/London", "@daily", "2024-10-26T12:00:00Z",
			[]string{"2024-10-26T23:00:00Z", "2024-10-28T00:00:00Z"}},
		{"Lord Howe, spring: half an hour is skipped", "Australia/Lord_Howe", "15 2 * * *", "2024-10-05T00:00:00Z",
			[]string{"2024-10-05T15:30:00Z", "2024-10-06T15:15:00Z"}},
		{"Lord Howe, autumn: half an hour comes twice", "Australia/Lord_Howe", "45 1 * * *", "2024-04-06T00:00:00Z",
			[]string{"2024-04-06T14:45:00Z", "2024-04-07T15:15:00Z"}},
		{"Kathmandu: three quarters of an hour", "Asia/Kathmandu", "0 6 * * *", "2024-01-01T00:00:00Z",
			[]string{"2024-01-01T00:15:00Z", "2024-01-02T00:15:00Z"}},
		{"UTC: the 29th of February", "UTC", "0 0 29 2 *", "2024-03-01T00:00:00Z", []string{"2028-02-29T00:00:00Z"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			at := instant(t, c.after)
			for _, want := range c.want {
				var err error
				at, err = nextCron(&dag.Source{Kind: "cron", Schedule: c.schedule, Timezone: c.zone}, at)
				require.NoError(t, err)
				require.Equal(t, want, at.UTC().Format(time.RFC3339))
			}
		})
	}
}

// A daily schedule fires exactly once on each local day, whatever a zone's clocks do.
func TestNextCronFiresOncePerLocalDay(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"America/New_York", "Europe/London", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"} {
		for _, schedule := range []string{"30 2 * * *", "30 1 * * *", "0 0 * * *", "59 23 * * *"} {
			t.Run(zone+" "+schedule, func(t *testing.T) {
				t.Parallel()
				loc, err := time.LoadLocation(zone)
				require.NoError(t, err)
				at := time.Date(2024, 1, 1, 0, 0, 0, 0, loc).Add(-time.Second)
				end := time.Date(2025, 1, 1, 0, 0, 0, 0, loc)
				days := map[string]int{}
				for {
					next, err := nextCron(&dag.Source{Kind: "cron", Schedule: schedule, Timezone: zone}, at)
					require.NoError(t, err)
					require.True(t, next.After(at))
					if at = next; !at.Before(end) {
						break
					}
					days[at.In(loc).Format(time.DateOnly)]++
				}
				require.Len(t, days, 366)
				for day, n := range days {
					require.Equal(t, 1, n, day)
				}
			})
		}
	}
}

func TestNextFire(t *testing.T) {
	t.Parallel()
	daily := dag.Source{Kind: "cron", Schedule: "@daily", Timezone: "UTC"}
	catchup := daily
	catchup.Catchup = true
	started := daily
	started.Start = "2024-02-01"
	startedAt := daily
	startedAt.Start = "2024-02-01T06:00:00+01:00"
	poll := dag.Source{Kind: "poll", Every: time.Hour}

	for name, c := range map[string]struct {
		source        dag.Source
		at, now, want string // an empty want: it never fires by the clock
	}{
		"cron: in time": {daily, "2024-01-01T00:00:00Z", "2024-01-01T00:00:01Z",
			"2024-01-02T00:00:00Z"},
		"cron: what was missed is passed over": {daily, "2024-01-01T00:00:00Z", "2024-01-05T12:00:00Z",
			"2024-01-06T00:00:00Z"},
		"cron: what was missed is caught up": {catchup, "2024-01-01T00:00:00Z", "2024-01-05T12:00:00Z",
			"2024-01-02T00:00:00Z"},
		"cron: not before its start": {started, "2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z",
			"2024-02-01T00:00:00Z"},
		"cron: not before its exact start": {startedAt, "2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z",
			"2024-02-02T00:00:00Z"},
		"poll: in time": {poll, "2024-01-01T00:00:00Z", "2024-01-01T00:00:01Z",
			"2024-01-01T01:00:00Z"},
		"poll: long ago": {poll, "2024-01-01T00:00:00Z", "2024-01-05T12:00:00Z",
			"2024-01-05T13:00:00Z"},
		"manual": {dag.Source{Kind: "manual"}, "2024-01-01T00:00:00Z",
			"2024-01-01T00:00:00Z", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			next, err := nextFire(&c.source, instant(t, c.at), instant(t, c.now), false)
			require.NoError(t, err)
			if c.want == "" {
				require.Nil(t, next)
				return
			}
			require.Equal(t, c.want, next.UTC().Format(time.RFC3339))
		})
	}
	_, err := nextCron(&dag.Source{Kind: "cron", Schedule: "0 0 30 2 *", Timezone: "UTC"},
		instant(t, "2024-01-01T00:00:00Z"))
	require.ErrorContains(t, err, "never fires")
}
