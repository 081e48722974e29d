package builds_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
)

// monthly is Upkept with a partition a month.
var monthly = dispatchertest.Edit(dispatchertest.Upkept, "time: day", "time: month", "list: raw", "list: months")

// copied reads letters_made, and says nothing about partitions.
const copied = `
name: words
jobs:
  - name: spelled
    operator: hook
    inputs: [{ from: { dataset: letters_made } }]
    config: { tag: w }
  - name: again
    operator: hook
    inputs: [{ from: { job: spelled } }]
    config: { tag: x }
publish:
  words: { from: { job: again } }
`

// spelledBy returns copied with partitions of its own.
func spelledBy(partitionBy string) string {
	const config = "    config: { tag: w }"
	return dispatchertest.Edit(copied, config, "    partition_by: "+partitionBy+"\n"+config)
}

// monthWorld returns a world that serves letters_made with two months.
func monthWorld(t *testing.T) *dispatchertest.World {
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("months", "2024-01", "a")
	w.Probe.Put("months", "2024-02", "b")
	w.Serve(monthly)
	return w
}

// A job inherits the partitioning of an input from another DAG, as it does within one.
func TestForeignPartitionsAreInherited(t *testing.T) {
	t.Parallel()
	w := monthWorld(t)
	w.Serve(copied)
	require.Equal(t, map[string][]string{"2024-01": {"x(w(m(a)))"}, "2024-02": {"x(w(m(b)))"}}, w.Read("words"))
}

// A mapping that cannot be is refused at plan and deploy, with its place in the file and a suggestion.
func TestForeignMappingIsChecked(t *testing.T) {
	t.Parallel()
	w := monthWorld(t)
	daily := spelledBy("{ time: day }")
	_, planned := w.TryPlan(daily)
	_, deployed := w.TryDeploy(daily)
	for _, err := range []error{planned, deployed} {
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
		require.Equal(t, []fault.Problem{{Location: "dag.yaml:6:33", Code: "mapping",
			Message: `job "spelled" has day partitions, but input "letters_made" has month partitions: ` +
				"no partition of it is the same",
			Suggestion: "`map: within` reads the month that each day lies in"}},
			problemsOf(err))
	}
}

// problemsOf returns the problems of a refusal.
func problemsOf(err error) []fault.Problem {
	var refused *fault.Error
	if !errors.As(err, &refused) {
		return nil
	}
	return refused.Problems
}

// What is hidden from the deployer is as absent as what does not exist.
func TestForeignPartitionsAreHidden(t *testing.T) {
	t.Parallel()
	w := monthWorld(t)
	w.Exec(`UPDATE datasets SET read_roles = '{finance}' WHERE name = 'letters_made'`)
	writer := &dispatchertest.Tenant{W: w, Caller: w.Caller, Landing: w.Landing}
	writer.Caller.Role = authz.RoleWriter

	daily := spelledBy("{ time: day }")
	_, hidden := writer.TryDeploy(daily)
	_, absent := writer.TryDeploy(dispatchertest.Edit(daily, "letters_made", "letters_none"))
	require.Equal(t, "unknown_dataset", problemsOf(hidden)[0].Code)
	require.Equal(t, "unknown_dataset", problemsOf(absent)[0].Code)
}

// Columns of datasets of other DAGs are looked at by plan and deploy, for those who may read them.
func TestForeignColumnsAreChecked(t *testing.T) {
	t.Parallel()
	w := dayWorld(t)
	const counted = `
name: counts
jobs:
  - name: counted
    operator: sql
    inputs: [{ from: { dataset: letters_made }, as: letters }]
    config: { query: "SELECT count(DISTINCT contents) AS n FROM letters" }
`
	_, planned := w.TryPlan(counted)
	_, deployed := w.TryDeploy(counted)
	for _, err := range []error{planned, deployed} {
		require.Equal(t, []fault.Problem{{Location: "dag.yaml:7:45", Code: "reference",
			Message: `there is no column "contents"`, Suggestion: `did you mean "content"?`}}, problemsOf(err))
	}
	w.Serve(dispatchertest.Edit(counted, "contents", "content"))

	w.Exec(`UPDATE datasets SET read_roles = '{finance}' WHERE name = 'letters_made'`)
	writer := &dispatchertest.Tenant{W: w, Caller: w.Caller, Landing: w.Landing}
	writer.Caller.Role = authz.RoleWriter
	_, hidden := writer.TryDeploy(counted)
	require.Len(t, problemsOf(hidden), 1)
	require.Equal(t, "unknown_dataset", problemsOf(hidden)[0].Code)
	require.NotContains(t, problemsOf(hidden)[0].Suggestion, "content")
}

// A file that inherits partitions means another version once they have changed.
func TestForeignPartitionsAreHashed(t *testing.T) {
	t.Parallel()
	w := monthWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "c")
	updated := spelledBy("none")
	before := w.Serve(updated)
	require.Equal(t, before.Version.ID, w.Deploy(updated).Version.ID, "nothing has changed")
	w.Serve(dispatchertest.Upkept)
	after := w.Serve(updated)
	require.NotEqual(t, before.Version.ID, after.Version.ID)
	status, reason := w.Status(after.Version.ID)
	require.Equal(t, registry.Active, status, reason)
}

// identity reads letters_made, a partition a day.
var identity = spelledBy("{ time: day }")

// dayWorld returns a world that serves letters_made with one day, and has two months for another version of it.
func dayWorld(t *testing.T) *dispatchertest.World {
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("months", "2024-01", "b")
	w.Probe.Put("months", "2024-02", "c")
	w.Serve(dispatchertest.Upkept)
	return w
}

// A change of partitions that a job of another DAG could not go on with is refused by plan and deploy.
func TestRepartitionIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ reader, reason string }{
		{identity, "by `map: same` to day partitions: no partition of it is the same"},
		{copied, "by `map: same` to day partitions: no partition of it is the same"},
		{dispatchertest.Edit(copied, "letters_made }", "letters_made }, map: { window: month }"),
			"by `map: { window: month }` to month partitions: each window would hold a single partition"},
		{dispatchertest.Edit(copied, "letters_made }", "letters_made }, map: { window: { last: 7 } }"),
			"by `map: { window: { last: 7 } }` to day partitions: the last 7 partitions must be of the same unit"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			w := dayWorld(t)
			w.Serve(c.reader)
			text := "dataset letters_made would go from day partitions to month partitions, " +
				"but words/spelled maps its input letters_made " + c.reason
			hint := "deploy words first, in a form that takes either: with `partition_by: none` or " +
				"`map: latest`, or without that input"
			_, err := w.TryDeploy(monthly)
			dispatchertest.Refused(t, err)
			require.ErrorContains(t, err, text)
			require.Len(t, problemsOf(err), 1)
			require.Equal(t, "publish.letters_made", problemsOf(err)[0].Location)
			require.Equal(t, "mapping", problemsOf(err)[0].Code)
			require.Equal(t, hint, problemsOf(err)[0].Suggestion)

			f := refusedBy(t, w, monthly)
			require.Contains(t, f.Text, text)
			require.Equal(t, hint+"; or publish the new partitions under another name", f.Hint)
			require.Equal(t, []string{"words/spelled"}, f.Consumers)
		})
	}
}

// refusedBy returns the change of the partitioning of letters_made for which a plan says, beside all else, that the
// deploy would be refused.
func refusedBy(t *testing.T, w *dispatchertest.World, yaml string) contract.Finding {
	t.Helper()
	plan := w.Plan(yaml)
	require.NotEmpty(t, plan.Changes)
	var found []contract.Finding
	for _, f := range plan.Findings {
		if f.Kind == contract.PartitioningChanged && f.Dataset == "letters_made" {
			require.Equal(t, contract.Refuses, f.Level)
			found = append(found, f)
		}
	}
	require.Len(t, found, 1, "%+v", plan.Findings)
	return found[0]
}

// A rollback is refused where a job of another DAG, or the version itself, could not go on with the partitions.
func TestRepartitionByRollback(t *testing.T) {
	t.Parallel()
	w := dayWorld(t)
	w.Serve(identity)
	w.Serve(spelledBy("none"))
	w.Serve(monthly)

	to := 1
	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "words", builds.RollbackRequest{To: &to})
	dispatchertest.Refused(t, err)
	require.ErrorContains(t, err, "input letters_made of words/spelled is mapped (`map: same`) from day partitions, "+
		"but letters/made has month partitions now: no partition of it is the same; deploy words again")

	w.Serve(copied)
	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{})
	dispatchertest.Refused(t, err)
	require.ErrorContains(t, err, "dataset letters_made would go from month partitions to day partitions, "+
		"but words/spelled ")

	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "words", builds.RollbackRequest{})
	require.NoError(t, err, "the version before takes either")
	w.Settle()
	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{})
	require.NoError(t, err)
	w.Settle()
	require.Equal(t, map[string][]string{"all": {"x(w(m(a)))"}}, w.Read("words"))
}

// A version that waits for its promotion is refused where a job of another DAG was deployed meanwhile that could not go
// on with its partitions; a cutover fails it.
func TestRepartitionByPromotion(t *testing.T) {
	t.Parallel()
	w := dayWorld(t)
	parked := w.Deploy(monthly, func(r *registry.DeployRequest) { r.Activate = new(bool) })
	w.Settle()
	w.Serve(identity)

	_, err := w.D.Builds.Promote(t.Context(), w.Caller, "letters", parked.Version.Number)
	dispatchertest.Refused(t, err)
	require.ErrorContains(t, err, "words/spelled maps its input letters_made")
	status, _ := w.Status(parked.Version.ID)
	require.Equal(t, registry.Ready, status)

	w.Exec(`UPDATE dag_versions SET activate = true WHERE id = $1`, parked.Version.ID)
	w.Settle()
	status, reason := w.Status(parked.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, "words/spelled maps its input letters_made")
	require.Contains(t, reason, "deploy words first")
	require.Equal(t, map[string][]string{"2024-01-01": {"x(w(m(a)))"}}, w.Read("words"))
}

// A dataset that was gone for some versions comes back with partitions that its readers can go on with, or not at all.
func TestRepartitionByReturn(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("months", "2024-01", "b")
	w.Serve("name: letters\njobs:\n" + dispatchertest.Raw)
	w.Serve(dispatchertest.Upkept)
	w.Serve(identity)
	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{AllowBreaking: true})
	require.NoError(t, err)
	w.Settle()

	const text = "dataset letters_made would go from day partitions to month partitions, " +
		"but words/spelled maps its input letters_made by `map: same` to day partitions"
	_, err = w.TryDeploy(monthly)
	dispatchertest.Refused(t, err)
	require.ErrorContains(t, err, text)
	require.Contains(t, refusedBy(t, w, monthly).Text, text)
	w.Serve(dispatchertest.Upkept)
	require.Equal(t, map[string][]string{"2024-01-01": {"x(w(m(a)))"}}, w.Read("words"))
}
