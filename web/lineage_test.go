package web

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/registry"
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

// enough bounds what is drawn in a fraction of a second, on a machine that is busy and looks for races.
const enough = time.Minute

// Pages of 5,000 datasets and of 500 jobs are whole. On an idle machine they take less than three seconds and one.
func TestLargeGraphsAreDrawn(t *testing.T) {
	t.Parallel()
	began := time.Now()
	w := httptest.NewRecorder()
	v := viewLineage(registry.Dataset{Name: "d0"}, graphOf(5000), lineage.Query{Direction: lineage.Both})
	require.NoError(t, render(w, 200, "lineage.html", layout{View: v}))
	took := time.Since(began)
	t.Logf("5,000 datasets: %s, %d bytes", took, w.Body.Len())
	require.Less(t, took, enough)
	require.Equal(t, 5000, strings.Count(w.Body.String(), "<rect "))

	jobs := []views.JobStatus{job("j0")}
	for i := 1; i < 500; i++ {
		jobs = append(jobs, job(fmt.Sprintf("j%d", i), fmt.Sprintf("j%d", max(0, i-1-i%25)), fmt.Sprintf("j%d", i/2)))
	}
	began, w = time.Now(), httptest.NewRecorder()
	detail := views.DAGDetail{DAGStatus: views.DAGStatus{DAG: registry.DAG{Name: "d"}}, Jobs: jobs}
	require.NoError(t, render(w, 200, "dag.html", layout{View: dagView{DAGDetail: detail, Graph: draw(detail)}}))
	took = time.Since(began)
	t.Logf("500 jobs: %s, %d bytes", took, w.Body.Len())
	require.Less(t, took, enough)
	require.Equal(t, 500, strings.Count(w.Body.String(), "<rect "))
}
