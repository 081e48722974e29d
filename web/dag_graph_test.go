package web

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/web/layered"
)

// A DAG's graph shows what it reads of others and they of it, how far a build is, and what is paused.
func TestDrawADAG(t *testing.T) {
	t.Parallel()
	total := 365
	made := job("made", "raw")
	made.Inputs = append(made.Inputs, registry.InputView{As: "rates", DAG: "money", Job: "rates", Dataset: "rates"},
		registry.InputView{DAG: "secret"})
	made.Outputs = []registry.OutputView{{Name: "made", Dataset: "sales"}}
	made.Tasks.Queued, made.Paused = 2, &tasks.Pause{}
	raw := job("raw")
	raw.Outputs = []registry.OutputView{{Name: "raw", Dataset: "d/raw/0"}}
	raw.Tasks.Running = 1
	g := draw(new(layered.Cache), views.DAGDetail{
		DAGStatus: views.DAGStatus{DAG: registry.DAG{Name: "d"}}, Jobs: []views.JobStatus{raw, made},
		Build:     &views.BuildProgress{Datasets: []views.DatasetProgress{{Job: "raw", Done: 120, Total: &total}}},
		Consumers: []views.ForeignReader{{Dataset: "sales", DAG: "reports", Job: "weekly"}},
	})

	found := map[string]node{}
	for _, n := range g.Nodes {
		found[n.Key] = n
	}
	require.Len(t, found, 6)
	require.Equal(t, "running, 120 of 365", found["job raw"].Detail)
	require.Equal(t, 32, found["job raw"].Share)
	require.NotEmpty(t, found["job raw"].Bar())
	require.Equal(t, "queued paused", found["job made"].State)
	require.Equal(t, "paused, queued, 2 to go", found["job made"].Detail)
	require.Empty(t, found["job made"].Bar())
	require.Equal(t, "/datasets/rates", found["dataset rates"].Link)
	require.Equal(t, "foreign", found["dataset rates"].State)
	require.Empty(t, found["hidden"].Link)
	require.Equal(t, "/dags/reports", found["dag reports"].Link)

	var edges []string
	for _, e := range g.Edges {
		edges = append(edges, g.Nodes[e.from].Key+" > "+g.Nodes[e.to].Key)
	}
	require.ElementsMatch(t, []string{"job raw > job made", "dataset rates > job made", "hidden > job made",
		"job made > dataset sales", "dataset sales > dag reports"}, edges)
}
