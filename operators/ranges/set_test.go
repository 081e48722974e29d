package ranges

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSets(t *testing.T) {
	t.Parallel()
	s := Set{}.With(Range{5, 7}, Range{0, 2}, Range{9, 9}, Range{1, 3}, Range{7, 8})
	require.Equal(t, Set{{0, 3}, {5, 8}}, s)
	require.Equal(t, int64(6), s.Length())
	require.Equal(t, Set{{0, 8}}, s.With(Range{3, 5}))
	require.Equal(t, Set{{2, 3}, {5, 6}}, s.Within(Range{2, 6}))
	require.Equal(t, Set{}, s.Within(Range{3, 5}))

	text, err := json.Marshal(s)
	require.NoError(t, err)
	require.Equal(t, "[[0,3],[5,8]]", string(text))

	require.Equal(t, Set{{0, 2}, {6, 8}}, s.Aligned(s, 2), "2 is covered and 3 is not, 5 is covered and 4 is not")
	require.Equal(t, Set{{6, 8}}, s.Aligned(Set{{7, 8}}, 2))
	require.Equal(t, Set{}, s.Aligned(s, 10))
	edge := Set{{maxPosition - 10, maxPosition}}
	require.Equal(t, Set{{maxPosition - 8, maxPosition}}, edge.Aligned(edge, 8), "nothing overflows")
}

// Sets are compared with lists of positions: for random parts, an aligned range is listed exactly if all of its
// positions are covered and fresh has one of them.
func TestSetsAgainstPositions(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 1))
		var (
			covered Set
			there   [200]bool
			size    = 1 + random.Int64N(25)
		)
		for range 1 + random.IntN(30) {
			from := random.Int64N(180)
			part := Range{from, from + random.Int64N(20)}
			fresh := Set{}.With(part)
			covered = covered.With(part)
			for at := part.Start(); at < part.End(); at++ {
				there[at] = true
			}

			var want []Range
			for first := int64(0); first+size <= int64(len(there)); first += size {
				whole, touched := true, false
				for at := first; at < first+size; at++ {
					whole = whole && there[at]
					touched = touched || part.Start() <= at && at < part.End()
				}
				if whole && touched {
					want = append(want, Range{first, first + size})
				}
			}
			require.Equal(t, Set{}.With(want...), covered.Aligned(fresh, size), "seed %d", seed)
		}
	}
}
