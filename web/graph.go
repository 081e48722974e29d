package web

import (
	"fmt"

	"github.com/dagctl/dagctl/dispatcher/views"
)

// graph is a DAG drawn in layers from left to right. Each job is one layer to the right of the last job that it reads.
type graph struct {
	Width, Height int
	Nodes         []node
	Edges         []edge
}

type node struct {
	X, Y, Width, Height int
	Name, Detail, State string
	Link                string
}

type edge struct{ Path string }

// Sizes in user units of the SVG, which are CSS pixels at its natural size.
const (
	nodeWidth, nodeHeight = 190, 46
	gapX, gapY, margin    = 60, 18, 10
)

func draw(dag string, jobs []views.JobStatus) graph {
	layers := layersOf(dag, jobs)
	rows := map[int]int{} // number of nodes by layer
	place := map[string]node{}
	var g graph
	for _, j := range jobs {
		layer := layers[j.Name]
		n := node{
			X: margin + layer*(nodeWidth+gapX), Y: margin + rows[layer]*(nodeHeight+gapY), Width: nodeWidth,
			Height: nodeHeight,
			Name:   shorten(j.Name, 24), Detail: shorten(j.Operator, 26), State: stateOf(j.Tasks),
			Link: "/tasks?dag=" + dag + "&job=" + j.Name,
		}
		rows[layer]++
		place[j.Name] = n
		g.Nodes = append(g.Nodes, n)
		g.Width, g.Height = max(g.Width, n.X+nodeWidth+margin), max(g.Height, n.Y+nodeHeight+margin)
	}

	for _, j := range jobs {
		for _, in := range j.Inputs {
			from, ok := place[in.Job]
			if !ok || in.DAG != dag {
				continue
			}
			to := place[j.Name]
			x1, y1, x2, y2 := from.X+nodeWidth, from.Y+nodeHeight/2, to.X, to.Y+nodeHeight/2
			g.Edges = append(g.Edges, edge{fmt.Sprintf("M %d %d C %d %d, %d %d, %d %d", x1, y1, x1+gapX/2, y1,
				x2-gapX/2, y2, x2, y2)})
		}
	}
	return g
}

// layersOf returns the layer of each job. Documents have no cycles, but drawing must end even if one had.
func layersOf(dag string, jobs []views.JobStatus) map[string]int {
	inputs := map[string][]string{}
	for _, j := range jobs {
		inputs[j.Name] = nil
		for _, in := range j.Inputs {
			if in.DAG == dag && in.Job != j.Name {
				inputs[j.Name] = append(inputs[j.Name], in.Job)
			}
		}
	}

	layers, onPath := map[string]int{}, map[string]bool{}
	var layer func(name string) int
	layer = func(name string) int {
		if l, ok := layers[name]; ok || onPath[name] {
			return l
		}
		onPath[name] = true
		l := 0
		for _, in := range inputs[name] {
			if _, ok := inputs[in]; ok {
				l = max(l, layer(in)+1)
			}
		}
		delete(onPath, name)
		layers[name] = l
		return l
	}

	for name := range inputs {
		layer(name)
	}
	return layers
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
