package layered_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/web/layered"
)

// A graph is laid out once, and one that differs in anything is laid out by itself.
func TestAShapeIsLaidOutOnce(t *testing.T) {
	t.Parallel()
	var c layered.Cache
	sizes, edges := boxes(4), [][2]int{{0, 1}, {1, 2}, {0, 3}}
	for range 3 {
		require.Equal(t, layered.Place(sizes, edges), c.Place(sizes, edges))
	}
	require.Equal(t, 1, c.Placed())

	wider := boxes(4)
	wider[2].Width++
	for i, other := range []struct {
		sizes []layered.Size
		edges [][2]int
	}{{wider, edges}, {sizes, edges[:2]}, {sizes, [][2]int{{0, 1}, {1, 2}, {3, 0}}}, {boxes(5), edges}, {nil, nil}} {
		require.Equal(t, layered.Place(other.sizes, other.edges), c.Place(other.sizes, other.edges))
		require.Equal(t, i+2, c.Placed())
	}
}

// What a cache holds is bounded: the layout that nobody has asked for the longest goes first.
func TestTheOldestLayoutGoes(t *testing.T) {
	t.Parallel()
	var c layered.Cache
	const large = 60_000 // nodes, of which three are within the bound
	for _, n := range []int{large, large + 1, large + 2, large, large + 3} {
		c.Place(boxes(n), nil)
	}
	require.Equal(t, 4, c.Placed())
	c.Place(boxes(large), nil)
	require.Equal(t, 4, c.Placed(), "it was asked for again")
	c.Place(boxes(large+1), nil)
	require.Equal(t, 5, c.Placed(), "it was not")
}

func TestOneCacheForMany(t *testing.T) {
	t.Parallel()
	var (
		c   layered.Cache
		all sync.WaitGroup
	)
	for range 8 {
		all.Go(func() {
			for n := range 50 {
				edges := random(rand.New(rand.NewPCG(1, uint64(n))), 20+n, 2, 10)
				if got := c.Place(boxes(20+n), edges); len(got.Nodes) != 20+n || len(got.Routes) != len(edges) {
					t.Errorf("%d nodes: %d", 20+n, len(got.Nodes))
				}
			}
		})
	}
	all.Wait()
}

func BenchmarkCache(b *testing.B) {
	for _, n := range []int{500, 5000} {
		var c layered.Cache
		edges := random(rand.New(rand.NewPCG(1, 2)), n, 3, 60)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				c.Place(boxes(n), edges)
			}
		})
	}
}
