package authz

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKnownTokensAreBounded(t *testing.T) {
	t.Parallel()
	var k knownTokens
	k.put(string(make([]byte, knownLength+1)), Capability{Attempt: 1})
	require.Empty(t, k.young, "a long token is checked each time")

	k.put("used", Capability{Attempt: 7})
	k.put("not used", Capability{Attempt: 8})
	for i := range 3 * knownAtMost {
		k.put(fmt.Sprint(i), Capability{Attempt: i})
		if i%1000 == 0 {
			c, ok := k.get("used")
			require.True(t, ok)
			require.Equal(t, 7, c.Attempt)
		}
		require.LessOrEqual(t, len(k.young), knownAtMost)
		require.LessOrEqual(t, len(k.old), knownAtMost)
	}
	_, ok := k.get("not used")
	require.False(t, ok)
}

func TestKnownTokensFromManyCalls(t *testing.T) {
	t.Parallel()
	var k knownTokens
	var calls sync.WaitGroup
	for n := range 8 {
		calls.Go(func() {
			for i := range 1000 { // all calls together put no more tokens than are surely remembered
				token := fmt.Sprint(n, i)
				k.put(token, Capability{Attempt: i, Prefixes: []string{token}})
				c, ok := k.get(token)
				if !ok || c.Attempt != i || c.Prefixes[0] != token {
					t.Errorf("token %s is known as %v (%t)", token, c, ok)
				}
			}
		})
	}

	calls.Wait()
}
