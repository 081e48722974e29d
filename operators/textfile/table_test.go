package textfile_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators/textfile"
)

// A DAG may have thousands of seeds, each of which a plan looks at several times. It is not parallel, as others would
// count.
func TestALookAtASmallTableTakesLittleMemory(t *testing.T) {
	const looks, most = 50, 64 << 10
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range looks {
		_, rows, err := textfile.Table(t.Context(), textfile.Declaration{}, []byte("id,name\n1,a\n2,b\n"))
		require.NoError(t, err)
		require.Equal(t, int64(2), rows)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, (after.TotalAlloc-before.TotalAlloc)/looks, uint64(most))
}
