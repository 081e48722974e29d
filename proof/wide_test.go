package proof_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// wideDAG returns a DAG of jobs with many datasets each, whose rows name the deploy that made them.
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
	for _, name := range []string{"stored", "kept"} { // for readers by SQL
		fmt.Fprintf(&b, `
  - name: %s
    operator: sql
    inputs: [{ from: { job: landing } }]
    storage: { postgres: {} }
    config: { query: "SELECT '%s' AS deploy, n FROM landing" }
`, name, deploy)
		publish += fmt.Sprintf("  %s: { from: { job: %s } }\n", name, name)
	}

	for i := range jobs {
		fmt.Fprintf(&b, `
  - name: job_%03[1]d
    operator: command
    inputs: [{ from: { job: landing } }]
    execution_strategy: PerPartition
    outputs: %[2]d
    config:
      argv:
        - sh
        - -c
        - >-
          for d in $(grep -o "\"dir\":\"[^\"]*\"" | cut -d "\"" -f 4);
          do printf "deploy,n\n%[3]s,1\n%[3]s,2\n%[3]s,3\n" > $d/rows.csv; done
`, i, outputs, deploy)
		for o := range outputs {
			publish += fmt.Sprintf("  set_%03d_%02d: { from: { job: job_%03d, output: %d } }\n", i, o, i, o)
		}
	}
	return b.String() + publish
}

// wide measures cutovers and rollbacks of a DAG with many datasets under readers, none of which may see two deploys,
// and checks that a rollback creates no task.
func wide(t *testing.T, jobs, outputs, swaps, readersOf int) {
	w := newWorld(t)
	w.drop("one.csv", "n\n1\n2\n3\n")
	w.start(w.d)
	a := w.serve(wideDAG(jobs, outputs, "A"))
	b := w.serve(wideDAG(jobs, outputs, "B"))
	w.settle()
	names := w.texts(`SELECT name FROM datasets WHERE published ORDER BY name`)
	require.Len(t, names, jobs*outputs+2)
	require.Contains(t, w.read("set_000_00")[0], "B,")

	tasks := w.count(`SELECT FROM tasks`)

	r := &readers{server: w.listen(), sql: w.open(pg.Open, int32(readersOf)),
		asked:    w.open(pg.OpenRequests, int32(readersOf)),
		registry: w.registry, storage: w.storage, caller: w.caller, datasets: names, pause: 50 * time.Millisecond,
		deployOf: generationsOf(t, w.pool, "wide", map[string]int{"A": a.Version.Number, "B": b.Version.Number})}
	ctx, stop := context.WithCancel(t.Context())
	var watch lockWatch
	var reading sync.WaitGroup
	reading.Go(func() { watch.run(ctx, w.pool) })
	reading.Go(func() { r.read(ctx, readersOf) })
	var back, forth []time.Duration
	for range swaps {
		start := time.Now()
		w.rollback("wide")
		back = append(back, time.Since(start))
		require.Contains(t, w.read("set_000_00")[0], "A,")
		w.settle()
		require.Equal(t, tasks, w.count(`SELECT FROM tasks`), "a rollback computes nothing")

		// Parked, so that only the swap is measured, not the plan.
		w.deploy(wideDAG(jobs, outputs, "B"), parked)
		w.reach(b, registry.Ready)
		start = time.Now()
		_, err := w.d.Builds.Promote(t.Context(), w.caller, "wide", b.Version.Number)
		require.NoError(t, err)
		w.reach(b, registry.Active)
		forth = append(forth, time.Since(start))
		require.Equal(t, tasks, w.count(`SELECT FROM tasks`), "existing data is not computed again")
	}

	stop()
	reading.Wait()
	r.report(t)
	t.Logf("%d datasets of %d jobs under %d readers, %d swaps each way: rollback median %v, longest %v; promotion "+
		"%v, %v; the longest wait of a reader for a lock %v",
		len(names), jobs+2, readersOf, swaps, median(back).Round(time.Millisecond), slices.Max(back).
			Round(time.Millisecond),
		median(forth).Round(time.Millisecond), slices.Max(forth).Round(time.Millisecond),
		watch.longest.Round(time.Millisecond))
}

func TestRollbackOf500Datasets(t *testing.T) {
	t.Parallel()
	wide(t, 32, 16, 3, 8)
}
