package builds_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// parked deploys a DAG forward-only and leaves it ready.
func parked(w *dispatchertest.World, yaml, from string) registry.Version {
	w.T.Helper()
	deployed := w.Deploy(yaml, func(r *registry.DeployRequest) {
		r.ForwardOnly, r.ForwardFrom, r.Activate = true, from, new(bool)
	})
	w.Settle()
	status, reason := w.Status(deployed.Version.ID)
	require.Equal(w.T, registry.Ready, status, reason)
	return deployed.Version
}

// promote cuts over to a version.
func promote(w *dispatchertest.World, v registry.Version) {
	w.T.Helper()
	_, err := w.D.Builds.Promote(w.T.Context(), w.Caller, v.DAG, v.Number)
	require.NoError(w.T, err)
	w.Settle()
	status, reason := w.Status(v.ID)
	require.Equal(w.T, registry.Active, status, reason)
}

// A version that took partitions over takes them over again where live has replaced them since.
func TestAPromoteInheritsWhatLiveReplacedSince(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ before, after string }{
		"files":  {dispatchertest.Upkept, dispatchertest.Tagged("n")},
		"tables": {dispatchertest.InTables, dispatchertest.Edit(dispatchertest.InTables, "tag: one", "tag: two")},
		"source": {dispatchertest.Upkept,
			dispatchertest.Edit(dispatchertest.Tagged("n"), "list: raw", "list: raw, note: x")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", "2024-01-01", "a")
			w.Probe.Put("raw", "2024-01-02", "b")
			w.Serve(test.before)
			two := parked(w, test.after, "2024-01-02")
			w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
				return operators.Result{}, w.Probe.Write(ctx, task, "again")
			})
			w.Follow(w.Backfill(control.BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-01",
				Existing: "all"}))
			require.Equal(t, []string{"again"}, w.Read("letters_made")["2024-01-01"])
			delete(w.Probe.Hooks, "made")

			promote(w, two)
			require.Equal(t, []string{"again"}, w.Read("letters_made")["2024-01-01"],
				"and not what was there at the deploy")
			require.Equal(t, 1, w.Count(`SELECT FROM partition_versions WHERE dataset_version = $1 AND state = 'Published'
				AND partition_key = '2024-01-01'`, w.Generation(two.ID, "made")))
		})
	}
}

// Partitions before the bound that live gets before the promote are taken over, and not looked for.
func TestAPromoteInheritsWhatLiveGotSince(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-03", "c")
	w.Serve(dispatchertest.Upkept)
	edited := dispatchertest.Edit(dispatchertest.Tagged("n"), "list: raw", "list: raw, note: x")
	two := parked(w, edited, "2024-01-03")

	w.Probe.Put("raw", "2024-01-02", "b")
	w.Poll()
	w.Settle()
	w.Probe.Put("raw", "2024-01-02", "") // the source has lost it again
	before := w.Read("letters_made")
	require.Equal(t, []string{"m(b)"}, before["2024-01-02"])

	promote(w, two)
	require.Equal(t, map[string][]string{"2024-01-01": {"m(a)"}, "2024-01-02": {"m(b)"}, "2024-01-03": {"n(c)"}},
		w.Read("letters_made"))
}

// What live has lost since, past its retention, does not come back.
func TestAPromoteDoesNotBringBackWhatLivePurged(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	today := time.Now().UTC()
	day := func(before int) string { return today.AddDate(0, 0, -before).Format(time.DateOnly) }
	w.Probe.Put("raw", day(20), "a")
	w.Probe.Put("raw", day(9), "b")
	w.Probe.Put("raw", day(1), "c")
	kept := func(tag string) string {
		return strings.Replace(dispatchertest.Tagged(tag), "{ job: made }", "{ job: made }, retention: 720h", 1)
	}
	w.Serve(kept("m"))
	two := parked(w, kept("n"), day(1))
	require.NoError(t, w.D.Upkeep.SweepExpired(t.Context(), dispatchertest.Later(15*24*time.Hour)))
	require.Len(t, w.Read("letters_made"), 2)

	promote(w, two)
	require.Equal(t, map[string][]string{day(9): {"m(b)"}, day(1): {"n(c)"}}, w.Read("letters_made"))
}

// A kept partition whose input changes before the promote is computed by the new definition, as it is after it.
func TestALateFileBeforeAPromoteIsComputed(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Serve(dispatchertest.Upkept)
	two := parked(w, dispatchertest.Tagged("n"), "2024-01-02")
	w.Probe.Put("raw", "2024-01-01", "late")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"m(late)"}, w.Read("letters_made")["2024-01-01"])

	promote(w, two)
	require.Equal(t, map[string][]string{"2024-01-01": {"n(late)"}, "2024-01-02": {"n(b)"}}, w.Read("letters_made"))
}

// What a forward-only deploy kept lacks the columns that it added: they are NULL to whoever reads them.
func TestKeptPartitionsHaveTheColumnsOfTheirGeneration(t *testing.T) {
	t.Parallel()
	w := columnsWorld(t)
	w.Serve(byColumn)
	more := dispatchertest.Edit(byColumn, "length(content) AS n",
		"length(content)::VARCHAR || '!' AS n, upper(content) AS orig")
	w.Serve(more, func(r *registry.DeployRequest) { r.ForwardOnly, r.ForwardFrom = true, "2024-01-02" })

	// Alone, beside others, in another DAG, and in a check.
	w.Serve(dispatchertest.Edit(more, "publish:", `  - name: origs
    operator: sql
    inputs: [{ from: { job: wide } }]
    execution_strategy: PerPartition
    config: { query: "SELECT coalesce(orig, 'none') || upper(n) AS content FROM wide" }
    checks: [{ name: known, sql: "SELECT * FROM wide WHERE orig = 'x'" }]
publish:
  columns_origs: { from: { job: origs } }`))
	require.Equal(t, map[string][]string{"2024-01-01": {"none1"}, "2024-01-02": {"BB2!"}}, w.Read("columns_origs"))
	w.Serve(`
name: elsewhere
jobs:
  - name: origs
    operator: sql
    inputs: [{ from: { dataset: columns_wide }, as: wide }]
    partition_by: { time: day }
    execution_strategy: PerPartition
    config: { query: "SELECT coalesce(orig, 'none') AS content FROM wide" }
  - name: all
    operator: sql
    inputs: [{ from: { dataset: columns_wide }, as: wide }]
    partition_by: none
    config: { query: "SELECT string_agg(coalesce(orig, 'none') || n, ',' ORDER BY n) AS content FROM wide" }
publish:
  elsewhere_origs: { from: { job: origs } }
  elsewhere_all: { from: { job: all } }
`)
	require.Equal(t, map[string][]string{"2024-01-01": {"none"}, "2024-01-02": {"BB"}}, w.Read("elsewhere_origs"))
	require.Equal(t, map[string][]string{"all": {"none1,BB2!"}}, w.Read("elsewhere_all"))
}
