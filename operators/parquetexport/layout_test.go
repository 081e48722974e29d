package parquetexport

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
)

func TestPathsOfPartitions(t *testing.T) {
	t.Parallel()
	day := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day}
	hour := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Hour, Timezone: "Europe/Berlin"}
	month := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Month}
	sixHours := dag.Partitioning{Kind: dag.ByTime, Unit: "6h"}
	quarterHours := dag.Partitioning{Kind: dag.ByTime, Unit: "15m"}
	byKey := dag.Partitioning{Kind: dag.ByKey}
	for _, c := range []struct {
		path string
		by   dag.Partitioning
		key  string
		want string
	}{
		{"sales/day={partition}", day, "2024-01-31", "sales/day=2024-01-31"},
		{"{dag}/{job}/y={year}/m={month}/d={day}", day, "2024-01-31", "d/j/y=2024/m=01/d=31"},
		{"{year}{month}{day}/h={hour}", hour, "2001-10-28T02", "20011028/h=02"},
		{"{year}-{month}", month, "2024-01", "2024-01"},
		{"w={partition}", dag.Partitioning{Kind: dag.ByTime, Unit: dag.Week}, "2024-W05", "w=2024-W05"},
		{"r={partition}", dag.Partitioning{Kind: dag.ByRange, Column: "n", Size: 10}, "0-10", "r=0-10"},
		{"y={year}", dag.Partitioning{Kind: dag.ByTime, Unit: dag.Year}, "2024", "y=2024"},
		{"{year}/q={quarter}", dag.Partitioning{Kind: dag.ByTime, Unit: dag.Quarter}, "2024-Q3", "2024/q=3"},
		{"q={partition}", dag.Partitioning{Kind: dag.ByTime, Unit: dag.Quarter}, "2024-Q3", "q=2024-Q3"},
		{"{year}{month}{day}/h={hour}", sixHours, "2001-10-28T18", "20011028/h=18"},
		{"{year}{month}{day}/{hour}-{minute}", quarterHours, "2001-10-28T18:45", "20011028/18-45"},
		{"at={partition}", quarterHours, "2001-10-28T18:45", "at=2001-10-28T18%3A45"},
		{"whole", dag.Partitioning{}, dag.WholeKey, "whole"},
		{"shop={partition}", byKey, `a=b%c:"d" ü#?*'[{^`, "shop=a%3Db%25c%3A%22d%22 ü%23%3F%2A%27%5B%7B%5E"},
		{"{partition}", byKey, "..x", "%2E.x"},
		{"{partition}", byKey, "_hidden", "%5Fhidden"},
	} {
		l, err := parseLayout(c.path)
		require.NoError(t, err, c.path)
		require.NoError(t, l.partitions(c.by), c.path)
		got, err := l.folder(c.by, c.key, "d", "j")
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}

	l, err := parseLayout("k={partition}")
	require.NoError(t, err)
	_, err = l.folder(byKey, strings.Repeat("%", dag.MaxKeyBytes), "d", "j")
	require.ErrorContains(t, err, "its folder has a name of 602 bytes")
}

// What is said of all folders beforehand fits each of them.
func TestFoldersOfAllPartitions(t *testing.T) {
	t.Parallel()
	for _, unit := range dag.TimeUnits {
		by := dag.Partitioning{Kind: dag.ByTime, Unit: unit}
		l, err := parseLayout("at={partition}")
		require.NoError(t, err)
		folder, err := l.folder(by, by.KeyAt(time.Date(2024, 10, 27, 18, 30, 0, 0, time.UTC)), "d", "j")
		require.NoError(t, err)

		all := l.anyFolder(by, "d", "j")[0]
		require.Len(t, all, len(folder), unit)
		for i := range folder {
			digit := folder[i] >= '0' && folder[i] <= '9'
			require.True(t, all[i] == folder[i] || string(all[i]) == dag.AnyDigit && digit,
				"%q is not of the form %q", folder, all)
		}
	}
}

func TestPathsThatAreRefused(t *testing.T) {
	t.Parallel()
	for path, why := range map[string]string{
		"":                 "names of folders",
		"/abs":             "names of folders",
		"a//b":             "names of folders",
		"a/":               "names of folders",
		"a/../b":           "begin with a dot",
		"a/_b":             "begin with a dot",
		"a b":              "other characters",
		"ä":                "other characters",
		`a\b`:              "other characters",
		"a/{revision}":     "no placeholder {revision}",
		"a/{":              "no placeholder {",
		"s3:bucket/a":      "other characters",
		"day={partition":   "no placeholder {",
		"{partition}/\x00": "other characters",
	} {
		_, err := parseLayout(path)
		require.ErrorContains(t, err, why, path)
	}

	day := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day}
	quarter := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Quarter}
	for _, c := range []struct {
		path string
		by   dag.Partitioning
		why  string
	}{
		{"a", day, "would overwrite each other: it needs {partition}, or all of {year}, {month}, {day}"},
		{"a/{year}/{day}", day, "would overwrite"},
		{"a/{hour}/{partition}", day, "have no {hour}"},
		{"a/{year}/{partition}", dag.Partitioning{Kind: dag.ByTime, Unit: dag.Week}, "have no {year}"},
		{"a/{year}", quarter, "it needs {partition}, or all of {year}, {quarter}"},
		{"a/{year}/{month}", quarter, "quarter partitions have no {month}"},
		{"{year}/{month}/{day}/{hour}", dag.Partitioning{Kind: dag.ByTime, Unit: "15m"}, "15-minute partitions would"},
		{"a/{year}", dag.Partitioning{Kind: dag.ByKey}, "have no {year}"},
		{"a", dag.Partitioning{Kind: dag.ByKey}, "it needs {partition}"},
		{"a/{partition}", dag.Partitioning{}, "nothing for {partition}"},
		{"a/{day}", dag.Partitioning{}, "have no {day}"},
	} {
		l, err := parseLayout(c.path)
		require.NoError(t, err)
		require.ErrorContains(t, l.partitions(c.by), c.why, c.path)
	}
}
