package datasets

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPartitionRange(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		"2026-01-01":             {"2026-01-01", "2026-01-01"},
		"2026-01-01..2026-01-31": {"2026-01-01", "2026-01-31"},
		"19000000..":             {"19000000", ""},
		"":                       {"", ""},
	} {
		from, to := partitionRange(text)
		require.Equal(t, want, [2]string{from, to}, text)
	}
}
