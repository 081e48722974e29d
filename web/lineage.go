package web

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/web/layered"
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
	More             string // the address of a page that shows more
	Records          bool
	Kept             []hiddenField // what the form keeps of the address
	Find             string        // a part of the names that are looked for
	Found            int           // how many there are
	Groups           []lineageGroup
	Graph            graph
	Rows             []lineageRow
	Lines            []lineageLine
	OtherRows        int // that are not listed
	OtherLines       int
	All              string // the address of the page that lists all
	Command          string // that shows the same
}

// What a page of lineage shows at most before it leaves parts to other pages: nodes that are drawn one by one, found
// ones that are drawn beside the group they are of, and rows of its tables.
const nodesDrawn, foundDrawn, rowsListed = 300, 20, 100

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
	if text := params.Get("list"); text != "" && text != "all" {
		return fault.New(fault.Invalid, "`list` is %q", text).WithHint("list=all lists all datasets and edges")
	}
	if q.Direction != lineage.Up && q.Direction != lineage.Down && q.Direction != lineage.Both {
		return fault.New(fault.Invalid, "%q is no direction", q.Direction).WithHint("up, down or both")
	}

	g, err := s.Lineage.Graph(r.Context(), caller, q)
	if err != nil {
		return err
	}
	return render(w, http.StatusOK, "lineage.html", layout{Title: "Lineage of " + d.Name, Tab: "datasets",
		Caller: caller, View: s.viewLineage(d, g, q, params)})
}

// viewLineage makes the page of a graph for the parameters of its address.
func (s *Site) viewLineage(d registry.Dataset, g lineage.Graph, q lineage.Query, params url.Values) lineageView {
	v := lineageView{Name: d.Name, Column: q.Column, At: q.At, Depth: q.Depth, Truncated: g.Truncated,
		TruncatedBy: g.TruncatedBy, Records: g.At.Records, Command: "dagctl lineage " + d.Name,
		More: with(params, "limit", strconv.Itoa(lineage.MaxNodes)), All: with(params, "list", "all"),
		Find: strings.TrimSpace(params.Get("find"))}
	for _, name := range []string{"limit", "open"} {
		for _, value := range params[name] {
			v.Kept = append(v.Kept, hiddenField{name, value})
		}
	}
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
	v.draw(&s.layouts, g, params)
	return v
}

// with returns the address of the same page with another value of a parameter; without it if there is none.
func with(params url.Values, name string, values ...string) string {
	changed := maps.Clone(params)
	if changed == nil {
		changed = url.Values{}
	}
	changed[name] = values
	return "?" + changed.Encode()
}

// draw draws the graph, and lists its nodes and edges for those who do not see it. A large graph is drawn by groups.
func (v *lineageView) draw(layouts *layered.Cache, g lineage.Graph, params url.Values) {
	nodes, place, dag := make([]node, len(g.Nodes)), map[string]int{}, g.Node(g.Root).DAG
	found := make([]bool, len(g.Nodes))
	for i, n := range g.Nodes {
		place[n.ID] = i
		row := lineageRow{Node: n, Label: n.Label(), Link: linkOf(n), State: lineageState(n)}
		if n.Kind == lineage.KindHidden {
			row.Label = "something that you may not read"
		}
		v.Rows = append(v.Rows, row)
		nodes[i] = lineageNode(row, g.Root, dag, v.Column != "")
		if v.Find != "" && strings.Contains(strings.ToLower(row.Label), strings.ToLower(v.Find)) {
			found[i], nodes[i].State = true, strings.TrimSpace(nodes[i].State+" sought")
			v.Found++
		}
	}

	var edges []edge
	for _, e := range g.Edges {
		line := lineageLine{From: v.Rows[place[e.From]].Label, To: v.Rows[place[e.To]].Label,
			By: strings.Trim(cmp.Or(e.Namespace, e.DAG)+"/"+e.Job, "/")}
		drawn := edge{from: place[e.From], to: place[e.To]}
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

	if len(nodes) > nodesDrawn {
		nodes, edges = v.group(g, nodes, edges, found, params)
	}
	v.Graph = arrange(layouts, nodes, edges)
	v.Graph.Label = "Graph of what " + v.Name + " is made from and what is made from it; the tables below say the same"
	v.cut(edgesOf(g, place), found, params.Get("list") == "all")
}

// edgesOf returns the places of the nodes that edges join.
func edgesOf(g lineage.Graph, place map[string]int) [][2]int {
	ends := make([][2]int, len(g.Edges))
	for i, e := range g.Edges {
		ends[i] = [2]int{place[e.From], place[e.To]}
	}
	return ends
}

// cut leaves in the tables what is looked for, and not too much unless all is asked for.
func (v *lineageView) cut(ends [][2]int, found []bool, all bool) {
	if v.Find != "" {
		rows, lines := v.Rows[:0:0], v.Lines[:0:0]
		for i, row := range v.Rows {
			if found[i] {
				rows = append(rows, row)
			}
		}
		for i, line := range v.Lines {
			if found[ends[i][0]] || found[ends[i][1]] {
				lines = append(lines, line)
			}
		}
		v.Rows, v.Lines = rows, lines
	}

	if !all && len(v.Rows) > rowsListed {
		v.Rows, v.OtherRows = v.Rows[:rowsListed], len(v.Rows)-rowsListed
	}
	if !all && len(v.Lines) > rowsListed {
		v.Lines, v.OtherLines = v.Lines[:rowsListed], len(v.Lines)-rowsListed
	}
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
	if row.Kind == lineage.KindDataset && row.Link != "" {
		class = "" // the style knows datasets by where they lead
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
	class = strings.TrimSpace(class)
	return node{Name: name, Detail: detail, Title: title, State: class, Link: row.Link, Key: row.ID}.fitted()
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

// lineageGroup is what a large graph has of one DAG, of another system, or of what is hidden.
type lineageGroup struct {
	Name   string
	Nodes  int
	Late   int
	Found  int
	Open   bool   // its nodes are drawn, and not one box for them
	Toggle string // the address of the page on which it is the other way
}

// Says returns what the box of a group says.
func (g lineageGroup) Says() string {
	text := count(int64(g.Nodes), "node")
	if g.Late > 0 {
		text += ", " + number(int64(g.Late)) + " late"
	}
	if g.Found > 0 {
		text += ", " + number(int64(g.Found)) + " found"
	}
	return text
}

// groupOf names the group that a node is of.
func groupOf(n lineage.Node) string {
	if n.Kind == lineage.KindHidden {
		return "what you may not read"
	}
	return cmp.Or(n.Namespace, n.DAG, "other")
}

// group puts one box in place of all nodes of a group that is not open. The root stays, and so do found nodes unless
// there are many. The address says which groups are open; by default it is the root's, unless that alone is large.
func (v *lineageView) group(
	g lineage.Graph, nodes []node, edges []edge, found []bool, params url.Values,
) ([]node, []edge) {
	places := map[string]int{}
	for i, n := range g.Nodes {
		name := groupOf(n)
		at, known := places[name]
		if !known {
			at = len(v.Groups)
			places[name] = at
			v.Groups = append(v.Groups, lineageGroup{Name: name})
		}
		v.Groups[at].Nodes++
		if n.Late != nil {
			v.Groups[at].Late++
		}
		if found[i] {
			v.Groups[at].Found++
		}
	}
	v.open(groupOf(*g.Node(g.Root)), params)

	var (
		drawn []node
		moved = make([]int, len(nodes)) // the places of all nodes among the drawn ones
		boxes = map[string]int{}
	)
	for i, n := range nodes {
		of := v.Groups[places[groupOf(g.Nodes[i])]]
		alone := of.Open || g.Nodes[i].ID == g.Root || found[i] && v.Found <= foundDrawn
		at, boxed := boxes[of.Name]
		if alone || !boxed {
			at = len(drawn)
			if !alone {
				boxes[of.Name] = at
				n = boxOf(of)
			}
			drawn = append(drawn, n)
		}
		moved[i] = at
	}
	slices.SortFunc(v.Groups, func(a, b lineageGroup) int { return cmp.Compare(a.Name, b.Name) })
	return drawn, moveEdges(edges, moved)
}

// open decides which groups are open.
func (v *lineageView) open(root string, params url.Values) {
	open := params["open"]
	if !params.Has("open") {
		isRoot := func(g lineageGroup) bool { return g.Name == root }
		if i := slices.IndexFunc(v.Groups, isRoot); v.Groups[i].Nodes <= nodesDrawn {
			open = []string{root}
		}
	}

	for i := range v.Groups {
		g := &v.Groups[i]
		g.Open = slices.Contains(open, g.Name)
		others := slices.DeleteFunc(slices.Clone(open), func(name string) bool { return name == g.Name || name == "" })
		if !g.Open {
			others = append(others, g.Name)
		} else if len(others) == 0 {
			others = []string{""} // none, and not those that are open by default
		}
		g.Toggle = with(params, "open", others...)
	}
}

// boxOf draws a group that is not open.
func boxOf(g lineageGroup) node {
	n := node{Key: "group " + g.Name, Name: g.Name, Detail: g.Says(), Title: g.Name + ": " + g.Says() + "; open it",
		State: "group", Link: g.Toggle}
	if g.Late > 0 {
		n.State += " late"
	}
	if g.Found > 0 {
		n.State += " sought"
	}
	return n.fitted()
}

// moveEdges joins what edges join by the nodes' new places. Of several between two places one stays, the most telling.
func moveEdges(edges []edge, moved []int) (joined []edge) {
	places := map[[2]int]int{}
	for _, e := range edges {
		e.from, e.to = moved[e.from], moved[e.to]
		if e.from == e.to {
			continue
		}
		at, known := places[[2]int{e.from, e.to}]
		switch {
		case !known:
			places[[2]int{e.from, e.to}] = len(joined)
			joined = append(joined, e)
		case e.Class > joined[at].Class: // aside, traced, traced unsure
			joined[at].Class = e.Class
		}
	}
	return joined
}
