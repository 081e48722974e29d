package builds_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

func actions(changes []registry.Change) map[string]string {
	found := map[string]string{}
	for _, c := range changes {
		found[c.Job] = c.Action + ": " + c.Reason
	}
	return found
}

func TestRematerialize(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	one := w.Serve(dispatchertest.Upkept)
	w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{}, w.Probe.Write(ctx, task, "mended")
	})
	before := w.Read("letters_made")

	dry, err := computeAnew(w, "letters_made", anew{DryRun: true})
	require.NoError(t, err)
	require.Len(t, dry, 1)
	require.Nil(t, dry[0].Version)
	require.Equal(t, map[string]string{"raw": "reuse: same definition", "made": "rebuild: forced"},
		actions(dry[0].Plan.Changes))
	require.Equal(t, 1, w.Count(`SELECT FROM dag_versions`), "a dry run leaves nothing")

	made, err := computeAnew(w, "letters_made", anew{})
	require.NoError(t, err)
	require.Equal(t, 2, made[0].Version.Number)
	require.Equal(t, dry[0].Plan.Hash, made[0].Version.Hash, "what is planned is what is done")
	require.Equal(t, before, w.Read("letters_made"), "live data is untouched until the swap")
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"mended"}, "2024-01-02": {"mended"}}, w.Read("letters_made"))
	require.Equal(t, 4, w.Attempts("made"))
	require.Equal(t, w.Generation(one.Version.ID, "raw"), w.Generation(made[0].Version.ID, "raw"))

	first := 1
	_, err = computeAnew(w, "letters_made", anew{Base: &first})
	dispatchertest.Refused(t, err)
	require.ErrorContains(t, err, "the plan is stale", "another version serves than when it was asked")
	require.Equal(t, 2, w.Count(`SELECT FROM dag_versions`))

	again := w.Deploy(dispatchertest.Upkept)
	require.False(t, again.Created, "the epochs are in the hash: the same file is the same version")
	require.Equal(t, made[0].Version.ID, again.Version.ID)
	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{})
	require.NoError(t, err)
	require.Equal(t, before, w.Read("letters_made"))

	_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{})
	require.NoError(t, err)

	next, err := computeAnew(w, "letters/raw/0", anew{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"raw": "rebuild: forced", "made": "rebuild: upstream changed"},
		actions(next[0].Plan.Changes))
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"mended"}, "2024-01-02": {"mended"}}, w.Read("letters_made"))
	_, err = computeAnew(w, "nothing", anew{})
	require.ErrorContains(t, err, `no dataset "nothing"`)
}

func TestRematerializeAcrossDAGs(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	words := w.Serve(dispatchertest.WordsDAG)
	require.Equal(t, map[string][]string{"2024-01-01": {"w(m(a))"}}, w.Read("words"))

	made, err := computeAnew(w, "letters_made", anew{Downstream: true})
	require.NoError(t, err)
	require.Len(t, made, 2)
	require.Equal(t, "words", made[1].Plan.DAG)
	require.Equal(t, map[string]string{"spelled": "rebuild: forced"}, actions(made[1].Plan.Changes))
	w.Settle()
	for _, m := range made {
		status, reason := w.Status(m.Version.ID)
		require.Equal(t, registry.Active, status, reason)
	}
	require.NotEqual(t, w.Generation(words.Version.ID, "spelled"), w.Generation(made[1].Version.ID, "spelled"))
	require.Equal(t, map[string][]string{"2024-01-01": {"w(m(a))"}}, w.Read("words"))
}

// Requests and external effects cannot be repeated: computing them anew would swap in empty data.
func TestRematerializeRefuses(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(`
name: notes
jobs:
  - name: note
    operator: hook
    source: { kind: manual }
publish:
  notes: { from: { job: note } }
`)
	_, err := computeAnew(w, "notes", anew{})
	require.ErrorContains(t, err, "cannot be computed anew")
	w.Serve(dispatchertest.Upkept)
	w.Deploy(dispatchertest.Tagged("two"), func(r *registry.DeployRequest) { r.Activate = new(bool) })
	_, err = computeAnew(w, "letters_made", anew{})
	require.ErrorContains(t, err, "is Building")
}

// A dataset whose inputs are gone in part cannot be computed again as a whole: that asks, as a deploy does, before any
// DAG is rebuilt.
func TestRematerializeAsks(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Serve(dispatchertest.Upkept)
	w.Serve(dispatchertest.WordsDAG)
	_, err := w.D.Upkeep.Purge(t.Context(), w.Caller, "letters/raw/0", upkeep.PurgeRequest{Reason: "erasure request 17",
		From: "2024-01-01", To: "2024-01-01", BreakWindow: true}, time.Now())
	require.NoError(t, err)

	dry, err := computeAnew(w, "letters_made", anew{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, []string{"2024-01-01"}, dry[0].Plan.Changes[1].Removes.Examples)
	_, err = computeAnew(w, "letters_made", anew{Downstream: true})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "letters_made would lose 1 partition that it serves: 2024-01-01")
	require.Equal(t, 2, w.Count(`SELECT FROM dag_versions`))

	two, err := computeAnew(w, "letters_made", anew{AllowRemovals: true})
	require.NoError(t, err)
	_, err = computeAnew(w, "letters_made", anew{AllowRemovals: true})
	require.ErrorContains(t, err, "is Building")
	three, err := computeAnew(w, "letters_made", anew{AllowRemovals: true, Supersede: true})
	require.NoError(t, err)
	require.Equal(t, deploy.BuildSuperseded, three[0].Plan.Meets.Outcome)
	w.Settle()
	status, _ := w.Status(two[0].Version.ID)
	require.Equal(t, registry.Abandoned, status)
	status, reason := w.Status(three[0].Version.ID)
	require.Equal(t, registry.Active, status, reason)
	require.Equal(t, map[string][]string{"2024-01-02": {"m(b)"}}, w.Read("letters_made"))
}
