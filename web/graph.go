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
}

type edge struct {
	Path, Class, Title string

	from, to int // indices of nodes
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

// draw draws the jobs of a DAG.
func draw(dag string, jobs []views.JobStatus) graph {
	nodes, place := make([]node, len(jobs)), map[string]int{}
	for i, j := range jobs {
		place[j.Name] = i
		state := stateOf(j.Tasks)
		nodes[i] = node{Name: shorten(j.Name, nameFits), Detail: shorten(j.Operator+", "+state, detailFits),
			Title: j.Name + ": " + j.Operator + ", " + state, State: state,
			Link: "/tasks?dag=" + dag + "&job=" + j.Name}
	}

	var edges []edge
	drawn := map[[2]int]bool{}
	for i, j := range jobs {
		for _, in := range j.Inputs {
			from, ok := place[in.Job]
			if !ok || in.DAG != dag || drawn[[2]int{from, i}] {
				continue
			}
			drawn[[2]int{from, i}] = true
			edges = append(edges, edge{from: from, to: i, Title: in.Job + " to " + j.Name})
		}
	}
	g := arrange(nodes, edges)
	g.Label = "Graph of the jobs; the table below says the same"
	return g
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
