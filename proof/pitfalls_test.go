package proof_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/registry"
)

// Each test here is about one known way to get deploys wrong.

// chain returns a DAG of a landing folder and two steps. Each of the pairs replaces text in it.
func chain(replace ...string) string {
	return strings.NewReplacer(replace...).Replace(`
name: chain
jobs:
  - name: landing
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: key
    config: { path: ".", pattern: "{key}.csv", format: csv }
  - name: doubled
    operator: sql
    inputs: [{ from: { job: landing }, as: input }]
    execution_strategy: PerPartition
    config: { query: "SELECT n * 2 AS n FROM input" }
  - name: summed
    operator: sql
    inputs: [{ from: { job: doubled }, as: input }]
    execution_strategy: PerPartition
    config: { query: "SELECT sum(n) AS n FROM input" }
publish:
  landed: { from: { job: landing } }
  doubled: { from: { job: doubled } }
  summed: { from: { job: summed } }
`)
}

// The edits of chain that tests make.
var (
	tripled = []string{"n * 2 AS n", "n * 3 AS n"}
	counted = []string{"sum(n) AS n", "count(n) AS n"}
)

func TestAChangedSourceDoesNotSwapInEmptyData(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "n\n1\n")
	w.drop("b.csv", "n\n2\n")
	w.start(w.d)
	w.serve(chain())
	require.Equal(t, []string{"2", "4"}, w.read("summed"))

	// An empty path, and one with less data than is served: neither may replace the live data.
	w.drop("elsewhere/a.csv", "n\n10\n")
	require.NoError(t, os.Mkdir(filepath.Join(w.landing, "empty"), 0o755))

	for _, path := range []string{"empty", "elsewhere"} {
		bad := w.deploy(chain(`path: "."`, "path: "+path))
		w.eventually("the build to fail", func() bool { status, _ := w.status(bad); return status == registry.Failed })
		_, reason := w.status(bad)
		require.Contains(t, reason, "source landing does not find")
		require.Equal(t, []string{"2", "4"}, w.read("summed"))
	}

	// The same document is built and swapped in only once all data is there.
	w.drop("elsewhere/b.csv", "n\n20\n")
	w.serve(chain(`path: "."`, "path: elsewhere"))
	require.Equal(t, []string{"20", "40"}, w.read("summed"))
}

// effects returns chain with a job that has an external effect, a line in a file; rows is what it writes besides.
func effects(dir, text, rows string, replace ...string) string {
	job := fmt.Sprintf(`  - name: told
    operator: command
    inputs: [{ from: { job: doubled } }]
    execution_strategy: PerPartition
    ROWS
    config: { argv: [sh, -c, 'echo %s >> %s; WRITE'] }
publish:
`, text, filepath.Join(dir, "told"))
	write := "true"
	if rows != "outputs: 0" {
		write = `for d in $(grep -o "\"dir\":\"[^\"]*\"" | cut -d "\"" -f 4); do ` +
			`printf "sent\\n1\\n" > $d/rows.csv; done`
	}
	job = strings.NewReplacer("ROWS", rows, "WRITE", write).Replace(job)
	return strings.Replace(chain(replace...), "publish:\n", job, 1)
}

func TestAnEditedEffectDoesNotFireAgain(t *testing.T) {
	t.Parallel()
	for _, rows := range []string{"outputs: 0", "effect: external"} {
		t.Run(rows, func(t *testing.T) {
			t.Parallel()
			editedEffect(t, rows)
		})
	}
}

func editedEffect(t *testing.T, rows string) {
	w, dir := newWorld(t), t.TempDir()
	effects := func(text string, replace ...string) string { return effects(dir, text, rows, replace...) }
	told := func() []string {
		text, err := os.ReadFile(filepath.Join(dir, "told"))
		require.True(t, err == nil || os.IsNotExist(err), "%v", err)
		return strings.Fields(string(text))
	}

	w.drop("a.csv", "n\n1\n")
	w.start(w.d)
	w.serve(effects("first"))
	w.settle()
	require.Empty(t, told(), "existing data fires nothing")

	w.drop("news.csv", "n\n1\n")
	w.poll()
	w.eventually("news to be told of", func() bool { return len(told()) == 1 })
	require.Equal(t, []string{"first"}, told())

	w.serve(effects("second"))
	w.settle()
	w.sweep()
	require.Equal(t, []string{"first"}, told(), "an edit fires nothing")

	// An edit of its input, which gets another generation, fires nothing either.
	w.serve(effects("second", tripled...))
	w.sweep()
	w.rollback("chain")
	w.sweep()
	require.Equal(t, []string{"first"}, told())

	// During a build both versions have the job; the build waits for a runtime that nobody serves.
	building := w.deploy(effects("third", "sum(n) AS n", "max(n) AS n", "- name: summed\n",
		"- name: summed\n    runtime: elsewhere\n"))
	w.drop("b.csv", "n\n2\n")
	w.poll()
	w.eventually("the new file to be told of", func() bool { return len(told()) == 2 })
	require.Equal(t, []string{"first", "second"}, told(), "fired by the live version, once")

	stop := w.start(w.dispatcher("elsewhere", runtimes[1]))
	w.reach(building, registry.Active)
	w.settle()
	w.sweep()
	require.Equal(t, []string{"first", "second"}, told(), "the swap fires nothing")

	w.rollback("chain")
	w.sweep()
	require.Equal(t, []string{"first", "second"}, told(), "nor does the rollback")

	stop()

	w.drop("c.csv", "n\n3\n")
	w.poll()
	w.eventually("news to be told of", func() bool { return len(told()) == 3 })
}

func TestATaskCanceledByACutoverRunsAfterRollback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "n\n1\n")
	w.start(w.d)
	stop := w.start(w.dispatcher("elsewhere", runtimes[1]))
	slow := []string{"- name: summed\n", "- name: summed\n    runtime: elsewhere\n"}
	w.serve(chain(slow...))
	stop()

	// A new file waits for a last step that nobody runs; the next version replaces that step.
	w.drop("b.csv", "n\n2\n")
	w.poll()
	w.eventually("the task to be queued", func() bool { return slices.Contains(w.tasks("summed"), "b Queued") })
	w.serve(chain(counted...))
	w.settle()
	require.Equal(t, []string{"1", "1"}, w.read("summed"))
	require.Contains(t, w.tasks("summed"), "b Canceled superseded")

	w.rollback("chain")
	w.start(w.dispatcher("elsewhere again", runtimes[1]))
	w.eventually("the canceled task to run", func() bool { return slices.Equal([]string{"2", "4"}, w.read("summed")) })
	require.Contains(t, w.tasks("summed"), "b Completed", "under its old id")
}

func TestAbandonThenRedeploy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "n\n1\n")
	w.start(w.d)
	w.serve(chain())

	// The second step waits for a runtime that nobody serves yet.
	next := chain(append(tripled, "- name: summed\n", "- name: summed\n    runtime: elsewhere\n")...)
	building := w.deploy(next)
	w.eventually("half the build", func() bool { return slices.Contains(w.tasks("summed"), "a Queued") })
	_, err := w.d.Builds.Abandon(t.Context(), w.caller, "chain")
	require.NoError(t, err)

	w.settle()
	require.Equal(t, []string{"2"}, w.read("summed"))
	require.Contains(t, w.tasks("summed"), "a Canceled abandoned")

	computed := len(w.tasks("doubled"))

	w.start(w.dispatcher("elsewhere", runtimes[1]))
	again := w.serve(next)
	require.Equal(t, building.Version.Number, again.Version.Number)
	require.Equal(t, []string{"3"}, w.read("summed"))
	require.Len(t, w.tasks("doubled"), computed, "built partitions are kept")
}

// consumer is another DAG that reads what chain publishes.
const consumer = `
name: consumer
jobs:
  - name: taken
    operator: sql
    inputs: [{ from: { dataset: doubled }, as: input }]
    execution_strategy: PerPartition
    partition_by: key
    config: { query: "SELECT n AS taken FROM input" }
publish:
  taken: { from: { job: taken } }
`

func TestConsumersFollowAProducerThereAndBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "n\n1\n")
	w.start(w.d)
	w.serve(chain())
	w.serve(consumer)
	w.settle()
	require.Equal(t, []string{"2"}, w.read("taken"))

	for range 2 { // the second time all revisions are known
		w.serve(chain(tripled...))
		w.eventually("the consumer to follow", func() bool { return slices.Equal([]string{"3"}, w.read("taken")) })
		w.rollback("chain")
		w.eventually("the consumer to follow back", func() bool { return slices.Equal([]string{"2"}, w.read("taken")) })
		w.settle()
	}
	require.Equal(t, []string{"2"}, w.read("taken"))
}

// swappable is a DAG of two datasets in Postgres storage, published under the two names given.
func swappable(first, second string) string {
	return fmt.Sprintf(`
name: names
jobs:
  - name: landing
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: key
    config: { path: ".", pattern: "{key}.csv", format: csv }
  - name: one
    operator: sql
    inputs: [{ from: { job: landing } }]
    execution_strategy: PerPartition
    storage: { postgres: {} }
    config: { query: "SELECT 'one' AS v FROM landing" }
  - name: two
    operator: sql
    inputs: [{ from: { job: landing } }]
    execution_strategy: PerPartition
    storage: { postgres: {} }
    config: { query: "SELECT 'two' AS v FROM landing" }
publish:
  %s: { from: { job: one } }
  %s: { from: { job: two } }
`, first, second)
}

func TestTwoNamesSwapAndRollBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "n\n1\n")
	w.start(w.d)
	looks := func(x, y string) {
		t.Helper()
		require.Equal(t, []string{x, y}, []string{w.read("x")[0], w.read("y")[0]})
		require.Equal(t, []string{x, y},
			w.texts(`SELECT (SELECT v FROM data_acme.x) UNION ALL SELECT (SELECT v FROM data_acme.y)`))
	}

	w.serve(swappable("x", "y"))
	looks("one", "two")
	tasks := w.count(`SELECT FROM tasks`)
	w.serve(swappable("y", "x"), func(r *registry.DeployRequest) { r.AllowMoves = true })
	looks("two", "one")

	_, err := w.d.Builds.Rollback(t.Context(), w.caller, "names", builds.RollbackRequest{})
	require.ErrorContains(t, err, "the name x would move from the dataset of job two to that of job one")
	looks("two", "one")
	_, err = w.d.Builds.Rollback(t.Context(), w.caller, "names", builds.RollbackRequest{AllowMoves: true})
	require.NoError(t, err)
	looks("one", "two")
	w.settle()
	require.Equal(t, tasks, w.count(`SELECT FROM tasks`), "a name is not data")
}

func TestAnOldSnapshotSeesTheOldDataThroughCutovers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, content := range swapFiles {
		w.drop(name, content)
	}

	w.start(w.d)
	w.serve(swapDAG("A"))
	require.NoError(t, pgx.BeginTxFunc(t.Context(), w.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead},
		func(tx pgx.Tx) error {
			// The snapshot is taken and nothing is locked: a reader that has read the views already holds them, and the
			// first deploy would wait for it to end.
			if _, err := tx.Exec(t.Context(), `SELECT 1`); err != nil {
				return err
			}
			for _, next := range []string{"B", "C"} {
				w.serve(swapDAG(next))
			}
			w.rollback("swap")
			seen, err := viewed(t.Context(), tx, viewsOfDeploy)
			require.Equal(t, []string{"A 3", "A 3"}, seen)
			return err
		}))

	seen, err := viewed(t.Context(), w.pool, viewsOfDeploy)
	require.NoError(t, err)
	require.Equal(t, []string{"B 3", "B 3"}, seen)
}

// TestEventsThroughoutABuild publishes news at every stage of a build: live consumers get it at once, as without a
// build, and after the swap nothing is missing or duplicated.
func TestEventsThroughoutABuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("f0.csv", "n\n1\n")
	w.start(w.d)
	w.serve(chain())
	files := 1
	arrive := func(factor int) {
		t.Helper()
		w.drop(fmt.Sprintf("f%d.csv", files), fmt.Sprintf("n\n%d\n", files+1))
		files++
		w.poll()
		var want []string
		for i := range files {
			want = append(want, fmt.Sprint(factor*(i+1)))
		}
		slices.Sort(want)
		for _, name := range []string{"doubled", "summed"} {
			w.eventually("news to be served", func() bool { return slices.Equal(want, w.read(name)) })
		}
	}

	// The last step of the build waits for a runtime that nobody serves yet.
	building := w.deploy(chain(append(tripled, "- name: summed\n", "- name: summed\n    runtime: elsewhere\n")...))
	for range 4 {
		arrive(2)
	}

	status, reason := w.status(building)
	require.Equal(t, registry.Building, status, reason)
	w.start(w.dispatcher("elsewhere", runtimes[1]))
	w.reach(building, registry.Active)
	w.settle()
	for range 2 {
		arrive(3)
	}

	w.settle()
	require.Empty(t, w.texts(`SELECT j.name || ' ' || t.partitions[1] FROM tasks t JOIN jobs j ON j.id = t.job_id
		WHERE t.status = 'Completed' AND t.kind <> 'check' GROUP BY t.job_id, j.name, t.partitions[1]
			HAVING count(*) > 1`), "nothing is computed twice")
}

func TestAnEndlessStreamDoesNotKeepABuildFromServing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("f0000.csv", "n\n1\n")
	w.start(w.d)
	w.serve(chain())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()

	var stream sync.WaitGroup
	files := 1
	stream.Go(func() {
		for ; ctx.Err() == nil; files++ {
			w.drop(fmt.Sprintf("f%04d.csv", files), fmt.Sprintf("n\n%d\n", files+1))
			_, err := w.pool.Exec(ctx, `UPDATE sources SET next_fire_at = now()`)
			if err == nil {
				w.d.Wake()
			}
			// As fast as this machine can: there is always open work, but never so much that, with live work going
			// before it, a build's turn comes only as it grows old.
			for open := true; open && ctx.Err() == nil; {
				_ = w.pool.QueryRow(ctx,
					`SELECT count(*) > 8 FROM tasks, pg_sleep(0.05) WHERE status IN ('Queued', 'Running')`).Scan(&open)
			}
		}
	})

	w.serve(chain(tripled...))
	stop()
	stream.Wait()
	w.settle()
	w.poll()
	w.settle()
	var want []string
	for i := range files {
		want = append(want, fmt.Sprint(3*(i+1)))
	}

	slices.Sort(want)
	require.Equal(t, want, w.read("summed"))
	require.Equal(t, []string{"0"},
		w.texts(`SELECT deadlocks::text FROM pg_stat_database WHERE datname = current_database()`),
		"tasks are made and completed at the same time, and neither waits for the other in a circle")
	t.Logf("%d files came meanwhile", files-1)
}

func TestARenamedUpstreamKeepsWhatWasMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "n\n1\n")
	w.start(w.d)
	before := w.serve(chain())
	tasks := w.count(`SELECT FROM tasks`)

	// A job with another name publishes the dataset under the same name.
	renamed := chain("- name: doubled\n", "- name: twice\n    renamed_from: doubled\n",
		"{ job: doubled }, as: input", "{ job: twice }, as: input", "doubled: { from: { job: doubled } }",
		"doubled: { from: { job: twice } }")
	after := w.serve(renamed)
	w.settle()
	require.Equal(t, w.generation(before, "doubled"), w.generation(after, "twice"))
	require.Equal(t, w.generation(before, "summed"), w.generation(after, "summed"))
	require.Equal(t, tasks, w.count(`SELECT FROM tasks`), "a name is not data")
	require.Equal(t, map[string]string{"landing": "reuse", "twice": "reuse", "summed": "reuse"}, actions(after.Changes))

	w.drop("b.csv", "n\n2\n")
	w.poll()
	w.eventually("the renamed job to go on", func() bool { return slices.Equal([]string{"2", "4"}, w.read("summed")) })
	w.rollback("chain")
	w.settle()
	require.Equal(t, []string{"2", "4"}, w.read("summed"))
	require.Equal(t, 0, w.count(`SELECT FROM tasks WHERE status NOT IN ('Completed')`))
}

func TestASecondDeployWhileOneBuilds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "n\n1\n")
	w.start(w.d)
	w.serve(chain())
	stuck := chain(append(tripled, "- name: summed\n", "- name: summed\n    runtime: elsewhere\n")...)
	first := w.deploy(stuck)
	_, err := w.tryDeploy(chain(counted...))
	require.ErrorContains(t, err, "version 2 of chain is Building")
	require.Equal(t, []string{"2"}, w.read("summed"))

	second := w.serve(chain(counted...), superseding)
	status, reason := w.status(first)
	require.Equal(t, registry.Abandoned, status, reason)
	require.Equal(t, 3, second.Version.Number)

	w.settle()
	require.Equal(t, []string{"1"}, w.read("summed"))
	require.Equal(t, []string{"2"}, w.read("doubled"))
}

func TestTasksRunAsPlanned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"a.csv", "b.csv", "c.csv"} {
		w.drop(name, "n\n1\n")
	}

	w.start(w.d)
	w.serve(chain())
	w.settle()
	before := w.count(`SELECT FROM tasks`)
	plan, err := w.d.Views.Plan(t.Context(), w.caller, "chain", registry.DeployRequest{YAML: chain(tripled...)})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"landing": "reuse", "doubled": "rebuild", "summed": "rebuild"},
		actions(plan.Changes))
	require.Equal(t, before, w.count(`SELECT FROM tasks`), "a plan changes nothing")

	a := w.accounted(chain(tripled...))
	require.Equal(t, keysByJob(plan.Changes), keysByJob(a.deployed.Changes))
	w.reach(a.deployed, registry.Active)
	w.settle()
	a.close(w)
	require.Len(t, a.planned, 6)
	require.Equal(t, 6, w.count(`SELECT FROM tasks`)-before, "each once")
}
