package views_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/views"
)

func TestBetween(t *testing.T) {
	t.Parallel()
	days, ranges := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day}, dag.Partitioning{Kind: dag.ByRange, Size: 100}
	for _, test := range []struct {
		by            dag.Partitioning
		from, to, key string
		want          bool
	}{
		{days, "2026-01-02", "2026-01-04", "2026-01-04", true},
		{days, "2026-01-02", "2026-01-04", "2026-01-05", false},
		{days, "2026-01", "2026-02", "2026-02-28", true},
		{ranges, "200-300", "1000-1100", "900-1000", true},
		{ranges, "1000-1100", "2000-2100", "200-300", false},
		{ranges, "100", "500", "1000-1100", false},
		{dag.Partitioning{Kind: dag.ByKey}, "de", "fr", "es", true},
	} {
		require.Equal(t, test.want, views.Between(test.by, test.from, test.to, test.key), "%+v", test)
	}
}
