package parquetcompact

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCuts(t *testing.T) {
	t.Parallel()
	all := rows{[]string{"a", "none", "b", "c"}, []int64{10, 10, 15, 40}}
	require.Equal(t, part{[]string{"a"}, 0, 10}, all.cut(0, 10))
	require.Equal(t, part{[]string{"a", "b"}, 5, 7}, all.cut(5, 12))
	require.Equal(t, part{[]string{"b", "c"}, 0, 10}, all.cut(10, 20))
	require.Equal(t, part{[]string{"c"}, 5, 20}, all.cut(20, 40))
	require.Equal(t, part{[]string{"a"}, 0, 0}, rows{[]string{"a"}, []int64{0}}.cut(0, 0))
	require.Equal(t, part{}, rows{}.cut(0, 0))
}
