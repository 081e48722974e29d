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
	Title               string // the whole text
	State               string // class; of a job, the state of its tasks
	Link                string // empty: it leads nowhere
	Key                 string // names it among the nodes of the graph, also when it is drawn again
	Share               int    // of its work that is done, in percent; 0: nothing is known or done
}

// Bar returns the path of the line that shows the share, empty if there is none.
func (n node) Bar() string {
	if n.Share <= 0 {
		return ""
	}
	const inset = 8
	return fmt.Sprintf("M %d %d h %d", n.X+inset, n.Y+n.Height-4, (n.Width-2*inset)*min(n.Share, 100)/100)
}

type edge struct {
	Path, Class, Title string
	From, To           string // keys of nodes

	from, to int // their indices
}

// Sizes in user units of the SVG, which are CSS pixels at its natural size.
const (
	nodeWidth, nodeHeight = 190, 46
	nameFits, detailFits  = 24, 28 // letters
)

// arrange gives the nodes and edges their places.
func arrange(nodes []node, edges []edge) graph {
	sizes, pairs := make([]layered.Size, len(nodes)), make([][2]int, len(edges))
	for i := range nodes {
		nodes[i].Width, nodes[i].Height = nodeWidth, nodeHeight
		sizes[i] = layered.Size{Width: nodeWidth, Height: nodeHeight}
	}
	for i, e := range edges {
		pairs[i] = [2]int{e.from, e.to}
	}

	l := layered.Place(sizes, pairs)
	g := graph{Width: l.Width, Height: l.Height, Nodes: nodes}
	for i, p := range l.Nodes {
		nodes[i].X, nodes[i].Y = p.X, p.Y
	}
	for i, e := range edges {
		e.From, e.To = nodes[e.from].Key, nodes[e.to].Key
		if e.Path = pathOf(l.Routes[i]); e.Path != "" {
			g.Edges = append(g.Edges, e)
		}
	}
	return g
}

// pathOf writes a route as the path of an SVG: lines and curves by turns.
func pathOf(route []layered.Point) string {
	if len(route) == 0 {
		return ""
	}

	var b strings.Builder
	fmt.Fprintf(&b, "M %d %d", route[0].X, route[0].Y)
	for i := 1; i < len(route); i++ {
		from, to := route[i-1], route[i]
		switch middle := (from.X + to.X) / 2; {
		case from == to:
		case i%2 == 1:
			fmt.Fprintf(&b, " H %d", to.X)
		default:
			fmt.Fprintf(&b, " C %d %d, %d %d, %d %d", middle, from.Y, middle, to.Y, to.X, to.Y)
		}
	}
	return b.String()
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
	return "idle"
}

func shorten(text string, widest int) string {
	if r := []rune(text); len(r) > widest {
		return string(r[:widest-1]) + "…"
	}
	return text
}
