package layered

import "math"

// spread moves the vertices of each layer up and down, to the mean of their neighbours as far as their order and the
// gaps between them allow.
func (g *graph) spread() {
	for _, layer := range g.layers {
		y := 0.0
		for _, v := range layer {
			half := float64(g.vertices[v].height) / 2
			g.vertices[v].middle = y + half
			y += 2*half + gapY
		}
	}

	const rounds = 6
	for i := range rounds {
		for k := range g.layers {
			if i%2 == 0 {
				g.align(g.layers[k])
			} else {
				g.align(g.layers[len(g.layers)-1-k])
			}
		}
	}
}

// block is a run of vertices that touch each other, with the mean of where they would have its first one.
type block struct {
	first, count   int
	weight, wanted float64
}

// align places the vertices of a layer as near as possible to where they would be, by least squares: those that would
// come too near to each other become a block.
func (g *graph) align(layer []int) {
	if len(layer) == 0 {
		return
	}
	below := make([]float64, len(layer)) // how far below the first vertex each is if they all touch
	for i := 1; i < len(layer); i++ {
		above, v := g.vertices[layer[i-1]], g.vertices[layer[i]]
		gap := float64(gapY)
		if above.isBend && v.isBend {
			gap = gapY / 2
		}
		below[i] = below[i-1] + float64(above.height+v.height)/2 + gap
	}

	var blocks []block
	for i, v := range layer {
		wanted, weight := g.wanted(v)
		blocks = append(blocks, block{i, 1, weight, wanted - below[i]})
		for n := len(blocks); n > 1 && blocks[n-1].wanted < blocks[n-2].wanted; n-- {
			a, b := blocks[n-2], blocks[n-1]
			sum := a.weight + b.weight
			blocks[n-2] = block{a.first, a.count + b.count, sum, (a.wanted*a.weight + b.wanted*b.weight) / sum}
			blocks = blocks[:n-1]
		}
	}

	for _, b := range blocks {
		for i := b.first; i < b.first+b.count; i++ {
			g.vertices[layer[i]].middle = b.wanted + below[i]
		}
	}
}

// wanted returns where a vertex would be, and how much that matters: long edges are to be straight.
func (g *graph) wanted(v int) (middle, weight float64) {
	of := g.vertices[v]
	weight = 1
	if of.isBend {
		weight = 4
	}
	near := len(of.left) + len(of.right)
	if near == 0 {
		return of.middle, weight
	}

	sum := 0.0
	for _, side := range [][]int{of.left, of.right} {
		for _, u := range side {
			sum += g.vertices[u].middle
		}
	}
	return sum / float64(near), weight
}

// layout turns places into pixels.
func (g *graph) layout(sizes []Size, edges [][2]int) Layout {
	top, bottom := math.Inf(1), 0.0
	for _, v := range g.vertices {
		top = min(top, v.middle-float64(v.height)/2)
	}
	lefts, rights := make([]int, len(g.layers)), make([]int, len(g.layers))
	x := margin
	for l, layer := range g.layers {
		width, crowd := 0, 0
		for _, v := range layer {
			if v < g.n {
				width = max(width, sizes[v].Width)
			}
			crowd += len(g.vertices[v].right)
		}
		lefts[l], rights[l] = x, x+width
		x += width + gapX + min(crowd, 2*gapX) // many edges need room to be told apart
	}

	out := Layout{Nodes: make([]Point, g.n), Routes: make([][]Point, len(edges))}
	middle := func(v int) int { return margin + int(math.Round(g.vertices[v].middle-top)) }
	for v := range g.n {
		out.Nodes[v] = Point{lefts[g.vertices[v].layer], middle(v) - sizes[v].Height/2}
		bottom = max(bottom, float64(out.Nodes[v].Y+sizes[v].Height))
		out.Width = max(out.Width, out.Nodes[v].X+sizes[v].Width+margin)
	}
	for v := g.n; v < len(g.vertices); v++ {
		bottom = max(bottom, float64(middle(v)+bend))
	}
	out.Height = int(bottom) + margin

	for i, e := range g.edges {
		if e[0] == e[1] {
			continue
		}
		out.Routes[i] = g.route(e, sizes, lefts, rights, middle)
		if g.back[i] { // from its right end back to its left one
			route := out.Routes[i]
			for a, b := 0, len(route)-1; a < b; a, b = a+1, b-1 {
				route[a], route[b] = route[b], route[a]
			}
			out.Routes[i] = append([]Point{route[0]}, route...)
		}
	}
	return out
}

// route returns the way of an edge through its bends.
func (g *graph) route(e [2]int, sizes []Size, lefts, rights []int, middle func(int) int) []Point {
	first, last := g.vertices[e[0]].layer, g.vertices[e[1]].layer
	y := middle(e[0])
	points := []Point{{lefts[first] + sizes[e[0]].Width, y}, {rights[first], y}}
	for l := first + 1; l < last; l++ {
		if v, known := g.chains[[2]int{e[0], l}]; known {
			points = append(points, Point{lefts[l], middle(v)}, Point{rights[l], middle(v)})
		}
	}
	return append(points, Point{lefts[last], middle(e[1])})
}
