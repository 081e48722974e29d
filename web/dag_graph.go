package web

import (
	"fmt"
	"strings"

	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/web/layered"
)

// dagGraph gathers the nodes and edges of a DAG's graph.
type dagGraph struct {
	nodes  []node
	edges  []edge
	places map[string]int // of nodes, by key
	drawn  map[[2]int]bool
}

// draw draws a DAG: its jobs with their state and the progress of a build, the datasets that it publishes, and what it
// reads of other DAGs, and they of it.
func draw(layouts *layered.Cache, d views.DAGDetail) graph {
	g := &dagGraph{places: map[string]int{}, drawn: map[[2]int]bool{}}
	filled := progressOf(d.Build)
	for _, j := range d.Jobs {
		g.add(jobNode(d.Name, j, filled[j.Name]))
	}
	for _, j := range d.Jobs {
		g.addInputs(d.Name, j)
		for _, out := range j.Outputs {
			if published(out.Dataset) {
				to := g.add(datasetNode(out.Dataset, "published"))
				g.join(g.places["job "+j.Name], to)
			}
		}
	}

	for _, c := range d.Consumers {
		from, known := g.places["dataset "+c.Dataset]
		if !known {
			continue
		}
		title := "DAG " + c.DAG + " reads " + c.Dataset
		g.join(from, g.add(node{Key: "dag " + c.DAG, Name: c.DAG, Detail: "another DAG", Title: title,
			State: "foreign sink", Link: "/dags/" + c.DAG}))
	}
	made := arrange(layouts, g.nodes, g.edges)
	made.Label = "Graph of the jobs; the table below says the same"
	return made
}

// add adds a node unless there is one of its key, and returns its place.
func (g *dagGraph) add(n node) int {
	place, known := g.places[n.Key]
	if !known {
		place = len(g.nodes)
		n = n.fitted()
		g.nodes, g.places[n.Key] = append(g.nodes, n), place
	}
	return place
}

// join adds an edge unless there is one.
func (g *dagGraph) join(from, to int) {
	if pair := [2]int{from, to}; !g.drawn[pair] {
		g.drawn[pair] = true
		g.edges = append(g.edges, edge{from: from, to: to})
	}
}

// addInputs adds what a job reads: jobs of its DAG, and datasets of others.
func (g *dagGraph) addInputs(dag string, j views.JobStatus) {
	to := g.places["job "+j.Name]
	for _, in := range j.Inputs {
		from, known := g.places["job "+in.Job]
		switch {
		case in.DAG == dag && known:
		case in.DAG == dag:
			continue
		case in.Dataset == "":
			from = g.add(node{Key: "hidden", Name: "hidden", Title: "datasets that you may not read", State: "hidden"})
		default:
			from = g.add(datasetNode(in.Dataset, "of DAG "+in.DAG))
			g.nodes[from].State = "foreign"
		}
		g.join(from, to)
	}
}

// published reports whether a name is one that readers know a dataset by; others are DAG/JOB/OUTPUT.
func published(dataset string) bool { return dataset != "" && !strings.Contains(dataset, "/") }

// datasetNode draws a dataset. It has no class: the style knows datasets by where they lead.
func datasetNode(name, detail string) node {
	return node{Key: "dataset " + name, Name: name, Detail: detail, Title: name + ": " + detail,
		Link: datasetPath(name)}
}

// filling is how many partitions a build has to fill for a job.
type filling struct {
	done, total int
	known       bool // the total is
}

// progressOf returns what a build has to fill, by job; nil while nothing is built.
func progressOf(b *views.BuildProgress) map[string]filling {
	if b == nil {
		return nil
	}
	all := map[string]filling{}
	for _, p := range b.Datasets {
		f, more := all[p.Job]
		f.done, f.known = f.done+p.Done, (f.known || !more) && p.Total != nil
		if p.Total != nil {
			f.total += *p.Total
		}
		all[p.Job] = f
	}
	return all
}

// jobNode draws a job.
func jobNode(dag string, j views.JobStatus, f filling) node {
	state := stateOf(j.Tasks)
	n := node{Key: "job " + j.Name, Name: j.Name, Link: jobPath(dag, j.Name)}
	if state != idle {
		n.State = state
	}
	says := state
	switch {
	case f.known && f.total > 0:
		n.Share = 100 * f.done / f.total
		says = fmt.Sprintf("%s, %s of %s", state, number(int64(f.done)), number(int64(f.total)))
	case j.Tasks.Open() > 0:
		says = fmt.Sprintf("%s, %s to go", state, number(j.Tasks.Open()))
	}
	if j.Paused != nil {
		n.State = strings.TrimSpace(n.State + " paused")
		says = "paused, " + says
	}

	n.Detail, n.Title = says, j.Name+": "+j.Operator+", "+says
	if says == state {
		n.Detail = j.Operator + ", " + says
	}
	return n
}
