package builds_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
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
			Suggestion: "leave `map` and `partition_by` out: the job's partitions follow from the input's"}},
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
