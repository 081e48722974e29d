package web

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/registry"
)

// lineageOf returns the dataset whose lineage a path below /datasets/ asks for: NAME/lineage or DAG/JOB/OUTPUT/lineage.
// DAG/JOB/lineage is a dataset itself.
func lineageOf(path string) (dataset string, is bool) {
	dataset, is = strings.CutSuffix(path, "/lineage")
	slashes := strings.Count(dataset, "/")
	return dataset, is && dataset != "" && (slashes == 0 || slashes == 2)
}

type lineageView struct {
	Name, Column, At string
	Depth            int
	Moment           string // for people; empty: now
	Directions       []choice
	Columns          []choice // of the dataset
	Truncated        bool
	TruncatedBy      string
	Records          bool
	Graph            graph
	Rows             []lineageRow
	Lines            []lineageLine
	Command          string // that shows the same
}

type choice struct {
	Value, Text string
	Chosen      bool
}

type lineageRow struct {
	lineage.Node
	Label, Link, State string
}

type lineageLine struct{ From, To, By, Columns string }

func (s *Site) lineage(w http.ResponseWriter, r *http.Request, caller authz.Caller, name string) error {
	d, err := s.Registry.Dataset(r.Context(), caller, name)
	if err != nil {
		return err
	}

	params := r.URL.Query()
	q := lineage.Query{Dataset: d.ID.String(), Direction: cmp.Or(params.Get("direction"), lineage.Both), Nodes: 300,
		Depth: 5, At: params.Get("at"), Column: params.Get("column"), Whole: true}
	if text := params.Get("depth"); text != "" {
		if q.Depth, err = strconv.Atoi(text); err != nil || q.Depth < 1 || q.Depth > lineage.MaxDepth {
			return fault.New(fault.Invalid, "%q is no number of steps", text).
				WithHint("between 1 and %d", lineage.MaxDepth)
		}
	}
	if text := params.Get("limit"); text != "" {
		if q.Nodes, err = strconv.Atoi(text); err != nil || q.Nodes < 1 || q.Nodes > lineage.MaxNodes {
			return fault.New(fault.Invalid, "%q is no number of datasets", text).
				WithHint("between 1 and %d", lineage.MaxNodes)
		}
	}
	if q.Direction != lineage.Up && q.Direction != lineage.Down && q.Direction != lineage.Both {
		return fault.New(fault.Invalid, "%q is no direction", q.Direction).WithHint("up, down or both")
	}

	g, err := s.Lineage.Graph(r.Context(), caller, q)
	if err != nil {
		return err
	}
	return render(w, http.StatusOK, "lineage.html", layout{Title: "Lineage of " + d.Name, Tab: "datasets",
		Caller: caller, View: viewLineage(d, g, q)})
}

// viewLineage makes the page of a graph.
func viewLineage(d registry.Dataset, g lineage.Graph, q lineage.Query) lineageView {
	v := lineageView{Name: d.Name, Column: q.Column, At: q.At, Depth: q.Depth, Truncated: g.Truncated,
		TruncatedBy: g.TruncatedBy, Records: g.At.Records, Command: "dagctl lineage " + d.Name}
	for _, c := range []choice{{Value: lineage.Both, Text: "both directions"},
		{Value: lineage.Up, Text: "what it is made from"}, {Value: lineage.Down, Text: "what is made from it"}} {
		c.Chosen = c.Value == q.Direction
		v.Directions = append(v.Directions, c)
	}
	for _, c := range d.Columns {
		v.Columns = append(v.Columns, choice{Value: c.Name, Chosen: c.Name == q.Column})
	}

	if g.At.Version > 0 {
		v.Moment = fmt.Sprintf("As of version v%d of %s", g.At.Version, g.At.DAG)
	}
	if g.At.Time != nil {
		v.Moment = strings.TrimSpace(cmp.Or(v.Moment, "As it was") + " at " + g.At.Time.UTC().Format(time.RFC3339))
	}
	if q.Column != "" {
		v.Command += "." + q.Column
	}
	if q.Direction != lineage.Both {
		v.Command += " --" + q.Direction
	}
	if q.At != "" {
		v.Command += " --at " + q.At
	}

	slices.SortStableFunc(g.Nodes, func(a, b lineage.Node) int { return cmp.Compare(a.Level, b.Level) })
	v.draw(g)
	return v
}

// draw draws the graph, and lists its nodes and edges for those who do not see it.
func (v *lineageView) draw(g lineage.Graph) {
	nodes, place, dag := make([]node, len(g.Nodes)), map[string]int{}, g.Node(g.Root).DAG
	for i, n := range g.Nodes {
		place[n.ID] = i
		row := lineageRow{Node: n, Label: n.Label(), Link: linkOf(n), State: lineageState(n)}
		if n.Kind == lineage.KindHidden {
			row.Label = "something that you may not read"
		}
		v.Rows = append(v.Rows, row)
		nodes[i] = lineageNode(row, g.Root, dag, v.Column != "")
	}

	var edges []edge
	for _, e := range g.Edges {
		line := lineageLine{From: v.Rows[place[e.From]].Label, To: v.Rows[place[e.To]].Label,
			By: strings.Trim(cmp.Or(e.Namespace, e.DAG)+"/"+e.Job, "/")}
		drawn := edge{from: place[e.From], to: place[e.To], Title: line.From + " to " + line.To}
		if v.Column != "" {
			line.Columns = columnsText(e)
			switch {
			case e.Traced && e.ColumnsUnknown:
				drawn.Class = "traced unsure"
			case e.Traced:
				drawn.Class = "traced"
			default:
				drawn.Class = "aside"
			}
		}
		v.Lines, edges = append(v.Lines, line), append(edges, drawn)
	}
	v.Graph = arrange(nodes, edges)
	v.Graph.Label = "Graph of what " + v.Name + " is made from and what is made from it; the tables below say the same"
}

// lineageNode draws a node of a graph around a dataset of a DAG.
func lineageNode(row lineageRow, root, dag string, traced bool) node {
	detail, class := row.DAG+"/"+row.Job, row.Kind
	switch row.Kind {
	case lineage.KindHidden:
		detail = ""
	case lineage.KindSource:
		detail = strings.TrimSpace(row.Source + " source")
	case lineage.KindSink:
		detail = "job without a dataset"
	case lineage.KindExternal:
		class += " foreign"
		detail = row.Namespace
	}
	if row.ID == root {
		class += " root"
	} else if row.DAG != "" && row.DAG != dag {
		class += " foreign"
	}
	if row.Node.Late != nil {
		class += " late"
	}
	if traced && !row.Traced {
		class += " aside"
	}

	name := row.Label
	if row.Kind == lineage.KindHidden {
		name = "hidden"
	}
	if traced && len(row.Columns) > 0 {
		detail = strings.Join(row.Columns, ", ")
	} else if row.State != "" && row.State != "served" {
		detail = row.State + ", " + detail
	}
	title := strings.Trim(row.Label+": "+detail, ": ")
	return node{Name: shorten(name, nameFits), Detail: shorten(detail, detailFits), Title: title, State: class,
		Link: row.Link, Key: row.ID}
}

// lineageState says how a dataset is, for people.
func lineageState(n lineage.Node) string {
	var states []string
	switch {
	case n.Kind != lineage.KindDataset:
	case n.Deleted:
		states = append(states, "deleted since")
	case n.Late != nil:
		states = append(states, "late")
	case n.Served:
		states = append(states, "served")
	default:
		states = append(states, "not served")
	}

	if n.More {
		states = append(states, "more")
	}
	return strings.Join(states, ", ")
}

// linkOf returns the page of a node: the lineage of a dataset, the tasks of a job.
func linkOf(n lineage.Node) string {
	switch {
	case n.Kind == lineage.KindHidden || n.Kind == lineage.KindExternal || n.Deleted:
		return ""
	case n.Kind == lineage.KindDataset:
		return datasetPath(cmp.Or(n.NameNow, n.Dataset)) + "/lineage"
	}
	return jobPath(n.DAG, n.Job)
}

// columnsText says which of its columns an edge is about.
func columnsText(e lineage.Edge) string {
	if e.ColumnsUnknown {
		return "not known"
	}
	var all []string
	for _, c := range e.Columns {
		text := cmp.Or(c.From, "?") + " → " + cmp.Or(c.To, "?")
		if c.Transform != "" {
			text += " (" + string(c.Transform) + ")"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}
