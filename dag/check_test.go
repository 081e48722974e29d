package dag

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAChecksHashIsOfWhatItDemands(t *testing.T) {
	t.Parallel()
	one, two := int64(1), int64(2)
	check := Check{Name: "enough", Kind: "row_count", Severity: "error", Min: &one}
	require.Len(t, check.Hash(), 16)

	same := check
	same.Name, same.Severity, same.Output = "more", "warn", 1
	require.Equal(t, check.Hash(), same.Hash())
	more := check
	more.Min = &two
	require.NotEqual(t, check.Hash(), more.Hash())
}
