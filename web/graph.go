package web

import (
	"fmt"
	"strings"

	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/web/layered"
)

// graph is a drawing of nodes in layers from left to right; the template "graph" writes it as SVG.
type graph struct {
	Width, Height int
	Label         string // for those who do not see it
	Nodes         []node
	Edges         []edge
}

type node struct {
	X, Y, Width, Height int
	Name, Detail        string // what fits
	Title               string // the whole text; empty: it is in the box already
	State               string // class; of a job, the state of its tasks. Empty: there is nothing to see
	Link                string // empty: it leads nowhere
	Key                 string // names it among the nodes of the graph, also when it is drawn again
	Share               int    // of its work that is done, in percent; 0: nothing is known or done
}

// fitted cuts the texts to what fits, and leaves the title out if the box says it all.
func (n node) fitted() node {
	if n.Title == n.Name+": "+n.Detail && len([]rune(n.Name)) <= nameFits && len([]rune(n.Detail)) <= detailFits {
		n.Title = ""
	}
	n.Name, n.Detail = shorten(n.Name, nameFits), shorten(n.Detail, detailFits)
	return n
}

// Bar returns the path of the line that shows the share, empty if there is none.
func (n node) Bar() string {
	if n.Share <= 0 {
		return ""
	}
	const inset = 8
	return fmt.Sprintf("M%d %dh%d", inset, n.Height-4, (n.Width-2*inset)*min(n.Share, 100)/100)
}

type edge struct {
	Path, Class string
	from, to    int // indices of nodes
}

// Ends returns the nodes that each edge joins, by their places: "0 3,1 3". The page says so once for all edges, since
// there are many.
func (g graph) Ends() string {
	var b strings.Builder
	for i, e := range g.Edges {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%d %d", e.from, e.to)
	}
	return b.String()
}

// Sizes in user units of the SVG, which are CSS pixels at its natural size.
const (
	nodeWidth, nodeHeight = 190, 46
	nameFits, detailFits  = 24, 28 // letters
)

// arrange gives the nodes and edges their places, which are found once for graphs of one shape.
func arrange(layouts *layered.Cache, nodes []node, edges []edge) graph {
	sizes, pairs := make([]layered.Size, len(nodes)), make([][2]int, len(edges))
	for i := range nodes {
		nodes[i].Width, nodes[i].Height = nodeWidth, nodeHeight
		sizes[i] = layered.Size{Width: nodeWidth, Height: nodeHeight}
	}
	for i, e := range edges {
		pairs[i] = [2]int{e.from, e.to}
	}

	l := layouts.Place(sizes, pairs)
	g := graph{Width: l.Width, Height: l.Height, Nodes: nodes}
	for i, p := range l.Nodes {
		nodes[i].X, nodes[i].Y = p.X, p.Y
	}
	for i, e := range edges {
		if e.Path = pathOf(l.Routes[i]); e.Path != "" {
			g.Edges = append(g.Edges, e)
		}
	}
	return g
}

// pathOf writes a route as the path of an SVG: lines and curves by turns, each from where the one before it ended.
func pathOf(route []layered.Point) string {
	if len(route) == 0 {
		return ""
	}

	b := fmt.Appendf(nil, "M%d %d", route[0].X, route[0].Y)
	for i := 1; i < len(route); i++ {
		from, to := route[i-1], route[i]
		right, down := to.X-from.X, to.Y-from.Y
		switch {
		case from == to:
		case i%2 == 1 || down == 0:
			b = fmt.Appendf(b, "h%d", right)
		default:
			b = fmt.Appendf(b, "c%d 0 %d %d %d %d", right/2, right/2, down, right, down)
		}
	}
	return string(b)
}

// stateOf returns the worst state that any of a job's tasks is in.
func stateOf(c views.Counts) string {
	switch {
	case c.Dead > 0:
		return "dead"
	case c.Retrying > 0:
		return "retrying"
	case c.Running > 0:
		return "running"
	case c.Queued > 0:
		return "queued"
	}
	return idle
}

// idle is the state of a job without open tasks; there is nothing to see of it.
const idle = "idle"

func shorten(text string, widest int) string {
	if r := []rune(text); len(r) > widest {
		return string(r[:widest-1]) + "…"
	}
	return text
}
