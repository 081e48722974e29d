package builds_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/registry"
)

// byColumn is raw → wide → narrow → summed. narrow and summed read columns by name.
const byColumn = `
name: columns
jobs:
` + dispatchertest.Raw + `  - name: wide
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { query: "SELECT content, length(content) AS n FROM raw" }
  - name: narrow
    operator: sql
    inputs: [{ from: { job: wide } }]
    execution_strategy: PerPartition
    config: { query: "SELECT upper(content) AS content FROM wide" }
  - name: summed
    operator: sql
    inputs: [{ from: { job: wide } }]
    partition_by: none
    config: { query: "SELECT sum(length(content))::VARCHAR AS content FROM wide" }
publish:
  columns_wide: { from: { job: wide } }
  columns_narrow: { from: { job: narrow } }
  columns_summed: { from: { job: summed } }
`

// widened is byColumn with one more column in wide.
var widened = dispatchertest.Edit(byColumn, "AS n FROM raw", "AS n, 1 AS one FROM raw")

func columnsWorld(t *testing.T) *dispatchertest.World {
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "bb")
	return w
}

// reasons returns the actions of a plan with their reasons, by job.
func reasons(changes []registry.Change) map[string]string {
	found := map[string]string{}
	for _, c := range changes {
		found[c.Job] = c.Action + ": " + c.Reason
	}
	return found
}

// sweep compares everything with everything.
func sweep(w *dispatchertest.World) {
	w.T.Helper()
	require.NoError(w.T, w.D.Upkeep.Reconcile(w.T.Context(), time.Now()))
	w.Settle()
}

func TestAJobIsReusedWhoseColumnsDidNotChange(t *testing.T) {
	t.Parallel()
	w := columnsWorld(t)
	first := w.Serve(byColumn)
	narrow, summed := w.Attempts("narrow"), w.Attempts("summed")

	second := w.Serve(widened)
	require.Equal(t, map[string]string{"raw": "reuse: same definition", "wide": "rebuild: definition changed",
		"narrow": "reuse: reads content, which did not change", "summed": "reuse: reads content, which did not change",
	}, reasons(second.Changes))
	again := func() {
		t.Helper()
		w.Settle()
		sweep(w)
		w.Settle()
		require.Equal(t, narrow, w.Attempts("narrow"))
		require.Equal(t, summed, w.Attempts("summed"))
		require.Equal(t, map[string][]string{"2024-01-01": {"A"}, "2024-01-02": {"BB"}}, w.Read("columns_narrow"))
		require.Equal(t, map[string][]string{"all": {"3"}}, w.Read("columns_summed"))
	}
	again()

	// A rollback makes nothing again, and neither does the way back, even when the old generation is gone.
	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "columns", builds.RollbackRequest{})
	require.NoError(t, err)
	again()
	w.Serve(widened)
	again()
	w.GC(time.Now().Add(dispatchertest.PastWindow))
	require.Equal(t, 1, w.Count(`SELECT FROM dataset_versions WHERE id = $1 AND purged_at IS NOT NULL`,
		w.Generation(first.Version.ID, "wide")))
	again()

	// What comes later reaches the reused jobs through the new generation.
	w.Probe.Put("raw", "2024-01-02", "ccc")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"A"}, "2024-01-02": {"CCC"}}, w.Read("columns_narrow"))
	require.Equal(t, map[string][]string{"all": {"4"}}, w.Read("columns_summed"))
	require.Equal(t, narrow+1, w.Attempts("narrow"))
}

// While a version is built and waits, live runs the reused jobs from what it reads itself.
func TestReusedJobsFollowLiveUntilTheCutover(t *testing.T) {
	t.Parallel()
	w := columnsWorld(t)
	w.Serve(byColumn)
	deployed := w.Deploy(widened, func(r *registry.DeployRequest) { r.Activate = new(bool) })
	w.Settle()
	status, _ := w.Status(deployed.Version.ID)
	require.Equal(t, registry.Ready, status)
	narrow := w.Attempts("narrow")

	w.Probe.Put("raw", "2024-01-02", "ccc")
	w.Poll()
	w.Settle()
	require.Equal(t, narrow+1, w.Attempts("narrow"), "the candidate's generation made live's job run, too")
	require.Equal(t, map[string][]string{"2024-01-01": {"A"}, "2024-01-02": {"CCC"}}, w.Read("columns_narrow"))

	_, err := w.D.Builds.Promote(t.Context(), w.Caller, "columns", deployed.Version.Number)
	require.NoError(t, err)
	w.Settle()
	sweep(w)
	w.Settle()
	require.Equal(t, narrow+1, w.Attempts("narrow"))
	require.Equal(t, map[string][]string{"all": {"4"}}, w.Read("columns_summed"))
}

// A rollback carries over to what the former version reads, also where the version that it leaves had another job.
func TestARollbackCarriesOverWhatItsJobsWereMadeFrom(t *testing.T) {
	t.Parallel()
	w := columnsWorld(t)
	first := w.Serve(byColumn)
	w.Serve(widened)
	w.Serve(dispatchertest.Edit(widened, "upper(content)", "lower(content)"))
	narrow := w.Attempts("narrow")

	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "columns", builds.RollbackRequest{To: &first.Version.Number})
	require.NoError(t, err)
	w.Settle()
	sweep(w)
	require.Equal(t, map[string][]string{"2024-01-01": {"A"}, "2024-01-02": {"BB"}}, w.Read("columns_narrow"))
	require.Equal(t, narrow, w.Attempts("narrow"))
}

// deepened is byColumn with a job between wide and narrow.
var deepened = dispatchertest.Edit(byColumn,
	"  - name: narrow\n    operator: sql\n    inputs: [{ from: { job: wide } }]", `  - name: middle
    operator: sql
    inputs: [{ from: { job: wide } }]
    execution_strategy: PerPartition
    config: { query: "SELECT content, n FROM wide" }
  - name: narrow
    operator: sql
    inputs: [{ from: { job: middle }, as: wide }]`)

// Revisions are equal over several jobs that are built anew.
func TestWhatIsReusedIsComparedUpToTheSources(t *testing.T) {
	t.Parallel()
	w := columnsWorld(t)
	w.Serve(deepened)
	narrow, middle := w.Attempts("narrow"), w.Attempts("middle")

	// middle reads n, which changes; narrow reads content of middle.
	second := w.Serve(dispatchertest.Edit(deepened, "length(content) AS n", "length(content) + 1 AS n"))
	require.Equal(t, "reuse: reads content, which did not change", reasons(second.Changes)["narrow"])
	sweep(w)
	require.Equal(t, narrow, w.Attempts("narrow"))
	require.Equal(t, middle+2, w.Attempts("middle"))

	// A day that the old generation was behind with is made again, and no other.
	w.Deploy(dispatchertest.Edit(deepened, "length(content) AS n", "length(content) + 2 AS n"))
	w.Exec(`UPDATE partition_inputs SET input_revision = 99 WHERE output_key = '2024-01-02'
		AND output_version = $1`, w.Generation(second.Version.ID, "wide"))
	w.Settle()
	require.Equal(t, narrow+1, w.Attempts("narrow"))
	require.Equal(t, map[string][]string{"2024-01-01": {"A"}, "2024-01-02": {"BB"}}, w.Read("columns_narrow"))
	sweep(w)
	require.Equal(t, narrow+1, w.Attempts("narrow"))
}

// What a forward-only deploy kept was computed by an older definition. It is not taken for what the newer one computes.
func TestKeptPartitionsAreNotCarriedOver(t *testing.T) {
	t.Parallel()
	w := columnsWorld(t)
	w.Serve(byColumn)
	shouted := dispatchertest.Edit(byColumn, "SELECT content, length", "SELECT content || '!' AS content, length")
	w.Serve(shouted, func(r *registry.DeployRequest) { r.ForwardOnly = true })
	require.Equal(t, map[string][]string{"2024-01-01": {"A"}, "2024-01-02": {"BB"}}, w.Read("columns_narrow"))

	w.Serve(dispatchertest.Edit(shouted, "AS n FROM raw", "AS n, 1 AS one FROM raw"))
	sweep(w)
	require.Equal(t, map[string][]string{"2024-01-01": {"A!"}, "2024-01-02": {"BB!"}}, w.Read("columns_narrow"))
	require.Equal(t, map[string][]string{"all": {"5"}}, w.Read("columns_summed"))
}

// A check with severity error makes its job read the columns that it names of an input.
func TestAJobReadsWhatItsChecksRead(t *testing.T) {
	t.Parallel()
	for name, check := range map[string]string{
		"query":         `sql: "SELECT * FROM wide WHERE n < 0"`,
		"relationships": `relationships: { column: n, to: { input: wide, column: n } }`,
		"whole rows":    `sql: "SELECT * FROM (SELECT * EXCLUDE (content) FROM wide) AS f WHERE f.n < 0"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := columnsWorld(t)
			checked := dispatchertest.Edit(byColumn, "SELECT upper(content) AS content FROM wide\" }",
				"SELECT upper(content) AS content, length(content) AS n FROM wide\" }\n    checks: [{ name: positive, "+
					check+" }]")
			w.Serve(checked)
			narrow := w.Attempts("narrow")

			negative := dispatchertest.Edit(checked, "length(content) AS n FROM raw", "-length(content) AS n FROM raw")
			failed := w.Deploy(negative)
			require.Contains(t, reasons(failed.Changes)["narrow"], "rebuild")
			require.Equal(t, "reuse: reads content, which did not change", reasons(failed.Changes)["summed"])
			w.Settle()
			status, reason := w.Status(failed.Version.ID)
			require.Equal(t, registry.Failed, status)
			require.Contains(t, reason, "positive")
			require.Equal(t, narrow+2, w.Attempts("narrow"))

			gone, err := w.TryDeploy(dispatchertest.Edit(checked, "content, length(content) AS n FROM raw",
				"content FROM raw"))
			if name != "whole rows" {
				require.ErrorContains(t, err, "the DAG file has 1 problem", "the name is not there")
				return
			}
			require.NoError(t, err)
			w.Settle()
			status, reason = w.Status(gone.Version.ID)
			require.Equal(t, registry.Failed, status)
			require.Contains(t, reason, "positive")
		})
	}
}

// What a check selects of the rows that it finds is only counted, and a check that warns keeps nothing back.
func TestWhatACheckSelectsIsNotRead(t *testing.T) {
	t.Parallel()
	w := columnsWorld(t)
	checked := dispatchertest.Edit(byColumn, "upper(content) AS content FROM wide\" }", `upper(content) AS content FROM wide" }
    checks:
      - { name: filled, sql: "SELECT * FROM wide WHERE content IS NULL" }
      - { name: positive, sql: "SELECT * FROM wide WHERE n < 0", severity: warn }`)
	w.Serve(byColumn)
	require.Equal(t, "reuse: same definition", reasons(w.Serve(checked).Changes)["narrow"])
	strict := dispatchertest.Edit(checked, ", severity: warn", "")
	require.Equal(t, "rebuild: its checks read other columns", reasons(w.Plan(strict).Changes)["narrow"])
	second := w.Serve(dispatchertest.Edit(checked, "length(content) AS n", "-length(content) AS n"))
	require.Equal(t, "reuse: reads content, which did not change", reasons(second.Changes)["narrow"])
}
