package proof_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// bigDAG has a landing folder and rows of jobs, each of which reads two jobs of the row before.
func bigDAG(jobs, width int, edit string) string {
	var b strings.Builder
	b.WriteString(`
name: big
jobs:
  - name: landing
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: key
    config: { path: ".", pattern: "{key}.csv", format: csv }
`)

	name := func(i int) string {
		if i < 0 {
			return "landing"
		}
		return fmt.Sprintf("job_%04d", i)
	}

	for i := range jobs - 1 {
		query := fmt.Sprintf("SELECT one.n + two.n AS n, %d AS made_by FROM one, two", i)
		if name(i) == edit {
			query = fmt.Sprintf("SELECT one.n - two.n AS n, %d AS made_by FROM one, two", i)
		}
		fmt.Fprintf(&b, `
  - name: %s
    operator: sql
    inputs:
      - { from: { job: %s }, as: one }
      - { from: { job: %s }, as: two, map: latest }
    execution_strategy: PerPartition
    config: { query: %q }
`, name(i), name(i-width), name(i-width-1), query)
	}
	return b.String()
}

// TestADeployOf1000Jobs measures validation, plan and version of a large DAG, and of one edit in its middle.
func TestADeployOf1000Jobs(t *testing.T) {
	t.Parallel()
	const jobs, width = 1000, 50
	w := newWorld(t)
	start := time.Now()
	first := w.deploy(bigDAG(jobs, width, ""))
	t.Logf("the first deploy of %d jobs: %v", jobs, time.Since(start).Round(time.Millisecond))
	require.Len(t, first.Changes, jobs)

	w.start(w.d)
	w.reach(first, registry.Active)

	var plans, edits []time.Duration
	for i := range 3 {
		edited := fmt.Sprintf("job_%04d", 500+i)
		start = time.Now()
		plan, err := deploy.New(w.registry).Plan(t.Context(), w.caller, "big",
			registry.DeployRequest{YAML: bigDAG(jobs, width, edited)})
		require.NoError(t, err)
		plans = append(plans, time.Since(start))
		start = time.Now()
		deployed := w.deploy(bigDAG(jobs, width, edited))
		edits = append(edits, time.Since(start))
		require.Equal(t, actions(plan.Changes), actions(deployed.Changes), "the deploy makes the planned changes")
		require.Equal(t, "rebuild", actions(plan.Changes)[edited])
		require.Equal(t, "reuse", actions(plan.Changes)["job_0499"])
		w.reach(deployed, registry.Active)
	}

	t.Logf("one edit: plan %v, deploy %v (medians of %d)", median(plans).Round(time.Millisecond), median(edits).
		Round(time.Millisecond), len(edits))
}

// TestAPlanSaysWhatASwapCatchesUpOn deploys an earlier version, which has its data but not what has arrived since.
func TestAPlanSaysWhatASwapCatchesUpOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"a.csv", "b.csv", "c.csv"} {
		w.drop(name, "n\n1\n")
	}

	w.start(w.d)
	w.serve(chain())
	w.serve(chain(tripled...))
	plan := func() map[string][]string {
		p, err := w.d.Views.Plan(t.Context(), w.caller, "chain", registry.DeployRequest{YAML: chain()})
		require.NoError(t, err)
		require.Equal(t, map[string]string{"landing": "reuse", "doubled": "swap-only", "summed": "swap-only"},
			actions(p.Changes))
		return keysByJob(p.Changes)
	}
	require.Equal(t, map[string][]string{"landing": nil, "doubled": {}, "summed": {}}, plan())

	w.drop("b.csv", "n\n10\n") // a new revision of a partition that it has
	w.drop("d.csv", "n\n20\n") // a partition that it lacks
	w.poll()
	w.eventually("the news to be served", func() bool {
		return slices.Equal([]string{"3", "3", "30", "60"}, w.read("summed"))
	})

	w.settle()
	require.Equal(t, map[string][]string{"landing": nil, "doubled": {"b", "d"}, "summed": {"b", "d"}}, plan())

	a := w.accounted(chain())
	w.reach(a.deployed, registry.Active)
	a.close(w)
	require.Equal(t, []string{"2", "2", "20", "40"}, w.read("summed"))
	require.Equal(t, map[string]bool{"doubled b": true, "doubled d": true, "summed b": true, "summed d": true},
		a.planned)
}
