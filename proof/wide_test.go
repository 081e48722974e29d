package proof_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/registry"
)

// wideDAG has jobs that each make as many datasets as told, every row of which says by which deploy it was made.
func wideDAG(jobs, outputs int, deploy string) string {
	var b strings.Builder
	b.WriteString(`
name: wide
jobs:
  - name: landing
    operator: file_source
    source: { kind: poll, every: 1h }
    config: { path: one.csv, format: csv }
`)
	publish := "publish:\n"
	for i := range jobs {
		fmt.Fprintf(&b, `
  - name: job_%03d
    operator: command
    inputs: [{ from: { job: landing } }]
    execution_strategy: PerPartition
    outputs: %d
    config:
      argv: [sh, -c, 'for d in $(grep -o "\"dir\":\"[^\"]*\"" | cut -d "\"" -f 4); do printf "deploy,n\n%s,%%s\n" "$(basename $d)" > $d/rows.csv; done']
`, i, outputs, deploy)
		for o := range outputs {
			publish += fmt.Sprintf("  set_%03d_%02d: { from: { job: job_%03d, output: %d } }\n", i, o, i, o)
		}
	}
	return b.String() + publish
}

// wide measures cutovers and rollbacks of a DAG with many datasets, and holds that a rollback makes no task.
func wide(t *testing.T, jobs, outputs, swaps int) {
	w := newWorld(t)
	w.drop("one.csv", "n\n1\n")
	w.start(w.d)
	w.serve(wideDAG(jobs, outputs, "A"))
	b := w.serve(wideDAG(jobs, outputs, "B"))
	w.settle()
	require.Equal(t, jobs*outputs, w.count(`SELECT FROM datasets WHERE published`))
	require.Contains(t, w.read("set_000_00")[0], "B,")
	tasks := w.count(`SELECT FROM tasks`)

	var back, forth []time.Duration
	for range swaps {
		start := time.Now()
		w.rollback("wide")
		back = append(back, time.Since(start))
		require.Contains(t, w.read("set_000_00")[0], "A,")
		w.settle()
		require.Equal(t, tasks, w.count(`SELECT FROM tasks`), "a rollback computes nothing")

		// Parked, so that only the swap is measured, and not the plan.
		w.deploy(wideDAG(jobs, outputs, "B"), parked)
		w.reach(b, registry.Ready)
		start = time.Now()
		_, err := w.d.Promote(t.Context(), w.caller, "wide", b.Version.Number)
		require.NoError(t, err)
		w.reach(b, registry.Active)
		forth = append(forth, time.Since(start))
		require.Equal(t, tasks, w.count(`SELECT FROM tasks`), "what is there is not computed again")
	}
	t.Logf("%d datasets of %d jobs: rollback %v, promotion %v (medians of %d)", jobs*outputs, jobs,
		median(back).Round(time.Millisecond), median(forth).Round(time.Millisecond), swaps)
	t.Log(back, forth)
}

func TestRollbackOf500Datasets(t *testing.T) {
	t.Parallel()
	wide(t, 32, 16, 3)
}
