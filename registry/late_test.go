package registry_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
)

func TestLateness(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time {
		v, err := time.Parse(time.RFC3339, text)
		require.NoError(t, err)
		return v
	}
	daily := func(zone string) dag.Partitioning {
		return dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day, Timezone: zone}
	}
	for name, tc := range map[string]struct {
		by        dag.Partitioning
		within    time.Duration
		since     string
		published []string
		now       string
		want      *registry.Late
	}{
		"nothing is due": {daily("UTC"), 0, "2027-01-01T00:00:00Z", nil, "2027-01-10T00:00:00Z", nil},
		"not yet": {daily("UTC"), 2 * time.Hour, "2027-01-01T00:00:00Z", []string{"2027-01-08"},
			"2027-01-10T01:59:59Z", nil},
		"just": {daily("UTC"), 2 * time.Hour, "2027-01-01T00:00:00Z", []string{"2027-01-08"},
			"2027-01-10T02:00:00Z", &registry.Late{Partition: "2027-01-09", DueAt: at("2027-01-10T02:00:00Z")}},
		"there": {daily("UTC"), 2 * time.Hour, "2027-01-01T00:00:00Z", []string{"2027-01-09"},
			"2027-01-10T23:00:00Z", nil},
		"a short day": {daily("America/New_York"), time.Hour, "2027-01-01T00:00:00Z", nil,
			"2027-03-15T05:30:00Z", &registry.Late{Partition: "2027-03-14", DueAt: at("2027-03-15T05:00:00Z")}},
		"a long day": {daily("America/New_York"), time.Hour, "2027-01-01T00:00:00Z",
			[]string{"2027-11-06"}, "2027-11-08T05:59:00Z", nil},
		"a long day is over": {daily("America/New_York"), time.Hour, "2027-01-01T00:00:00Z",
			[]string{"2027-11-06"}, "2027-11-08T06:00:00Z",
			&registry.Late{Partition: "2027-11-07", DueAt: at("2027-11-08T06:00:00Z")}},
		"half an hour": {daily("Australia/Lord_Howe"), time.Hour, "2027-01-01T00:00:00Z", nil,
			"2027-10-03T14:30:00Z", &registry.Late{Partition: "2027-10-03", DueAt: at("2027-10-03T14:00:00Z")}},
		"a quarter of one": {daily("Asia/Kathmandu"), time.Hour, "2027-01-01T00:00:00Z", nil,
			"2027-10-03T19:15:00Z", &registry.Late{Partition: "2027-10-03", DueAt: at("2027-10-03T19:15:00Z")}},
		"whole, in time": {dag.Partitioning{}, time.Hour, "2027-01-10T00:00:00Z", nil, "2027-01-10T01:00:00Z",
			nil},
		"whole, late": {dag.Partitioning{}, time.Hour, "2027-01-10T00:00:00Z", nil, "2027-01-10T01:00:01Z",
			&registry.Late{DueAt: at("2027-01-10T01:00:00Z")}},
		"by key, like whole": {dag.Partitioning{Kind: dag.ByKey}, time.Hour, "2027-01-10T00:00:00Z",
			[]string{"a"}, "2027-01-10T01:00:01Z", &registry.Late{DueAt: at("2027-01-10T01:00:00Z")}},
		"hourly, over a day's end": {dag.Partitioning{Kind: dag.ByTime, Unit: dag.Hour, Timezone: "UTC"},
			30 * time.Minute, "2027-01-10T00:00:00Z", nil, "2027-01-10T00:30:00Z",
			&registry.Late{Partition: "2027-01-09T23", DueAt: at("2027-01-10T00:30:00Z")}},
	} {
		there := map[string]bool{}
		for _, key := range tc.published {
			there[key] = true
		}
		got := registry.Lateness(tc.by, tc.within, at(tc.since),
			func(key string) bool { return there[key] }, at(tc.now))
		require.Equal(t, tc.want, got, name)
	}
}
