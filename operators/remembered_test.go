package operators

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every save of a DAG file asks something new. What is asked again stays, and the rest is bounded.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	t.Parallel()
	var r remembered
	asked := 0
	ask := func(what any, length int) string {
		var answer string
		require.NoError(t, r.recall(&answer, []any{what}, func() error {
			asked++
			answer = strings.Repeat("x", length)
			return nil
		}))
		require.Len(t, answer, length)
		return answer
	}

	ask("often", 1)
	for i := range 30_000 {
		ask(i, 200)
		ask("often", 1)
	}
	require.Equal(t, 30_001, asked, "what is asked for again and again is remembered")
	most := maxRemembered / (200 + entryBytes)
	require.LessOrEqual(t, len(r.newer), most+1)
	require.LessOrEqual(t, len(r.older), most+1)

	ask("a file of megabytes", 5<<20)
	ask("another", 1)
	require.LessOrEqual(t, r.bytes, maxRemembered, "a very long answer is not remembered")
}
