package builds_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/registry/deploy"
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

// A bound that is no partition is refused also where nothing is rebuilt that it could bound.
func TestABoundIsAPartition(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	for _, yaml := range []string{dispatchertest.Upkept, dispatchertest.Tagged("n")} {
		_, err := w.TryDeploy(yaml, func(r *registry.DeployRequest) { r.ForwardOnly, r.ForwardFrom = true, "2026-77" })
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
		require.ErrorContains(t, err, "--forward-only=2026-77")
	}
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
	require.NoError(t, w.D.Upkeep.RemoveAll(t.Context(), dispatchertest.Later(15*24*time.Hour)))
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

// Kept partitions are read by the columns of the new definition, so their values have to fit: a look at them decides,
// in the plan as in the deploy.
func TestAForwardOnlyDeployLooksAtTheValuesThatItKeeps(t *testing.T) {
	t.Parallel()
	yaml := func(wide string) string {
		return dispatchertest.Edit(byColumn, "SELECT content, length(content) AS n FROM raw", wide)
	}
	forward := func(r *registry.DeployRequest) { r.ForwardOnly, r.ForwardFrom = true, "2024-01-03" }
	for name, test := range map[string]struct{ before, after, refused string }{
		"text to a number": {"SELECT content, content AS n FROM raw", "SELECT content, length(content) AS n FROM raw",
			`kept partition 2024-01-02 has "bb" in column n, which is no BIGINT`},
		"a fraction to a whole number": {"SELECT content, length(content) + 0.5::DOUBLE AS n FROM raw",
			"SELECT content, length(content) AS n FROM raw",
			`kept partition 2024-01-01 has "1.5" in column n, which is no BIGINT`},
		"to fewer bits": {"SELECT content, length(content) * 1000 AS n FROM raw",
			"SELECT content, length(content)::TINYINT AS n FROM raw",
			`kept partition 2024-01-01 has "1000" in column n, which is no TINYINT`},
		"what fits": {"SELECT content, length(content)::VARCHAR AS n FROM raw",
			"SELECT content, length(content) AS n FROM raw", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := columnsWorld(t)
			w.Probe.Put("raw", "2024-01-03", "ccc")
			before := strings.Replace(yaml(test.before), "SELECT content, content AS n",
				"SELECT content, CASE content WHEN 'a' THEN '1' ELSE content END AS n", 1)
			w.Serve(before)

			plan, err := w.TryPlan(yaml(test.after), forward)
			require.NoError(t, err)
			kept := func(f contract.Finding) bool { return f.Kind == contract.KeptValues }
			at := slices.IndexFunc(plan.Findings, kept)
			if test.refused == "" {
				require.Negative(t, at, "%v", plan.Findings)
				w.Serve(yaml(test.after), forward)
				require.Equal(t, map[string][]string{"all": {"6"}}, w.Read("columns_summed"))
				return
			}
			require.GreaterOrEqual(t, at, 0, "%v", plan.Findings)
			require.Equal(t, contract.Refuses, plan.Findings[at].Level)
			require.Equal(t, "columns_wide", plan.Findings[at].Dataset)
			require.Contains(t, plan.Findings[at].Text, test.refused)

			_, err = w.TryDeploy(yaml(test.after), forward)
			require.ErrorContains(t, err, test.refused)
			require.True(t, fault.Is(err, fault.Conflict), "%v", err)

			// The values do not matter where nothing is kept.
			w.Serve(yaml(test.after))
		})
	}
}

// What the plan cannot know, because only the run shows it, the gate finds.
func TestAGateLooksAtTheValuesThatAreKept(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	files := func(types string) string {
		return `
name: files
jobs:
  - name: landing
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { path: ".", pattern: "{date}.csv", format: csv` + types + ` }
publish:
  files_landed: { from: { job: landing } }
`
	}
	w.Drop("2024-01-01.csv", "id,v\n1,1.5\n")
	w.Drop("2024-01-02.csv", "id,v\n1,2\n")
	w.Serve(files(", types: { v: DOUBLE }"))

	forward := func(r *registry.DeployRequest) { r.ForwardOnly, r.ForwardFrom = true, "2024-01-02" }
	const refused = `kept partition 2024-01-01 has "1.5" in column v, which is no BIGINT`
	_, err := w.TryDeploy(files(", types: { v: BIGINT }"), forward)
	require.ErrorContains(t, err, refused, "it is declared")

	deployed := w.Deploy(files(", header: true"), forward)
	w.Settle()
	status, reason := w.Status(deployed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, refused)
}

// A source that can be made to make its past again no more keeps what it has made, as everything after it does.
func TestASourceThatIsAskedNoMoreKeepsItsPartitions(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.On("days", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{}, w.Probe.Write(ctx, task, task.Partition.Key)
	})
	const asked = `
name: mail
jobs:
  - name: days
    operator: hook
    source: { kind: manual, first_partition: 2024-01-01, on_deploy: false }
    partition_by: { time: day }
  - name: after
    operator: sql
    inputs: [{ from: { job: days } }]
    config: { query: "SELECT content || '!' AS content FROM days" }
publish: { days: { from: { job: days } }, after: { from: { job: after } } }
`
	w.Serve(asked)
	w.Enqueue("days", dispatcher.EnqueueItem{Partition: "2024-01-01"}, dispatcher.EnqueueItem{Partition: "2024-01-02"})
	w.Settle()
	made := map[string][]string{"2024-01-01": {"2024-01-01!"}, "2024-01-02": {"2024-01-02!"}}
	require.Equal(t, made, w.Read("after"))

	edited := dispatchertest.Edit(asked, ", first_partition: 2024-01-01, on_deploy: false", "")
	_, err := w.TryDeploy(edited)
	require.ErrorContains(t, err, "days would lose 2 partitions that it serves: 2024-01-01, 2024-01-02")
	plan, err := w.TryPlan(edited, func(r *registry.DeployRequest) { r.ForwardOnly = true })
	require.NoError(t, err)
	require.Equal(t, map[string]string{"days": "forward-only: definition changed",
		"after": "forward-only: upstream changed"},
		actions(plan.Changes))
	for _, c := range plan.Changes {
		require.Equal(t, 2, c.Kept, c.Job)
		require.Equal(t, 0, *c.Partitions, c.Job)
	}

	two := w.Serve(edited, func(r *registry.DeployRequest) { r.ForwardOnly = true })
	require.Equal(t, made, w.Read("after"))
	w.Settle()
	require.Equal(t, map[string]int64{"2024-01-01": 1, "2024-01-02": 1}, w.Published("days"))
	require.Equal(t, two.Version.ID, w.Serve(edited).Version.ID, "the same document is the same version")
}

// What another first partition makes of a source is said, although its definition is the same.
func TestAPlanSaysWhatASourceIsAskedFor(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.On("months", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{}, w.Probe.Write(ctx, task, task.Partition.Key)
	})
	from := func(first string) string {
		return dispatchertest.Edit(`
name: mail
jobs:
  - name: months
    operator: hook
    source: { kind: manual, first_partition: 2024-03, on_deploy: false }
    partition_by: { time: month }
`, "2024-03", first)
	}
	w.Serve(from("2024-03"))
	between := func(v1, v2 int) string {
		t.Helper()
		diff, err := deploy.New(w.D.Registry).DiffVersions(t.Context(), w.Caller, "mail", v1, v2)
		require.NoError(t, err)
		return actions(diff.Changes)["months"]
	}
	reason := func(first string) string { return actions(w.Plan(from(first)).Changes)["months"] }
	require.Equal(t, "reuse: asked from 2024-01 on, for 2 more partitions, once it serves", reason("2024-01"))
	require.Equal(t, "reuse: asked from 2024-05 on; what it has made from 2024-03 on stays", reason("2024-05"))
	require.Equal(t, "reuse: same definition", reason("2024-03"))

	// A difference of versions says the same.
	w.Serve(from("2024-01"))
	require.Equal(t, "reuse: asked from 2024-01 on, for 2 more partitions, once it serves", between(1, 2))
	require.Equal(t, "reuse: asked from 2024-03 on; what it has made from 2024-01 on stays", between(2, 1))
}

// Nobody has forced what is rebuilt because a version that never served was forward-only.
func TestAPlanAfterAForwardOnlyOneSaysWhatChanged(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2024-01-01.csv", "v\n1\n")
	const read = `
name: mail
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: { time: day }
    config: { path: ".", pattern: "{date}.csv", format: csv }
  - name: summed
    operator: sql
    inputs: [{ from: { job: raw } }]
    config: { query: "SELECT sum(v)::BIGINT AS v FROM raw" }
  - name: twice
    operator: sql
    inputs: [{ from: { job: summed } }]
    config: { query: "SELECT 2 * v AS v FROM summed" }
`
	w.Serve(read)
	edited := dispatchertest.Edit(read, "format: csv", "format: csv, null_string: NA")
	parked(w, edited, "2024-01-02")
	require.Equal(t, "rebuild: upstream changed",
		actions(w.Plan(dispatchertest.Edit(edited, " AS v FROM raw", " AS v, 1 AS k FROM raw")).Changes)["twice"])
}

// A kept partition takes in what comes to its window later, as it would have by the definition that made it. That the
// window of the new definition is wider makes nothing anew.
func TestAKeptWindowTakesInWhatComesLater(t *testing.T) {
	t.Parallel()
	const days = `
name: days
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: { time: day }
    config: { path: ".", pattern: "{date}.csv", format: csv, types: { v: BIGINT } }
  - name: summed
    operator: sql
    inputs: [{ from: { job: raw }, map: { window: month, require: available } }]
    config: { query: "SELECT 'one ' || sum(v) AS content FROM raw" }
  - name: last
    operator: sql
    inputs: [{ from: { job: raw }, map: { window: { last: 2 }, require: available } }]
    config: { query: "SELECT 'one ' || sum(v) AS content FROM raw" }
publish: { summed: { from: { job: summed } }, last: { from: { job: last } } }
`
	two := dispatchertest.Edit(strings.ReplaceAll(days, "'one '", "'two '"), "last: 2", "last: 3")
	for name, edited := range map[string]string{"the query": two,
		"its input": dispatchertest.Edit(two, "format: csv,", "format: csv, null_string: NA,")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Drop("2024-01-01.csv", "v\n1\n")
			w.Drop("2024-01-04.csv", "v\n2\n")
			w.Serve(days)
			kept := map[string][]string{"2024-01-01": {"one 1"}, "2024-01-02": {"one 1"}, "2024-01-04": {"one 2"},
				"2024-01-05": {"one 2"}}
			require.Equal(t, kept, w.Read("last"))
			w.Serve(edited, func(r *registry.DeployRequest) { r.ForwardOnly = true })
			require.Equal(t, map[string][]string{"2024-01": {"one 3"}}, w.Read("summed"))
			kept["2024-01-03"], kept["2024-01-06"] = []string{"two 1"}, []string{"two 2"}
			require.Equal(t, kept, w.Read("last"))

			w.Drop("2024-01-03.csv", "v\n4\n")
			w.Poll()
			w.Settle()
			require.Equal(t, map[string][]string{"2024-01": {"two 7"}}, w.Read("summed"))
			kept["2024-01-03"], kept["2024-01-04"] = []string{"two 5"}, []string{"two 6"}
			require.Equal(t, kept, w.Read("last"), "the fifth had two days, the third not among them")
		})
	}
}

// The plan that goes back to a forward-only version counts the partitions that it kept and that are to be made anew,
// and what is made then is what the plan counted.
func TestAPlanBackToKeptPartitionsCountsWhatCameSince(t *testing.T) {
	t.Parallel()
	const days = `
name: days
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: { time: day }
    config: { path: ".", pattern: "{date}.csv", format: csv, types: { v: BIGINT } }
  - name: last
    operator: sql
    inputs: [{ from: { job: raw }, map: { window: { last: 2 }, require: available } }]
    config: { query: "SELECT 'one ' || sum(v) AS content FROM raw" }
publish: { last: { from: { job: last } } }
`
	w := dispatchertest.NewWorld(t)
	w.Drop("2024-01-01.csv", "v\n1\n")
	w.Drop("2024-01-04.csv", "v\n2\n")
	w.Serve(days)
	two := strings.ReplaceAll(days, "'one '", "'two '")
	w.Serve(two, func(r *registry.DeployRequest) { r.ForwardOnly = true })
	w.Serve(strings.ReplaceAll(days, "'one '", "'three '"))
	w.Drop("2024-01-03.csv", "v\n4\n")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"three 1"}, "2024-01-02": {"three 1"},
		"2024-01-03": {"three 4"}, "2024-01-04": {"three 6"}, "2024-01-05": {"three 2"}}, w.Read("last"))

	back := w.Plan(two).Changes
	at := slices.IndexFunc(back, func(c registry.Change) bool { return c.Job == "last" })
	require.Equal(t, "swap-only", back[at].Action)
	require.Equal(t, []string{"2024-01-03", "2024-01-04"}, back[at].Keys)
	w.Serve(two)
	require.Equal(t, map[string][]string{"2024-01-01": {"one 1"}, "2024-01-02": {"one 1"}, "2024-01-03": {"two 4"},
		"2024-01-04": {"two 6"}, "2024-01-05": {"one 2"}}, w.Read("last"))
}

// A deploy computes what has no partitions as a whole, and splits anew what it splits. Partitions that are kept stay as
// they are then, and follow what changes there later.
func TestAKeptPartitionFollowsWhatTheDeployComputedAsAWhole(t *testing.T) {
	t.Parallel()
	const joined = `
name: joined
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 10s }
    config: { path: ".", pattern: "raw.csv", format: csv }
  - name: listed
    operator: file_source
    source: { kind: poll, every: 10s }
    config: { path: ".", pattern: "names.csv", format: csv }
  - name: days
    operator: sql
    inputs: [{ from: { job: raw } }]
    partition_by: { time: day, column: day }
    config: { query: "SELECT day, v FROM raw" }
  - name: names
    operator: sql
    inputs: [{ from: { job: listed } }]
    config: { query: "SELECT max(n) AS n FROM listed" }
  - name: named
    operator: sql
    inputs: [{ from: { job: days } }, { from: { job: names }, map: latest, refresh: true }]
    config: { query: "SELECT n || v AS content FROM days, names" }
publish: { named: { from: { job: named } } }
`
	for name, test := range map[string]struct{ old, edited, file, rows, first, second string }{
		"split": {"SELECT day, v FROM raw", "SELECT day, 10 * v AS v FROM raw", "raw.csv",
			"day,v\n2024-01-01,3\n2024-01-02,2\n", "a30", "a2"},
		"whole": {"max(n) AS n", "upper(max(n)) AS n", "names.csv", "n\nb\n", "B1", "B2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Drop("raw.csv", "day,v\n2024-01-01,1\n2024-01-02,2\n")
			w.Drop("names.csv", "n\na\n")
			w.Serve(joined)
			kept := map[string][]string{"2024-01-01": {"a1"}, "2024-01-02": {"a2"}}
			require.Equal(t, kept, w.Read("named"))
			w.Serve(dispatchertest.Edit(joined, test.old, test.edited),
				func(r *registry.DeployRequest) { r.ForwardOnly = true })
			w.Settle()
			require.Equal(t, kept, w.Read("named"))

			w.Drop(test.file, test.rows)
			w.Poll()
			w.Settle()
			followed := map[string][]string{"2024-01-01": {test.first}, "2024-01-02": {test.second}}
			require.Equal(t, followed, w.Read("named"))
		})
	}
}
