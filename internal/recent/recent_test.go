package recent

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhatIsAskedForStays(t *testing.T) {
	t.Parallel()
	var c Cache[int, string]
	_, ok := c.Get(1)
	require.False(t, ok)
	now := time.Now().Add(-time.Hour)
	c.put(1, "asked", now)
	c.put(2, "not asked", now)
	c.put(3, "new", now.Add(keepFor+1)) // 1 and 2 are of the older half now

	kept, ok := c.Get(1)
	require.True(t, ok)
	require.Equal(t, "asked", kept)
	c.put(4, "newer", now.Add(time.Hour).Add(3*keepFor))
	_, ok = c.Get(2)
	require.False(t, ok)
	_, ok = c.Get(1)
	require.True(t, ok)
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	var c Cache[int, int]
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for i := range 1000 {
				c.Put(i, i)
				if got, ok := c.Get(i); !ok || got != i {
					t.Errorf("%d: %d is %d %v", n, i, got, ok)
				}
			}
		})
	}
	all.Wait()
}
