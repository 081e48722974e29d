package web

import (
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

func TestWhoseLineageAPathAsksFor(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{"flights/lineage": "flights", "a/b/0/lineage": "a/b/0", "a/b/lineage": "",
		"lineage": "", "/lineage": "", "flights": "", "a/b/lineage/lineage": "a/b/lineage"} {
		got, is := lineageOf(path)
		require.Equal(t, want != "", is, path)
		if is {
			require.Equal(t, want, got)
		}
	}
}

// graphOf returns a graph of n datasets, each made from two before it.
func graphOf(n int) lineage.Graph {
	g := lineage.Graph{Root: "n0", Dataset: "d0"}
	for i := range n {
		id := fmt.Sprintf("n%d", i)
		g.Nodes = append(g.Nodes, lineage.Node{ID: id, Kind: lineage.KindDataset, Level: i / 40,
			Dataset: fmt.Sprintf("d%d", i), DAG: fmt.Sprintf("dag%d", i%10), Job: "j", Served: true})
		for _, back := range []int{1 + i%40, 41} {
			if i >= back {
				g.Edges = append(g.Edges, lineage.Edge{From: fmt.Sprintf("n%d", i-back), To: id, DAG: "dag", Job: "j"})
			}
		}
	}
	return g
}

// lineagePage renders the page of a graph for the query of an address.
func lineagePage(t *testing.T, g lineage.Graph, query string) (v lineageView, html string) {
	t.Helper()
	params, err := url.ParseQuery(query)
	require.NoError(t, err)
	v = new(Site).viewLineage(registry.Dataset{Name: "d0"}, g, lineage.Query{Direction: lineage.Both}, params)
	w := httptest.NewRecorder()
	require.NoError(t, render(w, 200, "lineage.html", layout{View: v}))
	return v, w.Body.String()
}

// The page of 5,000 datasets shows one box for each DAG and opens them, and what it draws and lists is bounded.
func TestALargeLineageIsDrawnByDAGs(t *testing.T) {
	t.Parallel()
	large := func() lineage.Graph { return graphOf(5000) }
	boxes := func(v lineageView) (names []string) {
		for _, n := range v.Graph.Nodes {
			names = append(names, n.Name)
		}
		return names
	}

	// The root's DAG is as large as the others: nothing of it is drawn but the root.
	v, html := lineagePage(t, large(), "limit=5000")
	require.ElementsMatch(t, []string{"d0", "dag0", "dag1", "dag2", "dag3", "dag4", "dag5", "dag6", "dag7", "dag8",
		"dag9"}, boxes(v))
	require.LessOrEqual(t, len(v.Graph.Edges), 11*11)
	require.Less(t, len(html), 100_000)
	require.Contains(t, html, "And 4\u202f900 more.")
	require.Contains(t, html, `<a href="?limit=5000&amp;open=dag3">Open dag3</a> <span class="dim">500 nodes</span>`)

	// One opens, and closes again.
	v, html = lineagePage(t, large(), "limit=5000&open=dag3")
	require.Len(t, v.Graph.Nodes, 1+9+500)
	require.Contains(t, html, `<a href="?limit=5000&amp;open=" aria-current="true">Close dag3</a>`)
	require.Contains(t, html, `href="?limit=5000&amp;open=dag3&amp;open=dag4"`)
	require.Contains(t, html, `<input type="hidden" name="open" value="dag3">`)
	require.Less(t, len(html), 400_000)

	// What is looked for is drawn beside its closed group, and the tables have nothing else.
	v, html = lineagePage(t, large(), "find=D499")
	require.Equal(t, 11, v.Found)
	require.Len(t, v.Graph.Nodes, 11+11)
	require.Len(t, v.Rows, 11)
	require.Contains(t, html, "500 nodes, 2 found")
	require.Contains(t, html, "11 names have “D499” in them.")
	v, _ = lineagePage(t, large(), "find=d4")
	require.Len(t, v.Graph.Nodes, 11, "too many to draw")
	require.Positive(t, v.Groups[0].Found)
	require.Len(t, v.Rows, rowsListed)

	// A graph that is not large has no groups.
	v, html = lineagePage(t, graphOf(nodesDrawn), "list=all")
	require.Len(t, v.Graph.Nodes, nodesDrawn)
	require.Len(t, v.Rows, nodesDrawn)
	require.NotContains(t, html, "List all")
}

// enough bounds what is drawn in a fraction of a second, on a machine that is busy and looks for races.
const enough = time.Minute

// Pages of 5,000 datasets, all groups open, and of 500 jobs are whole. On an idle machine they take less than three
// seconds and one.
func TestLargeGraphsAreDrawn(t *testing.T) {
	t.Parallel()
	query := "list=all"
	for i := range 10 {
		query += fmt.Sprintf("&open=dag%d", i)
	}
	began := time.Now()
	_, html := lineagePage(t, graphOf(5000), query)
	took := time.Since(began)
	t.Logf("5,000 datasets: %s, %d bytes", took, len(html))
	require.Less(t, took, enough)
	require.Equal(t, 5000, strings.Count(html, "<rect/>"))
}

// largeDAG returns a DAG of 500 jobs as `make pages` has it: each reads two of the layer before and publishes.
func largeDAG() views.DAGDetail {
	d := views.DAGDetail{DAGStatus: views.DAGStatus{DAG: registry.DAG{Name: "dag_10",
		Active: &registry.Version{Number: 100, CreatedBy: "token:writer"}}}}
	for i := range 500 {
		name, dataset := fmt.Sprintf("job_%03d", i), fmt.Sprintf("dag_10_%03d", i)
		j := views.JobStatus{JobView: registry.JobView{Name: name, Operator: "sql", Runtime: "dispatcher",
			Outputs: []registry.OutputView{{Name: "0", Dataset: dataset}}}}
		for _, place := range []int{i % 25, (i + 1) % 25} {
			if layer := i / 25; layer > 0 {
				n := 25*layer - 25 + place
				j.Inputs = append(j.Inputs, registry.InputView{DAG: "dag_10", As: fmt.Sprintf("job_%03d", n),
					Job: fmt.Sprintf("job_%03d", n), Dataset: fmt.Sprintf("dag_10_%03d", n)})
			}
		}
		d.Jobs = append(d.Jobs, j)
	}
	return d
}

// The page of a DAG of 500 jobs, each of which publishes, has the whole graph, its versions, the jobs that need
// somebody, and a link to all, within 250 kB. The page of all jobs has every one of them, and no graph.
func TestThePageOfALargeDAGIsSmall(t *testing.T) {
	t.Parallel()
	d := largeDAG()
	d.Jobs[400].Tasks.Dead, d.Jobs[300].Tasks.Queued, d.Jobs[450].Tasks.Retrying = 2, 1, 1
	var s Site
	v := dagView{DAGDetail: d, Graph: draw(&s.layouts, d), Listed: troubledFirst(d.Jobs),
		MayPlan: true, MayDeploy: true, MayOperate: true, MayInspect: true}
	for i := range versionsShown {
		v.Versions = append(v.Versions, deploy.PastVersion{Version: registry.Version{Number: 99 - i,
			Status: registry.Superseded, CreatedBy: "token:writer", SourceRef: "main@0123456789",
			CreatedAt: time.Now()}})
	}
	for _, j := range d.Jobs {
		v.Datasets = append(v.Datasets, j.Outputs[0].Dataset)
	}
	w := httptest.NewRecorder()
	require.NoError(t, render(w, 200, "dag.html", layout{View: v}))
	html := w.Body.String()
	t.Logf("%d bytes", len(html))
	require.Less(t, len(html), 250_000)
	require.Equal(t, 1000, strings.Count(html, "<rect/>"))
	require.Equal(t, 1000, strings.Count(html, "</text></a>"))
	require.Equal(t, 1450, strings.Count(html[strings.Index(html, `class="edges"`):strings.Index(html, `class="nodes"`)],
		"<path "))
	require.Len(t, strings.Split(v.Graph.Ends(), ","), 1450)
	require.Equal(t, 500, strings.Count(html[strings.Index(html, `class="nodes"`):strings.Index(html, "</svg>")],
		`<a href="/datasets/dag_10_`), "one for each dataset")
	require.Equal(t, 500, strings.Count(html, "<option>"))
	require.Contains(t, html, `<a href="?jobs=all">All 500 jobs</a>`)
	require.Equal(t, []string{"job_400", "job_450", "job_300", "job_000"},
		[]string{v.Listed[0].Name, v.Listed[1].Name, v.Listed[2].Name, v.Listed[3].Name})

	w = httptest.NewRecorder()
	v.Listed, v.AllJobs = d.Jobs, true
	require.NoError(t, render(w, 200, "dag.html", layout{View: v}))
	require.Equal(t, 501, strings.Count(w.Body.String(), "<tr>"))
	require.NotContains(t, w.Body.String(), "<svg")
	require.Less(t, w.Body.Len(), 250_000)
}

// A layout is kept by the shape of the graph that a caller sees: the next one, who sees another graph, has that one's.
func TestAKeptLayoutShowsNothingHidden(t *testing.T) {
	t.Parallel()
	var s Site
	all := views.DAGDetail{DAGStatus: views.DAGStatus{DAG: registry.DAG{Name: "d"}},
		Jobs: []views.JobStatus{job("a"), job("b", "a"), job("c", "b")}}
	all.Jobs[1].Inputs = append(all.Jobs[1].Inputs,
		registry.InputView{As: "pay", DAG: "hr", Job: "pay", Dataset: "pay"})
	some := all
	some.Jobs = []views.JobStatus{all.Jobs[0], job("b", "a"), all.Jobs[2]}
	some.Jobs[1].Inputs = append(some.Jobs[1].Inputs, registry.InputView{})

	page := func(d views.DAGDetail, s *Site) string {
		w := httptest.NewRecorder()
		require.NoError(t, render(w, 200, "dag.html", layout{View: dagView{DAGDetail: d, Graph: draw(&s.layouts, d)}}))
		return w.Body.String()
	}
	admin := page(all, &s)
	require.Contains(t, admin, "pay")
	reader := page(some, &s)
	require.NotContains(t, reader, "pay")
	require.Equal(t, page(some, new(Site)), reader, "as if nobody had asked before")
	require.Equal(t, 1, s.layouts.Placed(), "both graphs have the same shape")

	// States are drawn on what is kept, and of jobs that are not shown there is no trace.
	all.Jobs[0].Tasks.Running = 3
	require.Contains(t, page(all, &s), `class="running"`)
	require.Equal(t, 1, s.layouts.Placed())
	some.Jobs = some.Jobs[:2]
	require.Equal(t, page(some, new(Site)), page(some, &s))
	require.Equal(t, 2, s.layouts.Placed())
}
