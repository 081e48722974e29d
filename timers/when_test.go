package timers

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err)
	return v
}

func inZone(t *testing.T, name string) *time.Location {
	t.Helper()
	zone, err := Zone(name)
	require.NoError(t, err)
	return zone
}

func TestInstantsAroundChangesOfTheClocks(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct{ zone, local, utc string }{
		{"America/New_York", "2027-03-14T01:59:59", "2027-03-14T06:59:59Z"},
		{"America/New_York", "2027-03-14T02:30:00", "2027-03-14T07:00:00Z"}, // skipped: the end of the gap
		{"America/New_York", "2027-03-14T03:00:00", "2027-03-14T07:00:00Z"},
		{"America/New_York", "2027-11-07T01:30:00", "2027-11-07T05:30:00Z"}, // shown twice: the first
		{"America/New_York", "2027-11-07T02:00:00", "2027-11-07T07:00:00Z"},
		{"Europe/London", "2027-03-28T01:30:00", "2027-03-28T01:00:00Z"},
		{"Europe/London", "2027-10-31T01:30:00", "2027-10-31T00:30:00Z"},
		{"Australia/Lord_Howe", "2027-10-03T02:15:00", "2027-10-02T15:30:00Z"}, // half an hour is skipped
		{"Australia/Lord_Howe", "2027-04-04T01:45:00", "2027-04-03T14:45:00Z"},
		{"Asia/Kathmandu", "2027-03-14T02:30:00", "2027-03-13T20:45:00Z"},
		{"Asia/Kathmandu", "1986-01-01T00:10:00", "1985-12-31T18:30:00Z"}, // a quarter of an hour is skipped
		{"Pacific/Apia", "2011-12-30T12:00:00", "2011-12-30T10:00:00Z"},   // a whole day is skipped
	} {
		local, err := parseLocal(tc.local)
		require.NoError(t, err)
		require.Equal(t, at(t, tc.utc), instant(local, inZone(t, tc.zone)), "%s %s", tc.zone, tc.local)
	}
}

// TestEveryDayHasOneFiring goes through years with changes in both directions: each date fires exactly once.
func TestEveryDayHasOneFiring(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"America/New_York", "Europe/London", "Australia/Lord_Howe", "Asia/Kathmandu"} {
		for _, schedule := range []string{"30 2 * * *", "15 2 * * *", "0 2 * * *", "30 1 * * *", "45 1 * * *",
			"@daily"} {
			zone := inZone(t, name)
			timer := Timer{Timezone: name, Repeat: byCron, Schedule: schedule}
			timer.anchor = time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
			require.NoError(t, timer.place(zone, at(t, "2026-06-01T00:00:00Z")))

			dates := map[string]bool{}
			for timer.local.Year() < 2029 {
				require.False(t, dates[timer.local.Format(time.DateOnly)], "%s %s: %s twice",
					name, schedule, timer.local)
				dates[timer.local.Format(time.DateOnly)] = true
				before := timer.UTC
				local, again, err := next(timer, zone, timer.UTC.Add(time.Second)) // delivered a second late
				require.NoError(t, err)
				require.True(t, again)
				timer.local, timer.UTC = local, instant(local, zone)
				require.True(t, timer.UTC.After(before))
			}
			require.Len(t, dates, 365+366, "%s %s", name, schedule)
		}
	}
}

func TestYearly(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		zone, anchor, now string
		want              []string
	}{
		{"Europe/London", "2024-02-29T09:00:00", "2024-01-01T00:00:00Z",
			[]string{"2024-02-29T09:00:00", "2025-02-28T09:00:00", "2026-02-28T09:00:00", "2027-02-28T09:00:00",
				"2028-02-29T09:00:00", "2029-02-28T09:00:00"}},
		{"Asia/Kathmandu", "1992-02-29T00:00:00", "2027-03-01T00:00:00Z",
			[]string{"2028-02-29T00:00:00", "2029-02-28T00:00:00"}},
		{"America/New_York", "1990-03-14T02:30:00", "2027-01-01T00:00:00Z",
			[]string{"2027-03-14T02:30:00", "2028-03-14T02:30:00"}},
		{"Australia/Lord_Howe", "1990-04-04T01:45:00", "2027-04-03T14:45:01Z", []string{"2028-04-04T01:45:00"}},
		{"UTC", "2096-02-29T00:00:00", "2099-01-01T00:00:00Z",
			[]string{"2099-02-28T00:00:00", "2100-02-28T00:00:00", "2101-02-28T00:00:00"}},
	} {
		zone := inZone(t, tc.zone)
		timer := Timer{Timezone: tc.zone, Repeat: yearly}
		require.NoError(t, timer.schedule(tc.anchor, at(t, tc.now)))

		for i, want := range tc.want {
			require.Equal(t, want, timer.local.Format(localLayout), "%s %s", tc.zone, tc.anchor)
			local, again, err := next(timer, zone, instant(timer.local, zone))
			require.NoError(t, err)
			require.True(t, again, i)
			timer.local = local
		}
	}
}

func TestJumpsOfTheClock(t *testing.T) {
	t.Parallel()
	zone := inZone(t, "Europe/London")
	for _, timer := range []Timer{{Repeat: yearly}, {Repeat: byCron, Schedule: "0 9 * * *"}} {
		timer.Timezone = "Europe/London"
		require.NoError(t, timer.schedule("2027-05-01T09:00:00", at(t, "2027-01-01T00:00:00Z")))
		require.Equal(t, at(t, "2027-05-01T08:00:00Z"), timer.UTC)
		// Years late: what was missed is one firing, and the next is in the future.
		late := at(t, "2030-05-01T08:00:00Z")
		local, _, err := next(timer, zone, late)
		require.NoError(t, err)
		require.True(t, instant(local, zone).After(late), timer.Repeat)
		require.True(t, instant(local, zone).Before(late.AddDate(1, 0, 1)), timer.Repeat)

		// A clock that was put back does not bring an occurrence again.
		local, _, err = next(timer, zone, at(t, "2027-04-01T00:00:00Z"))
		require.NoError(t, err)
		require.True(t, instant(local, zone).After(timer.UTC), timer.Repeat)
	}
	_, again, err := next(Timer{Repeat: never}, zone, at(t, "2027-01-01T00:00:00Z"))
	require.NoError(t, err)
	require.False(t, again)
}

func TestInvalidTimers(t *testing.T) {
	t.Parallel()
	now := at(t, "2027-01-01T00:00:00Z")

	for name, n := range map[string]NewTimer{
		"no zone":             {Local: "2027-01-01T09:00"},
		"Local":               {Local: "2027-01-01T09:00", Timezone: "Local"},
		"a zone of nowhere":   {Local: "2027-01-01T09:00", Timezone: "Europe/Atlantis"},
		"a path":              {Local: "2027-01-01T09:00", Timezone: "../../etc/passwd"},
		"no time":             {Timezone: "UTC"},
		"an instant":          {Local: "2027-01-01T09:00:00Z", Timezone: "UTC"},
		"no day":              {Local: "2027-02-29T09:00:00", Timezone: "UTC"},
		"schedule alone":      {Local: "2027-01-01T09:00", Timezone: "UTC", Schedule: "@daily"},
		"cron alone":          {Timezone: "UTC", Repeat: "cron"},
		"no schedule":         {Timezone: "UTC", Repeat: "cron", Schedule: "often"},
		"a schedule's zone":   {Timezone: "UTC", Repeat: "cron", Schedule: "TZ=Asia/Tokyo 0 9 * * *"},
		"an interval":         {Timezone: "UTC", Repeat: "cron", Schedule: "@every 5s"},
		"a day that is never": {Timezone: "UTC", Repeat: "cron", Schedule: "0 0 30 2 *"},
	} {
		_, err := n.timer(now)
		require.Error(t, err, name)
	}
}

func TestAChangeOfZoneAddsNoOccurrence(t *testing.T) {
	t.Parallel()
	timer := Timer{ID: uuid.New(), Timezone: "Pacific/Auckland", Repeat: yearly, Status: "PENDING"}
	require.NoError(t, timer.schedule("2027-03-01T09:00:00", at(t, "2027-01-01T00:00:00Z")))
	name, zone := occurrence(timer), "America/Los_Angeles"
	moved, err := timer.with(TimerChange{Timezone: &zone}, at(t, "2027-02-28T21:00:00Z"))
	require.NoError(t, err)
	require.Equal(t, name, occurrence(moved))
	require.Equal(t, timer.Local, moved.Local)
	require.Equal(t, 21*time.Hour, moved.UTC.Sub(timer.UTC))
}
