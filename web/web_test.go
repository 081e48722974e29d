package web

import (
	"encoding/json"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/web/layered"
)

func job(name string, inputs ...string) views.JobStatus {
	j := views.JobStatus{JobView: registry.JobView{Name: name, Operator: "sql"}}
	for _, in := range inputs {
		j.Inputs = append(j.Inputs, registry.InputView{DAG: "d", Job: in})
	}
	return j
}

func TestDraw(t *testing.T) {
	t.Parallel()
	jobs := []views.JobStatus{job("landing"), job("daily", "landing"), job("monthly", "daily", "landing"),
		job("other", "landing")}
	jobs[3].Tasks.Dead = 1
	jobs[3].Inputs = append(jobs[3].Inputs, registry.InputView{DAG: "elsewhere", Job: "daily"},
		registry.InputView{As: "hidden"})

	g := drawn("d", jobs)
	require.Len(t, g.Nodes, 5, "the jobs, and one for all that is hidden")
	require.Len(t, g.Edges, 5)

	x := func(i int) int { return g.Nodes[i].X }
	require.Less(t, x(0), x(1))
	require.Less(t, x(1), x(2), "one layer to the right of the last job it reads")
	require.Equal(t, x(1), x(3))
	require.NotEqual(t, g.Nodes[1].Y, g.Nodes[3].Y)
	require.Equal(t, "dead", g.Nodes[3].State)

	for _, n := range g.Nodes {
		require.LessOrEqual(t, n.X+n.Width, g.Width)
		require.LessOrEqual(t, n.Y+n.Height, g.Height)
	}
}

func TestDrawEndsOnACircle(t *testing.T) {
	t.Parallel()
	require.Len(t, drawn("d", []views.JobStatus{job("a", "b"), job("b", "a"), job("c", "c")}).Nodes, 3)
	require.Empty(t, drawn("d", nil).Nodes)
}

func TestWording(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	earlier := now.Add(-90 * time.Minute)
	require.Equal(t, "1 h ago", ago(now, earlier))
	require.Equal(t, "1 h ago", ago(now, &earlier))
	require.Equal(t, "in 5 s", ago(now, now.Add(5*time.Second)))
	require.Empty(t, ago(now, (*time.Time)(nil)))
	require.Empty(t, ago(now, time.Time{}))
	require.Equal(t, "1 h", between(&earlier, &now))
	require.Empty(t, between(nil, &now))
	require.Equal(t, "1023 B", Size(1023))
	require.Equal(t, "1.5 MB", Size(3<<19))
	require.Equal(t, "-1\u202f234\u202f567", number(-1234567))
	require.Equal(t, "999", number(999))
	require.Equal(t, "{\n  \"a\": 1\n}", indent(json.RawMessage(`{"a":1}`)))
	require.Empty(t, indent(json.RawMessage(`null`)))
	require.Equal(t, "/datasets/a/b%3Fc/d", datasetPath("a/b?c/d"))
	require.Equal(t, "[1,null]", cell([]any{1, nil}))
	require.Empty(t, cell(nil))
}

func TestErrorPageEscapes(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	RenderError(w, nil, &rest.Problem{Status: 404, Title: "Not Found", Detail: `no <script>alert(1)</script>`,
		Hint: "look", RequestID: "r1"})
	require.Equal(t, 404, w.Code)
	require.Contains(t, w.Body.String(), "no &lt;script&gt;")
	require.NotContains(t, w.Body.String(), "<script>")
	require.Contains(t, w.Body.String(), "Request r1")
}

func TestLinksToFurtherPagesAreQueries(t *testing.T) {
	t.Parallel()
	const next = "after=a%26b&dag=d"
	for page, view := range map[string]any{
		"late.html":     lateView{Datasets: []registry.Dataset{{Late: &registry.Late{}}}, Next: next},
		"datasets.html": datasetsView{Datasets: []registry.Dataset{{Name: "a"}}, Next: next},
		"tasks.html":    tasksView{Tasks: []views.Task{{DAG: "d"}}, Next: next},
	} {
		w := httptest.NewRecorder()
		require.NoError(t, render(w, 200, page, layout{View: view}))
		require.Contains(t, w.Body.String(), "?after=a%26b&amp;dag=d\"", page)
	}
}

// drawn draws the jobs of a DAG.
func drawn(dag string, jobs []views.JobStatus) graph {
	return draw(new(layered.Cache),
		views.DAGDetail{DAGStatus: views.DAGStatus{DAG: registry.DAG{Name: dag}}, Jobs: jobs})
}
