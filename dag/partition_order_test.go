package dag_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
)

func TestPrecedes(t *testing.T) {
	t.Parallel()
	days := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day}
	zoned := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Month, Timezone: "Europe/Berlin"}
	ranges := dag.Partitioning{Kind: dag.ByRange, Size: 10, Column: "id"}

	for _, test := range []struct {
		by         dag.Partitioning
		key, bound string
		want       bool
	}{
		{days, "2001-01-31", "2001-02-01", true},
		{days, "2001-02-01", "2001-02-01", false},
		{days, "2001-01-31", "2001-02", true},
		{days, "2001-01-31", "2001-01-31T12", false},
		{zoned, "2001-01", "2001-02-01", true},
		{zoned, "2001-01", "2001-01-31", false},
		{days, "2001-03-31", "2001-Q2", true},
		{days, "2001-12-31", "2002", true},
		{days, "2001-12-31", "2001", false},
		{days, "2001-12-31", "2001-12-31T23:59", false},
		{dag.Partitioning{Kind: dag.ByTime, Unit: "6h"}, "2001-12-31T18", "2002-Q1", true},
		{dag.Partitioning{Kind: dag.ByTime, Unit: dag.Year}, "2001", "2002-01-01", true},
		{ranges, "90-100", "100-110", true},
		{ranges, "90-100", "90-100", false},
		{dag.Partitioning{Kind: dag.ByCursor, Column: "id"}, "5-17", "17-18", true},
		{dag.Partitioning{Kind: dag.ByKey}, "de", "fr", true},
		{dag.Partitioning{Kind: dag.ByKey}, "fr", "fr", false},
	} {
		before, err := test.by.Precedes(test.key, test.bound)
		require.NoError(t, err)
		require.Equal(t, test.want, before, "%s before %s", test.key, test.bound)
	}

	for _, test := range []struct {
		by         dag.Partitioning
		key, bound string
	}{
		{days, "2001-01-31", "yesterday"},
		{days, "2001-01-31", "2001-02-30"},
		{ranges, "90-100", "100"},
		{dag.Partitioning{Kind: dag.ByKey}, "de", "a/b"},
		{dag.Partitioning{Kind: dag.Unpartitioned}, "all", "all"},
	} {
		_, err := test.by.Precedes(test.key, test.bound)
		require.Error(t, err, "%s before %s", test.key, test.bound)
	}
}

func TestKeyBetween(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		key, from, to string
		want          bool
	}{
		{"200-300", "100-200", "1000-1100", true},
		{"1000-1100", "100-200", "200-300", false},
		{"0-101", "0-50", "0-101", true},
		{"2024-10", "2024-09", "2024-11", true},
		{"2024-01-31", "2024-01-01", "2024-01-31", true},
		{"2024-02-29", "2024-01", "2024-02", true},
		{"2024-03-01", "2024-01", "2024-02", false},
		{"2024-Q3", "2023", "2024", true},
		{"2024-02-29T23:45", "2024-02-01", "2024-02-29", true},
		{"a-b", "", "a", false},
		{"b", "a", "", true},
		{"b", "", "a", false},
	} {
		require.Equal(t, test.want, dag.KeyBetween(test.key, test.from, test.to), "%+v", test)
	}
}
