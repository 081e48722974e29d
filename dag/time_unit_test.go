package dag

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUnitsDivideEvenly checks that minutes and hours begin anew with each hour and day, and that all are there.
func TestUnitsDivideEvenly(t *testing.T) {
	t.Parallel()
	minutes := map[int]bool{}
	for _, u := range TimeUnits {
		if w := u.width().minutes; w > 0 {
			minutes[w] = true
		}
	}
	for n := 1; n <= 60; n++ {
		require.Equal(t, 60%n == 0, minutes[n], "%d minutes", n)
	}
	for n := 1; n < 24; n++ {
		require.Equal(t, 24%n == 0, minutes[60*n], "%d hours", n)
	}
	require.Len(t, TimeUnits, 12+7+4, "with the hour among the hours, and the day as a day")
}

// TestUnitsNest checks which units are made of which, against where their partitions begin.
func TestUnitsNest(t *testing.T) {
	t.Parallel()
	for i, inner := range TimeUnits {
		for j, outer := range TimeUnits {
			whole := i < j
			clock := outer.truncate(instant(t, "1990-01-01T00:00:00Z"))
			for range 500 {
				whole = whole && inner.truncate(clock).Equal(clock)
				clock = outer.step(clock, 1)
			}
			require.Equal(t, whole, Nests(inner, outer), "%s in %s", inner, outer)
		}
	}
	require.Equal(t, 92, mostIn(Day, Quarter))
	require.Equal(t, 8784, mostIn(Hour, Year))
	require.Equal(t, 24, mostIn("15m", "6h"))
	require.Equal(t, 4, mostIn(Quarter, Year))
	require.Equal(t, 7, mostIn(Day, Week))
}

// TestUnitsThatWereMeant checks what is suggested in place of a text that is no unit.
func TestUnitsThatWereMeant(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]TimeUnit{
		"1h": Hour, "60m": Hour, "1m": Minute, "1 minute": Minute, "24h": Day, "1d": Day, "7d": Week, "1 week": Week,
		"3 months": Quarter, "12 months": Year, "4 quarters": Year, "15 minutes": "15m", "15min": "15m", "120m": "2h",
		"6 hours": "6h", "6H": "6h",
		"quarterly": Quarter, "Yearly": Year, "annual": Year,
		"hours": Hour, "Day": Day,
		"7m": "", "5h": "", "90m": "", "2 weeks": "", "fortnight": "", "qarter": "", "": "", "0m": "",
		"999999 months": "",
	} {
		require.Equal(t, want, unitMeant(text), text)
		require.False(t, want != "" && !slices.Contains(TimeUnits, want))
	}

	require.Equal(t, "write quarter", insteadOfUnit("quarterly"))
	require.Equal(t, `did you mean "quarter"?`, insteadOfUnit("qarter"))
	require.Equal(t, "they must divide an hour or a day evenly: 2m, 3m, 4m, 5m, 6m, 10m, 12m, 15m, 20m, 30m; "+
		"2h, 3h, 4h, 6h, 8h, 12h", insteadOfUnit("7m"))
	require.Equal(t, "use minute, hour, day, week, month, quarter, year, minutes such as 15m or hours such as 6h",
		insteadOfUnit("2 months"))
}
