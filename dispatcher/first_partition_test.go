package dispatcher_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker/protocol"
)

// ratesDAG has a handler that is asked for each of the last two years, and a job that reads them.
func ratesDAG() (yaml, first, second string) {
	year := time.Now().UTC().Year()
	first, second = fmt.Sprint(year-2), fmt.Sprint(year-1)
	return fmt.Sprintf(`
name: work
jobs:
  - name: rates
    operator: handler
    runtime: poll
    source: { kind: manual, first_partition: "%s" }
    partition_by: { time: year }
    code_version: "1"
    config: { handler: rates }
  - name: twice
    operator: sql
    inputs: [{ from: { job: rates } }]
    config: { query: "SELECT v || v AS v FROM rates" }
publish: { rates: { from: { job: rates } }, twice: { from: { job: twice } } }
`, first), first, second
}

// open returns the task of a job that is to make a partition.
func open(w *dispatchertest.World, job, partition string) (id uuid.UUID) {
	w.T.Helper()
	w.Row(`SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1 AND t.partitions = ARRAY[$2]
		AND t.status NOT IN ('Completed', 'Canceled') ORDER BY t.id DESC LIMIT 1`, job, partition)(&id)
	return id
}

// goOn does what there is to do beside the tasks of workers elsewhere.
func goOn(w *dispatchertest.World) {
	for range 5 {
		w.Fire()
		w.Route()
		w.FanOut()
		w.Advance()
		w.Work()
	}
}

func TestAHandlerIsAskedForItsPartitions(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	yaml, first, second := ratesDAG()
	give := func(f far, values ...string) {
		t.Helper()
		state, err := f.complete(f.completed(f.upload("rows.parquet", rows(values...))), time.Now())
		require.NoError(t, err)
		require.Equal(t, "Completed", state.Status)
		goOn(w)
	}

	// The build asks for each year, with its bounds.
	build := w.Deploy(yaml)
	w.Advance()
	f := claimFarAgain(w.Tenant, open(w, "rates", first))
	require.Equal(t, first, f.claim.Task.Partition.Key)
	require.Equal(t, first+"-01-01T00:00:00Z", f.claim.Task.Partition.Start.Format(time.RFC3339))
	require.Equal(t, second+"-01-01T00:00:00Z", f.claim.Task.Partition.End.Format(time.RFC3339))
	give(f, "a", "b")
	status, _ := w.Status(build.Version.ID)
	require.Equal(t, registry.Building, status)
	give(claimFarAgain(w.Tenant, open(w, "rates", second)), "c")
	status, _ = w.Status(build.Version.ID)
	require.Equal(t, registry.Active, status)
	require.Equal(t, map[string][]string{first: {"aa", "bb"}, second: {"cc"}}, w.Read("twice"))
	w.Fire()
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE status NOT IN ('Completed', 'Canceled')`))

	// A person and a backfill ask for one year: they do not run at once, and the same rows make no revision.
	f = claimFar(w.Tenant, "rates", first)
	_, err := w.D.Control.StartBackfill(t.Context(), w.Caller, "work", control.BackfillRequest{Job: "rates",
		From: first, To: first, Existing: "all"}, time.Now())
	require.NoError(t, err)
	_, err = w.D.Control.AdvanceBackfills(t.Context(), time.Now())
	require.NoError(t, err)
	other := open(w, "rates", first)
	require.NotEqual(t, f.id, other)
	require.NotEqual(t, protocol.Claimed, claimID(w, claimant(w.Tenant), other).Status)
	give(f, "b", "a")
	require.Equal(t, map[string]int64{first: 1, second: 1}, w.Published("rates"))
	give(claimFarAgain(w.Tenant, other), "b", "a", "d")
	require.Equal(t, map[string]int64{first: 2, second: 1}, w.Published("rates"))
	require.Equal(t, map[string]int64{first: 2, second: 1}, w.Published("twice"))

	for key, want := range map[string]string{"2001": "is before " + first, fmt.Sprint(time.Now().UTC().Year()): "has " +
		"not ended yet", first + "-01": "is not a year", "": "--partition KEY"} {
		_, err := w.D.Enqueue(t.Context(), w.Caller, "work", "rates", []dispatcher.EnqueueItem{{Partition: key}})
		require.ErrorContains(t, err, want)
	}
}

// What somebody asks for while another version is built does not give way to what the build had asked for before.
func TestABuildAsksAgainForWhatIsNewerNow(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	yaml, first, second := ratesDAG()
	give := func(f far, value string) {
		t.Helper()
		_, err := f.complete(f.completed(f.upload("rows.parquet", rows(value))), time.Now())
		require.NoError(t, err)
		goOn(w)
	}
	w.Deploy(yaml)
	w.Advance()
	give(claimFarAgain(w.Tenant, open(w, "rates", first)), "old")
	give(claimFarAgain(w.Tenant, open(w, "rates", second)), "old")

	build := w.Deploy(dispatchertest.Edit(yaml, `code_version: "1"`, `code_version: "2"`))
	w.Advance()
	give(claimFarAgain(w.Tenant, open(w, "rates", first)), "old")
	give(claimFar(w.Tenant, "rates", first), "new")
	give(claimFarAgain(w.Tenant, open(w, "rates", second)), "old")
	status, _ := w.Status(build.Version.ID)
	require.Equal(t, registry.Building, status, "it asks for the first year once more")
	give(claimFarAgain(w.Tenant, open(w, "rates", first)), "new")
	status, _ = w.Status(build.Version.ID)
	require.Equal(t, registry.Active, status)
	require.Equal(t, map[string][]string{first: {"new"}, second: {"old"}}, w.Read("rates"))
}
