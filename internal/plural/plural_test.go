package plural_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/plural"
)

func TestPlural(t *testing.T) {
	t.Parallel()
	require.Equal(t, "0 tasks", plural.Of(0, "task"))
	require.Equal(t, "1 task", plural.Of(int64(1), "task"))
	require.Equal(t, "12000 tasks", plural.Of(12000, "task"))
	require.Equal(t, "1 task is", plural.Or(1, "task is", "tasks are"))
	require.Equal(t, "2 entries", plural.Or(2, "entry", "entries"))
	require.Equal(t, "its", plural.Word(1, "its", "their"))
}
