package builds_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// daily is raw → made, and extra, which version 2 joins.
const daily = `
name: letters
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: raw }
  - name: extra
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: extra }
  - name: made
    operator: hook
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { tag: m }
publish:
  letters_made: { from: { job: made } }
`

var joined = strings.Replace(daily, "inputs: [{ from: { job: raw } }]",
	"inputs: [{ from: { job: raw } }, { from: { job: extra } }]", 1)

func allowRemovals(r *registry.DeployRequest) { r.AllowRemovals = true }

func TestAnEditThatLosesPartitionsAsks(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Probe.Put("extra", "2024-01-02", "x")
	w.Serve(daily)
	before := map[string][]string{"2024-01-01": {"m(a)"}, "2024-01-02": {"m(b)"}}
	require.Equal(t, before, w.Read("letters_made"))

	_, err := w.TryDeploy(joined)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, `letters_made would lose 1 partition that it serves: 2024-01-01 (input "extra" has nothing for it)`)
	require.Equal(t, before, w.Read("letters_made"))

	deployed := w.Serve(joined, allowRemovals)
	require.Equal(t, []registry.Consent{registry.AllowRemovals}, deployed.Version.Consents)
	require.Equal(t, map[string][]string{"2024-01-02": {"m(b,x)"}}, w.Read("letters_made"))
}

// Of a source that was not read yet, the plan knows nothing: the gate keeps what it would lose.
func TestAGateThatFindsPartitionsLostFails(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Probe.Put("extra", "2024-01-02", "x")
	old := strings.Replace(daily, "name: extra", "name: spare", 1)
	w.Serve(old)

	failed := w.Deploy(joined)
	w.Settle()
	status, reason := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Equal(t, "letters_made would lose 1 partition that it serves: 2024-01-01; "+
		"pass --allow-removals to agree to it; --forward-only keeps what would be rebuilt as it is", reason)
	require.Len(t, w.Read("letters_made"), 2)

	w.Serve(joined, allowRemovals)
	require.Equal(t, map[string][]string{"2024-01-02": {"m(b,x)"}}, w.Read("letters_made"))
}

func TestAPartitionPurgedUpstreamIsNotLostByAnEdit(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Serve(daily)
	_, err := w.D.Upkeep.Purge(t.Context(), w.Caller, "letters/raw/0", upkeep.PurgeRequest{Reason: "erasure request 17",
		From: "2024-01-01", To: "2024-01-01", BreakWindow: true}, time.Now())
	require.NoError(t, err)
	require.Len(t, w.Read("letters_made"), 2)

	edited := strings.Replace(daily, "tag: m", "tag: n", 1)
	_, err = w.TryDeploy(edited)
	require.ErrorContains(t, err, "letters_made would lose 1 partition that it serves: 2024-01-01")
	w.Serve(edited, func(r *registry.DeployRequest) { r.ForwardOnly = true })
	require.Equal(t, map[string][]string{"2024-01-01": {"m(a)"}, "2024-01-02": {"m(b)"}}, w.Read("letters_made"))
}

// An earlier definition that comes back catches up with what it missed, and loses nothing.
func TestAnEarlierDefinitionThatReturnsLosesNothing(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(daily)
	w.Serve(strings.Replace(daily, "tag: m", "tag: n", 1))
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Poll()
	w.Settle()
	w.Serve(daily)
	require.Equal(t, map[string][]string{"2024-01-01": {"m(a)"}, "2024-01-02": {"m(b)"}}, w.Read("letters_made"))
}

// An earlier definition that comes back lacks what was purged while it served, and the plan says so.
func TestAnEarlierDefinitionThatReturnsLacksWhatWasPurged(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Serve(daily)
	_, err := w.D.Upkeep.Purge(t.Context(), w.Caller, "letters_made", upkeep.PurgeRequest{Reason: "erasure request 17",
		From: "2024-01-01", To: "2024-01-01", BreakWindow: true}, time.Now())
	require.NoError(t, err)
	w.Serve(strings.Replace(daily, "tag: m", "tag: n", 1))
	require.Len(t, w.Read("letters_made"), 2, "another definition makes it anew")

	_, err = w.TryDeploy(daily)
	require.ErrorContains(t, err, "letters_made would lose 1 partition that it serves: 2024-01-01 (it was purged)")
	require.Contains(t, fault.Text(err), "`dagctl backfill` computes what was purged, once the version serves")
	w.Serve(daily, allowRemovals)
	require.Equal(t, map[string][]string{"2024-01-02": {"m(b)"}}, w.Read("letters_made"))

	_, err = w.D.Control.StartBackfill(t.Context(), w.Caller, "letters", control.BackfillRequest{Job: "made",
		From: "2024-01-01", To: "2024-01-02"}, time.Now())
	require.NoError(t, err)
	for more := true; more; {
		more, err = w.D.Control.AdvanceBackfills(t.Context(), time.Now())
		require.NoError(t, err)
		w.Settle()
	}
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"m(a)"}, "2024-01-02": {"m(b)"}}, w.Read("letters_made"))
}

// A purge of some partitions leaves the others of earlier versions, and takes the purged ones from each of them alike:
// no rollback brings them back, and no deploy of an earlier document. The same holds where a version had no others.
func TestEarlierVersionsKeepWhatWasNotPurged(t *testing.T) {
	t.Parallel()
	tables := dispatchertest.Edit(daily, "    config: { tag: m }\n",
		"    storage: postgres\n    config: { tag: m }\n")
	for name, document := range map[string]string{"files": daily, "tables": tables} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			tagged := func(tag string) string { return dispatchertest.Edit(document, "tag: m", "tag: "+tag) }
			w.Probe.Put("raw", "2024-01-02", "b")
			w.Serve(tagged("zero"))
			w.Serve(tagged("one"))
			w.Probe.Put("raw", "2024-01-01", "a")
			w.Probe.Put("raw", "2024-01-03", "c")
			w.Poll()
			w.Settle()
			w.Serve(tagged("two"))
			w.Serve(tagged("three"))
			_, err := w.D.Upkeep.Purge(t.Context(), w.Caller, "letters_made", upkeep.PurgeRequest{
				Reason: "erasure request 17", From: "2024-01-02", To: "2024-01-02", BreakWindow: true}, time.Now())
			require.NoError(t, err)
			without := func(tag string) map[string][]string {
				return map[string][]string{"2024-01-01": {tag + "(a)"}, "2024-01-03": {tag + "(c)"}}
			}
			require.Equal(t, without("three"), w.Read("letters_made"))

			require.NoError(t, goBack(w, "letters", 3), "readers lose nothing by it")
			require.Equal(t, without("two"), w.Read("letters_made"))
			for _, tag := range []string{"one", "three", "zero", "two"} {
				require.False(t, w.Serve(tagged(tag)).Created, "it is the version that it was")
				require.Equal(t, without(tag), w.Read("letters_made"), "the erasure holds")
			}

			// Once its input has changed, it is made again.
			w.Probe.Put("raw", "2024-01-02", "mended")
			w.Poll()
			w.Settle()
			require.Equal(t, []string{"two(mended)"}, w.Read("letters_made")["2024-01-02"])
			w.Serve(tagged("one"))
			require.Equal(t, []string{"one(mended)"}, w.Read("letters_made")["2024-01-02"])
		})
	}
}

// A name that moves to a dataset which serves already, and that nothing rebuilds, takes partitions from its readers.
func TestANameThatMovesToAReusedDatasetLosesNothingSilently(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Serve(daily)
	twin := strings.ReplaceAll(daily, "letters_made", "twin_made")
	twin = strings.Replace(twin, "name: letters", "name: twin", 1)
	w.Serve(twin)

	// The check that the twin will get refuses what its source sends for a partition that was purged.
	w.Probe.Put("raw", "2024-01-02", "evil")
	checked := strings.Replace(twin, "    config: { tag: m }\n", "    config: { tag: m }\n"+
		"    checks: [{ name: good, sql: \"SELECT * FROM output WHERE content LIKE '%evil%'\" }]\n", 1)
	w.Serve(checked)
	_, err := w.D.Upkeep.Purge(t.Context(), w.Caller, "twin_made", upkeep.PurgeRequest{Reason: "erasure request 17",
		From: "2024-01-02", To: "2024-01-02", BreakWindow: true}, time.Now())
	require.NoError(t, err)
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"m(a)"}}, w.Read("twin_made"))
	require.Len(t, w.Read("letters_made"), 2)

	taking := strings.Replace(checked, "twin_made: { from: { job: made } }",
		"letters_made: { from: { job: made }, takes_over: letters }", 1)
	moves := func(r *registry.DeployRequest) { r.AllowMoves = true }
	if taken, err := w.TryDeploy(taking, moves); err == nil {
		w.Settle()
		status, reason := w.Status(taken.Version.ID)
		require.Equal(t, registry.Failed, status)
		require.Contains(t, reason, "letters_made would lose 1 partition that it serves: 2024-01-02")
	} else {
		require.ErrorContains(t, err, "letters_made would lose 1 partition that it serves: 2024-01-02")
	}
	require.Len(t, w.Read("letters_made"), 2)
	w.Serve(taking, moves, allowRemovals)
	require.Equal(t, map[string][]string{"2024-01-01": {"m(a)"}}, w.Read("letters_made"))
}

// A plan reads what reused and kept datasets have, not what their sources would give.
func TestWhatIsReusedCountsAsItIs(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	last := `  - name: last
    operator: hook
    inputs: [{ from: { job: made } }]
    execution_strategy: PerPartition
    config: { tag: l }
publish:
  letters_last: { from: { job: last } }
`
	chain := strings.Replace(daily, "publish:\n", last, 1)
	w.Serve(chain)
	purge := func(dataset, key string) {
		_, err := w.D.Upkeep.Purge(t.Context(), w.Caller, dataset, upkeep.PurgeRequest{Reason: "erasure request 17",
			From: key, To: key, BreakWindow: true}, time.Now())
		require.NoError(t, err)
	}

	// made keeps what its source has lost, and last can be made from it.
	purge("letters/raw/0", "2024-01-01")
	kept := strings.Replace(chain, "tag: m", "tag: n", 1)
	w.Serve(kept, func(r *registry.DeployRequest) { r.ForwardOnly = true })
	edited := strings.Replace(kept, "tag: l", "tag: k", 1)
	w.Serve(edited)
	require.Len(t, w.Read("letters_last"), 2)

	// made lacks what its source still has.
	purge("letters_made", "2024-01-02")
	_, err := w.TryDeploy(strings.Replace(kept, "tag: l", "tag: j", 1))
	require.ErrorContains(t, err, "letters_last would lose 1 partition that it serves: 2024-01-02")
}

func TestASkippedPartitionIsGivenUpDownstreamToo(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	chain := strings.Replace(daily, "publish:\n", `  - name: last
    operator: hook
    inputs: [{ from: { job: made } }]
    execution_strategy: PerPartition
    config: { tag: l }
publish:
`, 1)
	w.Serve(chain)
	w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		if task.Partition.Key == "2024-01-02" {
			return operators.Result{}, operators.Permanent(errors.New("no"))
		}
		return operators.Result{}, w.Probe.Write(ctx, task, "again")
	})
	edited := strings.Replace(chain, "tag: m", "tag: n", 1)
	deployed := w.Deploy(edited)
	for w.Count(`SELECT FROM waiting WHERE reason = 'dead'`) == 0 {
		w.Route()
		w.Advance()
		w.Work()
	}
	_, err := w.D.Control.Skip(t.Context(), w.Caller, w.TaskOf("made", "2024-01-02"), "lost")
	require.NoError(t, err)

	// The build may have seen the dead task before it was skipped.
	w.Deploy(edited)
	w.Settle()
	status, reason := w.Status(deployed.Version.ID)
	require.Equal(t, registry.Active, status, reason)
	require.Len(t, w.Read("letters_made"), 1)
}

// A dataset that is cut into other partitions and has nothing to make them of would be gone for its readers.
func TestANewPartitioningWithoutDataAsks(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	_, err := w.D.Upkeep.Purge(t.Context(), w.Caller, "letters/raw/0", upkeep.PurgeRequest{Reason: "erasure request 17",
		From: "2024-01-01", To: "2024-01-01", BreakWindow: true}, time.Now())
	require.NoError(t, err)

	whole := dispatchertest.Edit(dispatchertest.Upkept, "execution_strategy: PerPartition",
		"execution_strategy: PerUpdate\n    partition_by: none")
	failed := w.Deploy(whole)
	w.Settle()
	status, reason := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status, reason)
	require.Contains(t, reason, "letters_made would lose 1 partition that it serves: 2024-01-01 "+
		"(nothing is made for the new partitioning)")
	require.Len(t, w.Read("letters_made"), 1)
	w.Serve(whole, allowRemovals)
}

// A source that cannot be read again has nothing for another partitioning: the deploy asks before anything is computed.
func TestANewPartitioningOfWhatCannotBeReadAgainAsks(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	const byHand = `name: mail
jobs:
  - name: typed
    operator: hook
    source: { kind: manual }
    partition_by: { time: day, timezone: Europe/Berlin }
    config: { tag: t }
  - name: made
    operator: hook
    inputs: [{ from: { job: typed } }]
    execution_strategy: PerPartition
    config: { tag: m }
publish:
  typed: { from: { job: typed } }
  made: { from: { job: made } }
`
	w.Serve(byHand)
	w.Enqueue("typed", dispatcher.EnqueueItem{Partition: "2026-01-01"}, dispatcher.EnqueueItem{Partition: "2026-01-02"})
	w.Settle()
	require.Len(t, w.Read("made"), 2)

	moved := dispatchertest.Edit(byHand, "Europe/Berlin", "America/New_York")
	_, err := w.TryDeploy(moved)
	require.True(t, fault.Is(err, fault.Conflict), err)
	for _, name := range []string{"typed", "made"} {
		require.ErrorContains(t, err, name+" would lose 2 partitions that it serves: 2026-01-01, 2026-01-02 "+
			"(nothing is made for the new partitioning)")
	}
	w.Serve(moved, allowRemovals)
	require.Empty(t, w.Read("made"))
}
