// Package layered lays directed graphs out in layers from left to right: each node to the right of what leads to it,
// and edges that cross each other seldom and nodes never.
//
// Vocabulary: a layer is a column of vertices. A vertex is a node, or a bend of an edge that passes the layer; edges of
// one node share their bends. It owns no tables, and knows nothing of what is drawn.
package layered

import (
	"cmp"
	"slices"
)

// Size is the size of a node, in pixels.
type Size struct{ Width, Height int }

// Point is a place, in pixels from the upper left corner.
type Point struct{ X, Y int }

// Layout says where everything is.
type Layout struct {
	Width, Height int
	Nodes         []Point   // the upper left corner of each node
	Routes        [][]Point // of each edge; see Place
}

// Distances in pixels.
const (
	margin = 10
	gapX   = 60 // between layers
	gapY   = 18 // between vertices of a layer
	bend   = 4  // height of a bend
)

// mostBends bounds the memory of a layout. With more, edges go straight and may cross nodes.
const mostBends = 200_000

// Place lays out nodes and the edges between them, which are pairs of indices. A route is a line from its first point
// to its second, then a curve to its third, a line to its fourth, and so on: lines lie within layers, and curves
// between them. An edge of a circle may lead back to the left; one from a node to itself has no route. It takes O(n
// log n) time for n nodes, edges and bends.
func Place(sizes []Size, edges [][2]int) Layout {
	g := newGraph(sizes, edges)
	g.bends()
	g.order()
	g.spread()
	return g.layout(sizes, edges)
}

type vertex struct {
	layer, at  int // its place: the layer, and the index in that
	height     int
	isBend     bool
	middle     float64 // from the top
	left       []int   // vertices of the layer before, to which it has edges
	right      []int   // of the layer after
	visitState int
}

type graph struct {
	n        int // nodes; further vertices are bends
	vertices []vertex
	layers   [][]int
	edges    [][2]int // forward: those of circles are turned around
	back     []bool
	chains   map[[2]int]int // the bend of a node's edges in a layer
}

// newGraph assigns layers: a node is in the layer after the last one that leads to it, and a node to which none leads
// is in the layer before the first one that it leads to.
func newGraph(sizes []Size, edges [][2]int) *graph {
	g := &graph{n: len(sizes), vertices: make([]vertex, len(sizes)), edges: slices.Clone(edges),
		back: make([]bool, len(edges)), chains: map[[2]int]int{}}
	for i, s := range sizes {
		g.vertices[i].height = s.Height
	}
	order := g.forward()

	from, into := g.adjacent()
	for _, v := range order {
		for _, to := range from[v] {
			g.vertices[to].layer = max(g.vertices[to].layer, g.vertices[v].layer+1)
		}
	}
	for _, v := range order {
		if len(into[v]) == 0 && len(from[v]) > 0 {
			nearest := g.vertices[from[v][0]].layer
			for _, to := range from[v] {
				nearest = min(nearest, g.vertices[to].layer)
			}
			g.vertices[v].layer = nearest - 1
		}
	}
	return g
}

// adjacent returns for each node those that it leads to, and those that lead to it.
func (g *graph) adjacent() (from, into [][]int) {
	from, into = make([][]int, g.n), make([][]int, g.n)
	for _, e := range g.edges {
		if e[0] != e[1] {
			from[e[0]], into[e[1]] = append(from[e[0]], e[1]), append(into[e[1]], e[0])
		}
	}
	return from, into
}

// forward turns the edges around that close circles, and returns the nodes so that all edges lead forward.
func (g *graph) forward() (order []int) {
	of := make([][]int, g.n)
	for i, e := range g.edges {
		of[e[0]] = append(of[e[0]], i)
	}

	const fresh, open, done = 0, 1, 2
	type step struct{ node, next int }
	for start := range g.n {
		if g.vertices[start].visitState != fresh {
			continue
		}
		g.vertices[start].visitState = open
		path := []step{{start, 0}}
		for len(path) > 0 {
			s := &path[len(path)-1]
			if s.next == len(of[s.node]) {
				g.vertices[s.node].visitState = done
				order = append(order, s.node)
				path = path[:len(path)-1]
				continue
			}

			i := of[s.node][s.next]
			s.next++
			switch to := g.edges[i][1]; g.vertices[to].visitState {
			case open:
				g.edges[i][0], g.edges[i][1], g.back[i] = g.edges[i][1], g.edges[i][0], true
			case fresh:
				g.vertices[to].visitState = open
				path = append(path, step{to, 0})
			}
		}
	}
	slices.Reverse(order)
	return order
}

// bends splits the edges over several layers into parts from one layer to the next, and fills the layers.
func (g *graph) bends() {
	long := 0
	for _, e := range g.edges {
		long += max(g.vertices[e[1]].layer-g.vertices[e[0]].layer-1, 0)
	}

	joined := map[[2]int]bool{}
	join := func(a, b int) {
		if !joined[[2]int{a, b}] {
			joined[[2]int{a, b}] = true
			g.vertices[a].right, g.vertices[b].left = append(g.vertices[a].right, b), append(g.vertices[b].left, a)
		}
	}
	for _, e := range g.edges {
		first, last := g.vertices[e[0]].layer, g.vertices[e[1]].layer
		if e[0] == e[1] || long > mostBends && last > first+1 {
			continue
		}
		at := e[0]
		for l := first + 1; l < last; l++ {
			next := g.bendOf(e[0], l)
			join(at, next)
			at = next
		}
		join(at, e[1])
	}

	for v := range g.vertices {
		l := g.vertices[v].layer
		for len(g.layers) <= l {
			g.layers = append(g.layers, nil)
		}
		g.vertices[v].at = len(g.layers[l])
		g.layers[l] = append(g.layers[l], v)
	}
}

// bendOf returns the bend of a node's edges in a layer.
func (g *graph) bendOf(node, layer int) int {
	if v, known := g.chains[[2]int{node, layer}]; known {
		return v
	}
	v := len(g.vertices)
	g.vertices = append(g.vertices, vertex{layer: layer, height: bend, isBend: true})
	g.chains[[2]int{node, layer}] = v
	return v
}

// order sorts each layer by the mean places of its vertices' neighbours, to and fro, and keeps the order with the
// fewest crossings.
func (g *graph) order() {
	sweeps := 12
	if len(g.vertices) > 20_000 {
		sweeps = 4
	}

	best, fewest := g.keep(), g.crossings()
	for i := 0; i < sweeps && fewest > 0; i++ {
		for k := range g.layers {
			if toRight := i%2 == 0; toRight {
				g.sortLayer(k, func(v *vertex) []int { return v.left })
			} else {
				g.sortLayer(len(g.layers)-1-k, func(v *vertex) []int { return v.right })
			}
		}
		if n := g.crossings(); n < fewest {
			best, fewest = g.keep(), n
		}
	}

	for l, layer := range best {
		g.layers[l] = layer
		for i, v := range layer {
			g.vertices[v].at = i
		}
	}
}

func (g *graph) keep() [][]int {
	kept := make([][]int, len(g.layers))
	for i, layer := range g.layers {
		kept[i] = slices.Clone(layer)
	}
	return kept
}

// sortLayer sorts a layer by the mean places of neighbours. A vertex without any stays about where it is.
func (g *graph) sortLayer(l int, neighbours func(v *vertex) []int) {
	layer := g.layers[l]
	means := make(map[int]float64, len(layer))
	for i, v := range layer {
		means[v] = float64(i)
		if near := neighbours(&g.vertices[v]); len(near) > 0 {
			sum := 0
			for _, u := range near {
				sum += g.vertices[u].at
			}
			means[v] = float64(sum) / float64(len(near))
		}
	}

	slices.SortStableFunc(layer, func(a, b int) int { return cmp.Compare(means[a], means[b]) })
	for i, v := range layer {
		g.vertices[v].at = i
	}
}

// crossings counts the crossings between all layers and the next: for the edges in the order of their left ends, how
// many right ends come before lie below.
func (g *graph) crossings() (n int) {
	for l := range len(g.layers) - 1 {
		counts := make([]int, len(g.layers[l+1])+1) // a Fenwick tree
		seen := 0
		for _, v := range g.layers[l] {
			ends := make([]int, 0, len(g.vertices[v].right))
			for _, u := range g.vertices[v].right {
				ends = append(ends, g.vertices[u].at)
			}
			slices.Sort(ends)

			for _, end := range ends {
				above := 0
				for i := end + 1; i > 0; i -= i & -i {
					above += counts[i]
				}
				n += seen - above
			}
			for _, end := range ends {
				for i := end + 1; i < len(counts); i += i & -i {
					counts[i]++
				}
			}
			seen += len(ends)
		}
	}
	return n
}
