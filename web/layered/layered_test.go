package layered_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/web/layered"
)

// boxes returns n nodes of one size.
func boxes(n int) []layered.Size {
	sizes := make([]layered.Size, n)
	for i := range sizes {
		sizes[i] = layered.Size{Width: 190, Height: 46}
	}
	return sizes
}

// random returns a graph of n nodes with edges from earlier to later ones.
func random(r *rand.Rand, n, perNode, reach int) (edges [][2]int) {
	for to := 1; to < n; to++ {
		for range 1 + r.IntN(perNode) {
			edges = append(edges, [2]int{max(0, to-1-r.IntN(reach)), to})
		}
	}
	return edges
}

// check requires that nodes do not overlap, that everything is inside, that edges lead to the right, and that lines of
// edges cross no node. Curves lie between layers, where no nodes are.
func check(t *testing.T, sizes []layered.Size, edges [][2]int, acyclic bool) layered.Layout {
	t.Helper()
	l := layered.Place(sizes, edges)
	require.Len(t, l.Nodes, len(sizes))
	require.Len(t, l.Routes, len(edges))

	columns := map[int][]int{}
	for i, p := range l.Nodes {
		require.True(t, p.X >= 0 && p.Y >= 0 && p.X+sizes[i].Width <= l.Width && p.Y+sizes[i].Height <= l.Height)
		for _, k := range columns[p.X] {
			q := l.Nodes[k]
			require.True(t, p.Y >= q.Y+sizes[k].Height || q.Y >= p.Y+sizes[i].Height, "nodes %d and %d overlap", i, k)
		}
		columns[p.X] = append(columns[p.X], i)
	}

	for i, e := range edges {
		route := l.Routes[i]
		if e[0] == e[1] {
			require.Empty(t, route)
			continue
		}
		require.GreaterOrEqual(t, len(route), 3)
		if acyclic {
			require.Less(t, l.Nodes[e[0]].X, l.Nodes[e[1]].X)
			require.Equal(t, l.Nodes[e[0]].X+sizes[e[0]].Width, route[0].X)
			require.Equal(t, l.Nodes[e[1]].X, route[len(route)-1].X)
		}
		for k := 0; k+1 < len(route); k += 2 {
			a, b := route[k], route[k+1]
			require.Equal(t, a.Y, b.Y, "a line within a layer")
			for _, n := range columns[min(a.X, b.X)] {
				if n == e[0] || n == e[1] {
					continue
				}
				top := l.Nodes[n].Y
				require.False(t, a.Y > top && a.Y < top+sizes[n].Height, "edge %v crosses node %d", e, n)
			}
		}
	}
	return l
}

func TestPlace(t *testing.T) {
	t.Parallel()
	check(t, nil, nil, true)
	one := check(t, boxes(1), nil, true)
	require.Equal(t, 210, one.Width)

	// A long edge goes around what it passes.
	l := check(t, boxes(4), [][2]int{{0, 1}, {1, 2}, {2, 3}, {0, 3}}, true)
	require.Len(t, l.Routes[3], 7)
	require.NotEqual(t, l.Routes[3][2].Y, l.Routes[0][2].Y)

	// Two pairs that would cross in the order of the nodes do not.
	l = check(t, boxes(4), [][2]int{{0, 3}, {1, 2}}, true)
	require.Equal(t, l.Nodes[0].Y < l.Nodes[1].Y, l.Nodes[3].Y < l.Nodes[2].Y)

	// What nothing leads to is beside what it leads to.
	l = check(t, boxes(4), [][2]int{{0, 1}, {1, 2}, {3, 2}}, true)
	require.Equal(t, l.Nodes[1].X, l.Nodes[3].X)

	// A chain is straight.
	l = check(t, boxes(3), [][2]int{{0, 1}, {1, 2}}, true)
	require.Equal(t, l.Nodes[0].Y, l.Nodes[2].Y)
}

func TestCirclesEnd(t *testing.T) {
	t.Parallel()
	l := check(t, boxes(4), [][2]int{{0, 1}, {1, 2}, {2, 0}, {3, 3}, {1, 0}}, false)
	require.Less(t, l.Nodes[0].X, l.Nodes[1].X)
	back := l.Routes[2]
	require.Greater(t, back[0].X, back[len(back)-1].X)
}

func TestRandomGraphs(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 7))
			n := 2 + r.IntN(120)
			sizes := boxes(n)
			for i := range sizes {
				sizes[i].Width, sizes[i].Height = 40+r.IntN(200), 20+r.IntN(60)
			}
			check(t, sizes, random(r, n, 3, 1+r.IntN(n)), true)
		})
	}
}

// A graph of 5,000 datasets is laid out while one waits.
func TestLargeLayouts(t *testing.T) {
	t.Parallel()
	for _, reach := range []int{40, 5000} {
		edges := random(rand.New(rand.NewPCG(1, 2)), 5000, 3, reach)
		began := time.Now()
		l := layered.Place(boxes(5000), edges)
		took := time.Since(began)
		t.Logf("reach %d: %d edges, %d x %d pixels, %s", reach, len(edges), l.Width, l.Height, took)
		require.Less(t, took, 3*time.Second)
	}
}

func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{500, 5000} {
		edges := random(rand.New(rand.NewPCG(1, 2)), n, 3, 60)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				layered.Place(boxes(n), edges)
			}
		})
	}
}
