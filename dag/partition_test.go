package dag

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
)

func in(unit TimeUnit, zone string) Partitioning {
	return Partitioning{Kind: ByTime, Unit: unit, Timezone: zone}
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err)
	return at
}

func TestBounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p          Partitioning
		key        string
		start, end string
	}{
		{in(Hour, "UTC"), "2001-01-31T05", "2001-01-31T05:00:00Z", "2001-01-31T06:00:00Z"},
		{in(Day, "UTC"), "2001-01-31", "2001-01-31T00:00:00Z", "2001-02-01T00:00:00Z"},
		{in(Day, "UTC"), "2000-02-29", "2000-02-29T00:00:00Z", "2000-03-01T00:00:00Z"},
		{in(Week, "UTC"), "2001-W05", "2001-01-29T00:00:00Z", "2001-02-05T00:00:00Z"},
		{in(Week, "UTC"), "2004-W53", "2004-12-27T00:00:00Z", "2005-01-03T00:00:00Z"},
		{in(Week, "UTC"), "2009-W01", "2008-12-29T00:00:00Z", "2009-01-05T00:00:00Z"},
		{in(Month, "UTC"), "2001-12", "2001-12-01T00:00:00Z", "2002-01-01T00:00:00Z"},
		{in(Quarter, "UTC"), "2001-Q1", "2001-01-01T00:00:00Z", "2001-04-01T00:00:00Z"},
		{in(Quarter, "America/New_York"), "2001-Q4", "2001-10-01T04:00:00Z", "2002-01-01T05:00:00Z"},
		{in(Year, "UTC"), "2000", "2000-01-01T00:00:00Z", "2001-01-01T00:00:00Z"},
		{in(Year, "Asia/Kolkata"), "2001", "2000-12-31T18:30:00Z", "2001-12-31T18:30:00Z"},
		{in(Minute, "UTC"), "2001-01-31T23:59", "2001-01-31T23:59:00Z", "2001-02-01T00:00:00Z"},
		{in("15m", "Asia/Kolkata"), "2001-01-31T05:15", "2001-01-30T23:45:00Z", "2001-01-31T00:00:00Z"},
		{in("20m", "Asia/Kathmandu"), "2001-01-31T05:40", "2001-01-30T23:55:00Z", "2001-01-31T00:15:00Z"},
		{in("6h", "UTC"), "2001-01-31T18", "2001-01-31T18:00:00Z", "2001-02-01T00:00:00Z"},
		{in("12h", "Asia/Kolkata"), "2001-01-31T12", "2001-01-31T06:30:00Z", "2001-01-31T18:30:00Z"},
		// Five hours in spring, and seven in autumn.
		{in("6h", "Europe/Berlin"), "2001-03-25T00", "2001-03-24T23:00:00Z", "2001-03-25T04:00:00Z"},
		{in("6h", "Europe/Berlin"), "2001-10-28T00", "2001-10-27T22:00:00Z", "2001-10-28T05:00:00Z"},
		// The last quarter of the hour that is repeated goes on until the hour is over for good.
		{in("15m", "America/New_York"), "2001-10-28T01:30", "2001-10-28T05:30:00Z", "2001-10-28T05:45:00Z"},
		{in("15m", "America/New_York"), "2001-10-28T01:45", "2001-10-28T05:45:00Z", "2001-10-28T07:00:00Z"},
		{in("15m", "Australia/Lord_Howe"), "2001-10-28T01:45", "2001-10-27T15:15:00Z", "2001-10-27T15:30:00Z"},
		{in("15m", "Australia/Lord_Howe"), "2001-10-28T02:30", "2001-10-27T15:30:00Z", "2001-10-27T15:45:00Z"},
		// Twenty minutes of which ten are skipped.
		{in("20m", "Australia/Lord_Howe"), "2001-10-28T02:20", "2001-10-27T15:30:00Z", "2001-10-27T15:40:00Z"},
		// Half an hour back: from 01:30 on it is shown again.
		{in("15m", "Australia/Lord_Howe"), "2001-03-25T01:30", "2001-03-24T14:30:00Z", "2001-03-24T14:45:00Z"},
		{in("15m", "Australia/Lord_Howe"), "2001-03-25T01:45", "2001-03-24T14:45:00Z", "2001-03-24T15:30:00Z"},
		{in(Day, "Asia/Kolkata"), "2001-01-31", "2001-01-30T18:30:00Z", "2001-01-31T18:30:00Z"},
		// A day of 23 hours in spring, and of 25 in autumn.
		{in(Day, "Europe/Berlin"), "2001-03-25", "2001-03-24T23:00:00Z", "2001-03-25T22:00:00Z"},
		{in(Day, "Europe/Berlin"), "2001-10-28", "2001-10-27T22:00:00Z", "2001-10-28T23:00:00Z"},
		{in(Month, "Europe/Berlin"), "2001-03", "2001-02-28T23:00:00Z", "2001-03-31T22:00:00Z"},
		// The hour that is repeated is one partition of two hours.
		{in(Hour, "America/New_York"), "2001-10-28T01", "2001-10-28T05:00:00Z", "2001-10-28T07:00:00Z"},
		{in(Hour, "America/New_York"), "2001-10-28T00", "2001-10-28T04:00:00Z", "2001-10-28T05:00:00Z"},
		{in(Hour, "America/New_York"), "2001-10-28T02", "2001-10-28T07:00:00Z", "2001-10-28T08:00:00Z"},
		// The hour after the one that is skipped begins where the clocks jump to it.
		{in(Hour, "America/New_York"), "2001-04-01T01", "2001-04-01T06:00:00Z", "2001-04-01T07:00:00Z"},
		{in(Hour, "America/New_York"), "2001-04-01T03", "2001-04-01T07:00:00Z", "2001-04-01T08:00:00Z"},
		// Half an hour forward, over half of an hour.
		{in(Hour, "Australia/Lord_Howe"), "2001-10-28T02", "2001-10-27T15:30:00Z", "2001-10-27T16:00:00Z"},
		// Midnight itself is skipped: the day begins at one.
		{in(Day, "America/Sao_Paulo"), "2018-11-04", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		// Clocks go back from one minute past midnight: the evening that is shown again belongs to the new day.
		{in(Day, "America/St_Johns"), "2006-10-28", "2006-10-28T02:30:00Z", "2006-10-29T02:30:00Z"},
		{in(Day, "America/St_Johns"), "2006-10-29", "2006-10-29T02:30:00Z", "2006-10-30T03:30:00Z"},
		// A whole day is skipped at the date line.
		{in(Day, "Pacific/Apia"), "2011-12-29", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		{in(Day, "Pacific/Apia"), "2011-12-31", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
	} {
		t.Run(c.p.Timezone+" "+c.key, func(t *testing.T) {
			t.Parallel()
			start, end, err := c.p.Bounds(c.key)
			require.NoError(t, err)
			require.Equal(t, c.start, start.Format(time.RFC3339))
			require.Equal(t, c.end, end.Format(time.RFC3339))

			require.NoError(t, c.p.Valid(c.key))
			require.Equal(t, c.key, c.p.KeyAt(start))
			require.Equal(t, c.key, c.p.KeyAt(end.Add(-1)))
			require.NotEqual(t, c.key, c.p.KeyAt(end))
			require.Equal(t, c.key, c.p.LastComplete(end))
		})
	}
}

func TestInvalidKeys(t *testing.T) {
	t.Parallel()
	ranges := Partitioning{Kind: ByRange, Size: 100, Column: "id"}
	for _, c := range []struct {
		p    Partitioning
		keys []string
	}{
		{Partitioning{}, []string{"", "none", "2001-01-31"}},
		{in(Hour, "UTC"), []string{"", "2001-01-31", "2001-01-31T24", "2001-01-31T5", "2001-01-31 05"}},
		{in(Day, "UTC"), []string{"", "2001-02-29", "2001-1-31", "01-31-2001", "2001-01-31T05", "0000-01-01",
			"20010-01-01"}},
		{in(Week, "UTC"), []string{"", "2001-W53", "2001-W00", "2001-W5", "2001-05", "2001-W054"}},
		{in(Month, "UTC"), []string{"", "2001-13", "2001", "2001-1"}},
		{in(Quarter, "UTC"), []string{"", "2001-Q0", "2001-Q5", "2001-Q", "2001-Q11", "2001-q1", "2001-01", "2001",
			"0000-Q1"}},
		{in(Year, "UTC"), []string{"", "0000", "201", "20010", "2001-01", "+001"}},
		{in(Minute, "UTC"), []string{"", "2001-01-31T05", "2001-01-31T05:60", "2001-01-31T5:00",
			"2001-01-31T05:00:00"}},
		{in("15m", "UTC"), []string{"", "2001-01-31T05:10", "2001-01-31T05"}},
		{in("6h", "UTC"), []string{"", "2001-01-31T05", "2001-01-31T06:00", "2001-01-31"}},
		{in("15m", "Australia/Lord_Howe"), []string{"2001-10-28T02:00", "2001-10-28T02:15"}},
		{in("20m", "Australia/Lord_Howe"), []string{"2001-10-28T02:00"}},
		{in(Hour, "America/New_York"), []string{"2001-04-01T02"}},
		{in(Day, "Pacific/Apia"), []string{"2011-12-30"}},
		{ranges, []string{"", "0", "0-99", "50-150", "100-0", "-100-0", "00-100", "0-100-200", "0-", "a-b", "0-+100",
			"99999999999999999999-100000000000000000099"}},
		{Partitioning{Kind: ByCursor, Column: "id"}, []string{"", "5", "5-5", "7-5"}},
		{Partitioning{Kind: ByKey}, []string{"", ".", "..", "a/b", `a\b`, " a", "a ", "a\nb", "a\x00", "\xff",
			strings.Repeat("x", MaxKeyBytes+1)}},
	} {
		for _, key := range c.keys {
			err := c.p.Valid(key)
			require.Error(t, err, "%s: %q", c.p, key)
			require.True(t, fault.Is(err, fault.Invalid))
		}
	}

	require.NoError(t, Partitioning{}.Valid(WholeKey))
	require.NoError(t, ranges.Valid("100-200"))
	require.Equal(t, "100-200", ranges.RangeAt(199))
	require.Equal(t, "200-300", ranges.RangeAt(200))
	require.NoError(t, Partitioning{Kind: ByCursor, Column: "id"}.Valid("5-17"))
	for _, key := range []string{"a", "acme corp", "Zürich", "a.b", "2001-01-31", strings.Repeat("x", MaxKeyBytes)} {
		require.NoError(t, Partitioning{Kind: ByKey}.Valid(key))
	}

	require.Empty(t, ranges.KeyAt(time.Time{}))
	_, _, err := in(Day, "Mars/Olympus").Bounds("2001-01-31")
	require.True(t, fault.Is(err, fault.Invalid))
}

// TestPartitionsCoverTime checks that every instant lies in exactly one partition, and that partitions follow each
// other without gap or overlap, whatever a zone's clocks do.
func TestPartitionsCoverTime(t *testing.T) {
	t.Parallel()
	zones := []string{
		"UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "America/Sao_Paulo", "Australia/Lord_Howe",
		"Pacific/Apia", "Asia/Kathmandu", "Africa/Casablanca", "Africa/Cairo", "Asia/Gaza", "Antarctica/Troll",
		"Pacific/Kwajalein", "America/Godthab", "Asia/Manila", "Asia/Kolkata",
	}
	for _, zone := range zones {
		for _, unit := range TimeUnits {
			t.Run(fmt.Sprint(zone, " ", unit), func(t *testing.T) {
				t.Parallel()
				p := in(unit, zone)
				random := rand.New(rand.NewPCG(1, uint64(len(zone))))
				from, to := time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC).Unix(),
					time.Date(2060, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
				location, err := time.LoadLocation(zone)
				require.NoError(t, err)

				for range 60 {
					at := time.Unix(from+random.Int64N(to-from), 0).UTC()
					if _, change := at.In(location).ZoneBounds(); !change.IsZero() && random.IntN(2) == 0 {
						at = change.Add(time.Duration(random.IntN(4*3600)-2*3600) * time.Second).UTC()
					}
					key := p.KeyAt(at)
					start, end, err := p.Bounds(key)
					require.NoError(t, err, "%s", at)
					require.False(t, at.Before(start), "%s: %s begins %s", at, key, start)
					require.True(t, at.Before(end), "%s: %s ends %s", at, key, end)
					next, _, err := p.Bounds(p.KeyAt(end))
					require.NoError(t, err)
					require.Equal(t, end, next)
					require.Less(t, key, p.KeyAt(end))
					require.Equal(t, key, p.KeyAt(start))
					require.Equal(t, []string{key, p.KeyAt(end)}, p.KeysBetween(start, next.Add(1)))
				}
			})
		}
	}
}

func TestCountBetween(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		unit        TimeUnit
		first, last string
		count       int64
	}{
		{Hour, "2001-01-31T05", "2001-01-31T05", 1},
		{Hour, "0001-01-01T00", "9999-12-31T23", 3652059 * 24},
		{Day, "2001-01-29", "2001-02-01", 4},
		{Week, "2000-W51", "2001-W02", 4},
		{Month, "2000-11", "2001-02", 4},
		{Month, "2001-02", "2000-11", -2},
		{Quarter, "2000-Q3", "2001-Q2", 4},
		{Quarter, "2001-Q2", "2000-Q3", -2},
		{Year, "0001", "9999", 9999},
		{"15m", "2001-01-31T23:30", "2001-02-01T00:15", 4},
		{"8h", "2001-01-31T16", "2001-02-01T16", 4},
	} {
		count, err := in(c.unit, "UTC").CountBetween(c.first, c.last)
		require.NoError(t, err)
		require.Equal(t, c.count, count, c)
	}
}

func TestKeysBetween(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"2001-01-30", "2001-01-31", "2001-02-01"},
		in(Day, "UTC").KeysBetween(instant(t, "2001-01-29T00:00:01Z"), instant(t, "2001-02-01T00:00:01Z")))
	require.Equal(t, []string{"2011-12-29", "2011-12-31"},
		in(Day, "Pacific/Apia").KeysBetween(instant(t, "2011-12-29T10:00:00Z"), instant(t, "2011-12-31T10:00:00Z")))
	require.Empty(t, in(Day, "UTC").KeysBetween(instant(t, "2001-02-01T00:00:00Z"), instant(t, "2001-01-01T00:00:00Z")))
}

func TestKeysUpTo(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"2011-12-28", "2011-12-29", "2011-12-31"},
		in(Day, "Pacific/Apia").KeysUpTo("2001-01-01", "2011-12-31", 3))
	require.Equal(t, []string{"0001", "0002"}, in(Year, "UTC").KeysUpTo("0001", "0002", 10))
	require.Len(t, in(Year, "UTC").KeysUpTo("1001", "2001", 500), 500)
	require.Empty(t, in(Day, "UTC").KeysUpTo("2001-01-02", "2001-01-01", 3))
	require.Empty(t, in(Day, "UTC").KeysUpTo("2001-01-02", "later", 3))
	require.Empty(t, in(Day, "UTC").KeysUpTo("", "2001-01-02", 3))
}

func TestMappingKeys(t *testing.T) {
	t.Parallel()
	none, key, cursor := Partitioning{}, Partitioning{Kind: ByKey}, Partitioning{Kind: ByCursor, Column: "id"}
	ranges := Partitioning{Kind: ByRange, Size: 100, Column: "id"}
	same, latest, slice := Mapping{Kind: MapSame}, Mapping{Kind: MapLatest}, Mapping{Kind: MapSlice}
	within := Mapping{Kind: MapWithin}
	window := func(unit TimeUnit) Mapping { return Mapping{Kind: MapWindow, Window: unit} }
	last := func(n int) Mapping { return Mapping{Kind: MapWindow, Last: n} }

	for _, c := range []struct {
		name    string
		m       Mapping
		in, out Partitioning
		key     string
		want    []string
	}{
		{"whole to whole", same, none, none, WholeKey, []string{WholeKey}},
		{"day to whole", same, in(Day, "UTC"), none, "2001-01-31", []string{WholeKey}},
		{"day to day", same, in(Day, "UTC"), in(Day, "UTC"), "2001-01-31", []string{"2001-01-31"}},
		{"key to key", same, key, key, "acme", []string{"acme"}},
		{"range to range", same, ranges, ranges, "100-200", []string{"100-200"}},
		{"cursor to whole", same, cursor, none, "5-17", []string{WholeKey}},
		{"cursor to cursor", same, cursor, cursor, "5-17", []string{"5-17"}},
		{"day to month", window(Month), in(Day, "UTC"), in(Month, "UTC"), "2001-01-31", []string{"2001-01"}},
		{"day to quarter", window(Quarter), in(Day, "UTC"), in(Quarter, "UTC"), "2001-06-30", []string{"2001-Q2"}},
		{"month to year", window(Year), in(Month, "UTC"), in(Year, "UTC"), "2001-12", []string{"2001"}},
		{"week's day of another year", window(Year), in(Day, "UTC"), in(Year, "UTC"), "2008-12-31", []string{"2008"}},
		{"quarter hour to six hours", window("6h"), in("15m", "UTC"), in("6h", "UTC"), "2001-01-31T17:45",
			[]string{"2001-01-31T12"}},
		{"last four quarters", last(4), in(Quarter, "UTC"), in(Quarter, "UTC"), "2001-Q3",
			[]string{"2001-Q3", "2001-Q4", "2002-Q1", "2002-Q2"}},
		{"day to week over new year", window(Week), in(Day, "UTC"), in(Week, "UTC"), "2008-12-31",
			[]string{"2009-W01"}},
		{"repeated hour to day", window(Day), in(Hour, "Europe/Berlin"), in(Day, "Europe/Berlin"), "2001-10-28T02",
			[]string{"2001-10-28"}},
		{"last three", last(3), in(Day, "UTC"), in(Day, "UTC"), "2001-02-27",
			[]string{"2001-02-27", "2001-02-28", "2001-03-01"}},
		{"last three around a skipped day", last(3), in(Day, "Pacific/Apia"), in(Day, "Pacific/Apia"), "2011-12-29",
			[]string{"2011-12-29", "2011-12-31", "2012-01-01"}},
		{"week to its days", within, in(Week, "UTC"), in(Day, "UTC"), "2009-W01",
			[]string{"2008-12-29", "2008-12-30", "2008-12-31", "2009-01-01", "2009-01-02", "2009-01-03",
				"2009-01-04"}},
		{"day to its hours", within, in(Day, "Europe/Berlin"), in(Hour, "Europe/Berlin"), "2001-03-25",
			hours("2001-03-25", 2)},
		{"year to its quarters", within, in(Year, "UTC"), in(Quarter, "UTC"), "2001",
			[]string{"2001-Q1", "2001-Q2", "2001-Q3", "2001-Q4"}},
		{"latest", latest, in(Day, "UTC"), in(Day, "UTC"), "2001-01-31", nil},
		{"slice", slice, cursor, ranges, "5-17", nil},
	} {
		t.Run("output/"+c.name, func(t *testing.T) {
			t.Parallel()
			got, err := c.m.OutputKeys(c.in, c.out, c.key)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}

	for _, c := range []struct {
		name    string
		m       Mapping
		in, out Partitioning
		key     string
		want    []string
		all     bool
	}{
		{"whole of whole", same, none, none, WholeKey, []string{WholeKey}, false},
		{"whole of days", same, in(Day, "UTC"), none, WholeKey, nil, true},
		{"day of day", same, in(Day, "UTC"), in(Day, "UTC"), "2001-01-31", []string{"2001-01-31"}, false},
		{"month of hours begins", window(Day), in(Hour, "Europe/Berlin"), in(Day, "Europe/Berlin"), "2001-03-25",
			hours("2001-03-25", 2), false},
		{"week of days", window(Week), in(Day, "UTC"), in(Week, "UTC"), "2009-W01",
			[]string{"2008-12-29", "2008-12-30", "2008-12-31", "2009-01-01", "2009-01-02", "2009-01-03",
				"2009-01-04"}, false},
		{"year of quarters", window(Year), in(Quarter, "UTC"), in(Year, "UTC"), "2001",
			[]string{"2001-Q1", "2001-Q2", "2001-Q3", "2001-Q4"}, false},
		{"quarter of months", window(Quarter), in(Month, "UTC"), in(Quarter, "UTC"), "2001-Q2",
			[]string{"2001-04", "2001-05", "2001-06"}, false},
		{"hour of which half is skipped", window(Hour), in("15m", "Australia/Lord_Howe"),
			in(Hour, "Australia/Lord_Howe"), "2001-10-28T02", []string{"2001-10-28T02:30", "2001-10-28T02:45"}, false},
		{"six hours with a repeated one", window("6h"), in("3h", "Europe/Berlin"), in("6h", "Europe/Berlin"),
			"2001-10-28T00", []string{"2001-10-28T00", "2001-10-28T03"}, false},
		{"last four quarters", last(4), in(Quarter, "UTC"), in(Quarter, "UTC"), "2001-Q1",
			[]string{"2000-Q2", "2000-Q3", "2000-Q4", "2001-Q1"}, false},
		{"last three", last(3), in(Day, "UTC"), in(Day, "UTC"), "2001-03-01",
			[]string{"2001-02-27", "2001-02-28", "2001-03-01"}, false},
		{"last two around a skipped hour", last(2), in(Hour, "America/New_York"), in(Hour, "America/New_York"),
			"2025-03-09T03", []string{"2025-03-09T01", "2025-03-09T03"}, false},
		{"last seven around a skipped day", last(7), in(Day, "Pacific/Apia"), in(Day, "Pacific/Apia"), "2012-01-02",
			[]string{"2011-12-26", "2011-12-27", "2011-12-28", "2011-12-29", "2011-12-31", "2012-01-01", "2012-01-02"},
			false},
		{"month that a day lies in", within, in(Month, "UTC"), in(Day, "UTC"), "2001-02-28",
			[]string{"2001-02"}, false},
		{"day of a repeated quarter of an hour", within, in(Day, "Australia/Lord_Howe"),
			in("15m", "Australia/Lord_Howe"), "2001-03-25T01:45", []string{"2001-03-25"}, false},
		{"day of latest", latest, none, in(Day, "UTC"), "2001-01-31", []string{WholeKey}, false},
		{"day of all latest", latest, key, in(Day, "UTC"), "2001-01-31", nil, true},
		{"range of slice", slice, cursor, ranges, "100-200", nil, true},
	} {
		t.Run("input/"+c.name, func(t *testing.T) {
			t.Parallel()
			got, all, err := c.m.InputKeys(c.in, c.out, c.key)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.Equal(t, c.all, all)
		})
	}
}

// hours returns the hours of a day, without the one that its clocks skip.
func hours(day string, skipped int) []string {
	var keys []string
	for h := range 24 {
		if h != skipped {
			keys = append(keys, fmt.Sprintf("%sT%02d", day, h))
		}
	}
	return keys
}

// TestMappingsAgree checks that an input partition feeds exactly the output partitions that are made of it.
func TestMappingsAgree(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"UTC", "Europe/Berlin", "Pacific/Apia", "America/St_Johns", "Australia/Lord_Howe"} {
		for _, c := range []struct {
			m       Mapping
			in, out TimeUnit
		}{
			{Mapping{Kind: MapWindow, Window: Day}, Hour, Day},
			{Mapping{Kind: MapWindow, Window: Week}, Hour, Week},
			{Mapping{Kind: MapWindow, Window: Month}, Day, Month},
			{Mapping{Kind: MapWindow, Window: Quarter}, Day, Quarter},
			{Mapping{Kind: MapWindow, Window: Year}, Quarter, Year},
			{Mapping{Kind: MapWindow, Window: Hour}, "10m", Hour},
			{Mapping{Kind: MapWindow, Window: "8h"}, "20m", "8h"},
			{Mapping{Kind: MapWindow, Last: 5}, "15m", "15m"},
			{Mapping{Kind: MapWithin}, Month, Day},
			{Mapping{Kind: MapWithin}, Hour, "15m"},
			{Mapping{Kind: MapWithin}, Week, "8h"},
			{Mapping{Kind: MapWindow, Last: 7}, Day, Day},
			{Mapping{Kind: MapWindow, Last: 3}, Month, Month},
		} {
			inputs, outputs := in(c.in, zone), in(c.out, zone)
			for _, at := range []string{"2006-10-29T02:29:59Z", "2006-10-29T02:31:00Z", "2011-12-30T10:00:00Z",
				"2001-03-25T00:30:00Z", "2001-10-28T01:30:00Z"} {
				key := inputs.KeyAt(instant(t, at))
				fed, err := c.m.OutputKeys(inputs, outputs, key)
				require.NoError(t, err)
				require.NotEmpty(t, fed)

				for _, output := range fed {
					made, all, err := c.m.InputKeys(inputs, outputs, output)
					require.NoError(t, err)
					require.False(t, all)
					require.Contains(t, made, key, "%s %v %s", zone, c, output)
				}
			}
		}
	}
}

func TestMappingErrors(t *testing.T) {
	t.Parallel()
	_, err := Mapping{Kind: MapSame}.OutputKeys(in(Day, "UTC"), in(Month, "UTC"), "2001-01-31")
	require.EqualError(t, err, "the partitionings differ: day partitions and month partitions")
	_, err = Mapping{Kind: MapSame}.OutputKeys(in(Day, "UTC"), in(Day, "UTC"), "yesterday")
	require.EqualError(t, err, `"yesterday" is not a day such as 2001-01-31`)
	_, _, err = Partitioning{Kind: ByTime, Unit: Hour}.Bounds("2026-10-25T24")
	require.EqualError(t, err, `"2026-10-25T24" is not an hour such as 2001-01-31T05`)
	_, _, err = in("6h", "UTC").Bounds("2026-10-25T05")
	require.EqualError(t, err, `"2026-10-25T05" is not a span of 6 hours such as 2001-01-31T00`)
	_, _, err = in("15m", "America/New_York").Bounds("2001-04-01T02:15")
	require.EqualError(t, err,
		"there is no span of 15 minutes 2001-04-01T02:15 in America/New_York: the clocks skip it")
	_, _, err = in(Quarter, "UTC").Bounds("2026-03")
	require.EqualError(t, err, `"2026-03" is not a quarter such as 2001-Q1`)
	_, err = Mapping{Kind: MapWindow, Window: Month}.OutputKeys(in(Day, "UTC"), Partitioning{Kind: ByKey}, "2001-01-31")
	require.EqualError(t, err, "key partitions have no bounds in time")
	_, _, err = Mapping{Kind: MapWindow, Window: Month}.InputKeys(Partitioning{Kind: ByKey}, in(Month, "UTC"),
		"2001-01")
	require.Error(t, err)
	_, _, err = Mapping{Kind: MapWindow, Last: 2}.InputKeys(in(Day, "UTC"), in(Day, "UTC"), "2001")
	require.Error(t, err)
}

func TestSlicesOfSegments(t *testing.T) {
	t.Parallel()
	ranges := Partitioning{Kind: ByRange, Size: 10, Column: "height"}
	for _, c := range []struct {
		key      string
		segments []string
		holding  []string
		reached  bool
	}{
		{"0-10", nil, nil, false},
		{"0-10", []string{"0-9"}, []string{"0-9"}, false},
		{"0-10", []string{"0-9", "9-10", "10-30"}, []string{"0-9", "9-10"}, true},
		{"10-20", []string{"0-9", "9-11", "11-30", "30-31"}, []string{"9-11", "11-30"}, true},
		{"20-30", []string{"0-25"}, []string{"0-25"}, false},
	} {
		holding, reached, err := ranges.Slice(c.key, c.segments)
		require.NoError(t, err)
		require.Equal(t, c.holding, holding, c)
		require.Equal(t, c.reached, reached, c)
	}

	_, _, err := ranges.Slice("0-11", nil)
	require.Error(t, err)

	keys, all, err := ranges.RangesOver("5-31", 10)
	require.NoError(t, err)
	require.True(t, all)
	require.Equal(t, []string{"0-10", "10-20", "20-30", "30-40"}, keys)
	keys, all, err = ranges.RangesOver("0-9000000000000000000", 2)
	require.NoError(t, err)
	require.False(t, all)
	require.Equal(t, []string{"0-10", "10-20"}, keys)
}
