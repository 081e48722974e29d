package registry_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/registry/deploy"
)

func TestTheSameDocumentIsTheSameVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	first := w.deploy(shop())
	require.True(t, first.Created)
	require.Equal(t, registry.Building, first.Version.Status)
	require.Equal(t, 1, first.Version.Number)

	again := w.deploy(shop())
	require.False(t, again.Created)
	require.Equal(t, first.Version.ID, again.Version.ID)

	commented := w.deploy(shop("jobs:", "# what customers buy\njobs:"))
	require.False(t, commented.Created, "a comment changes nothing")
	require.Equal(t, first.Version.ID, commented.Version.ID)

	w.cutover(first)
	active := w.deploy(shop())
	require.Equal(t, first.Version.ID, active.Version.ID)
	require.Equal(t, registry.Active, active.Version.Status)
	require.Equal(t, []string{"orders reuse: same definition", "daily reuse: same definition",
		"ranking reuse: same definition"},
		actions(active.Changes))

	var versions int
	require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT count(*) FROM dag_versions`).Scan(&versions))
	require.Equal(t, 1, versions)
}

func TestAFailedVersionIsBuiltAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.deploy(shop())
	_, err := w.pool.Exec(t.Context(), `UPDATE dag_versions SET status = 'Failed', error = 'broken', ended_at = now()`)
	require.NoError(t, err)

	again := w.deploy(shop())
	require.False(t, again.Created)
	require.Equal(t, first.Version.ID, again.Version.ID)
	require.Equal(t, registry.Building, again.Version.Status)
	require.Empty(t, again.Version.Error)
}

func TestASecondDeployNeedsToSupersedeABuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.deploy(shop())

	_, err := w.tryDeploy(shop(otherDaily...))
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)

	second := w.deploy(shop(otherDaily...), func(r *registry.DeployRequest) { r.Supersede = true })
	require.Equal(t, 2, second.Version.Number)
	abandoned, err := w.registry.Version(t.Context(), w.caller, "shop", first.Version.Number)
	require.NoError(t, err)
	require.Equal(t, registry.Abandoned, abandoned.Status)
}

func TestAPlanSaysWhatHappensToEachDataset(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	first := w.plan(shop())
	require.Equal(t, []string{"orders create: new", "daily create: new", "ranking create: new"}, actions(first.Changes))
	require.Nil(t, first.Base)
	_, err := w.registry.Version(t.Context(), w.caller, "shop", 1)
	require.True(t, fault.Is(err, fault.NotFound), "a plan makes no version: %v", err)

	w.serve(shop(), "2026-01-01", "2026-01-02")
	changed := w.plan(shop(otherDaily...))
	require.Equal(t, []string{
		"orders reuse: same definition",
		"daily rebuild: definition changed (2)",
		"ranking rebuild: upstream changed (2)",
	}, actions(changed.Changes))
	require.Equal(t, 1, *changed.Base)
	require.Equal(t, 2, changed.Version)
	require.Empty(t, changed.Status)

	deployed := w.deploy(shop(otherDaily...))
	require.Equal(t, actions(changed.Changes), actions(deployed.Changes), "the deploy does what the plan said")
	require.Equal(t, changed.Hash, deployed.Version.Hash)
}

func TestAPlanSwapsToWhatAnEarlierVersionMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve(shop(), "2026-01-01", "2026-01-02")
	second := w.serve(shop(otherDaily...), "2026-01-01", "2026-01-02")
	require.Equal(t, w.generation(first, "orders"), w.generation(second, "orders"))
	require.NotEqual(t, w.generation(first, "daily"), w.generation(second, "daily"))

	back := w.plan(shop())
	require.Equal(t, 1, back.Version)
	require.Equal(t, []string{
		"orders reuse: same definition",
		"daily swap-only: an earlier version made it (0)",
		"ranking swap-only: an earlier version made it (0)",
	}, actions(back.Changes))

	// Data that has arrived since then has to be caught up on: a new day, and a day that was read again.
	w.publish(second, "orders", "2026-01-02")
	w.publish(second, "orders", "2026-01-03")
	require.Equal(t, []string{
		"orders reuse: same definition",
		"daily swap-only: an earlier version made it (2)",
		"ranking swap-only: an earlier version made it (2)",
	}, actions(w.plan(shop()).Changes))
}

func TestAPlanOfARenamedAndARemovedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve(shop(), "2026-01-01")

	renamed := shop("name: ranking", "name: best\n    renamed_from: ranking", "job: ranking", "job: best")
	require.Equal(t, []string{"orders reuse: same definition", "daily reuse: same definition",
		"best reuse: same definition"},
		actions(w.plan(renamed).Changes))
	second := w.serve(renamed)
	require.Equal(t, w.generation(first, "ranking"), w.generation(second, "best"), "the dataset stays the same one")

	without := `name: shop
jobs:
  - name: orders
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: { time: day }
    config: { path: orders, pattern: "{date}.csv", format: csv }
`
	require.Equal(t, []string{
		"orders reuse: same definition",
		"best remove: job best is no longer in the document",
		"daily remove: job daily is no longer in the document",
	}, actions(w.plan(without).Changes))
}

func TestADeployAgainstAVersionThatIsNoLongerActiveIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(shop())
	none, one := 0, 1

	_, err := w.tryDeploy(shop(otherDaily...), func(r *registry.DeployRequest) { r.Base = &none })
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	_, err = w.tryDeploy(shop(otherDaily...), func(r *registry.DeployRequest) { r.Base = &one })
	require.NoError(t, err)
}

func TestADocumentForAnotherDAGIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := deploy.New(w.registry).Deploy(t.Context(), w.caller, "store", registry.DeployRequest{YAML: shop()})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.ErrorContains(t, err, `"shop"`)
}

func TestAPublishedNameBelongsToOneDAG(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(shop())

	_, err := w.tryDeploy(shop("name: shop", "name: store"))
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "best_customers")
}

func TestAPlanSaysThatARenameNamesNoJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := shop("name: daily", "name: daily\n    renamed_from: days")
	require.Empty(t, w.plan(first).Findings, "the file may come from an installation where that was its name")
	w.serve(first)

	vain := strings.NewReplacer("name: ranking", "name: best\n    renamed_from: rankings", "job: ranking", "job: best").
		Replace(first)
	found := w.plan(vain).Findings
	require.Len(t, found, 3)
	require.Equal(t, contract.RenamesNothing, found[2].Kind)
	require.Equal(t, "job best is new: no version that has served has a job rankings, which `renamed_from` names",
		found[2].Text)
	require.Equal(t, "write `renamed_from: ranking` if it is that job, or leave it out", found[2].Hint)

	right := strings.Replace(vain, "rankings", "ranking", 1)
	require.Empty(t, w.plan(right).Findings)
	w.serve(right)
	require.Empty(t, w.plan(right).Findings, "the line has done its work")
	require.Empty(t, w.plan(strings.Replace(right, "sum(", "avg(", 1)).Findings)
}

func TestADiffShowsARenamedJobAsTheSameOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(shop(), "2026-01-01")
	renamed := []string{"name: daily", "name: spending\n    renamed_from: daily",
		"inputs: [{ from: { job: daily } }]", "inputs: [{ from: { job: spending }, as: daily }]"}
	w.serve(shop(renamed...))
	w.serve(shop("name: daily", "name: spending", "from: { job: daily } }", "from: { job: spending }, as: daily }",
		"name: ranking", "name: best\n    renamed_from: ranking\n    checks: [{ not_null: [rank] }]", "job: ranking",
		"job: best", "sum(price)", "avg(price)"))

	diff := func(from, to int) []deploy.JobChange {
		d, err := deploy.New(w.registry).DiffVersions(t.Context(), w.caller, "shop", from, to)
		require.NoError(t, err)
		return d.Jobs
	}
	require.Equal(t, []deploy.JobChange{{Job: "spending", Change: "renamed", RenamedFrom: "daily"}}, diff(1, 2))
	require.Equal(t, []deploy.JobChange{{Job: "daily", Change: "renamed", RenamedFrom: "spending"}}, diff(2, 1))
	require.Equal(t, []deploy.JobChange{
		{Job: "best", Change: "upstream", RenamedFrom: "ranking", Fields: []string{"checks"}},
		{Job: "spending", Change: "changed", RenamedFrom: "daily", Fields: []string{"config.query"}},
	}, diff(1, 3))
}
