package dispatcher

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

const wordsDAG = `
name: words
jobs:
  - name: spelled
    operator: hook
    inputs: [{ from: { dataset: letters_made } }]
    partition_by: { time: day }
    execution_strategy: PerPartition
    config: { tag: w }
publish:
  words: { from: { job: spelled } }
`

func actions(changes []registry.Change) map[string]string {
	found := map[string]string{}
	for _, c := range changes {
		found[c.Job] = c.Action + ": " + c.Reason
	}
	return found
}

func TestRematerialize(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.probe.put("raw", "2024-01-02", "b")
	one := w.serve(upkept)
	w.probe.on("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{}, w.probe.write(ctx, task, "mended")
	})
	before := w.read("letters_made")

	dry, err := w.d.Registry.Rematerialize(t.Context(), w.caller, "letters_made", false, true)
	require.NoError(t, err)
	require.Len(t, dry, 1)
	require.Nil(t, dry[0].Version)
	require.Equal(t, map[string]string{"raw": "reuse: same definition", "made": "rebuild: forced"}, actions(dry[0].Plan.Changes))
	require.Equal(t, 1, w.count(`SELECT FROM dag_versions`), "a dry run leaves nothing")

	made, err := w.d.Registry.Rematerialize(t.Context(), w.caller, "letters_made", false, false)
	require.NoError(t, err)
	require.Equal(t, 2, made[0].Version.Number)
	require.Equal(t, dry[0].Plan.Hash, made[0].Version.Hash, "what is planned is what is done")
	require.Equal(t, before, w.read("letters_made"), "live data is untouched until the swap")
	w.settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"mended"}, "2024-01-02": {"mended"}}, w.read("letters_made"))
	require.Equal(t, 4, w.attempts("made"))
	require.Equal(t, w.generation(one.Version.ID, "raw"), w.generation(made[0].Version.ID, "raw"))

	again := w.deploy(upkept)
	require.False(t, again.Created, "the epochs are in the hash: the same file is the same version")
	require.Equal(t, made[0].Version.ID, again.Version.ID)
	_, err = w.d.Rollback(t.Context(), w.caller, "letters", RollbackRequest{})
	require.NoError(t, err)
	require.Equal(t, before, w.read("letters_made"))

	_, err = w.d.Rollback(t.Context(), w.caller, "letters", RollbackRequest{})
	require.NoError(t, err)

	next, err := w.d.Registry.Rematerialize(t.Context(), w.caller, "letters/raw/0", false, false)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"raw": "rebuild: forced", "made": "rebuild: upstream changed"}, actions(next[0].Plan.Changes))
	w.settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"mended"}, "2024-01-02": {"mended"}}, w.read("letters_made"))
	_, err = w.d.Registry.Rematerialize(t.Context(), w.caller, "nothing", false, false)
	require.ErrorContains(t, err, `no dataset "nothing"`)
}

func TestRematerializeAcrossDAGs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", "2024-01-01", "a")
	w.serve(upkept)
	words := w.serve(wordsDAG)
	require.Equal(t, map[string][]string{"2024-01-01": {"w(m(a))"}}, w.read("words"))

	made, err := w.d.Registry.Rematerialize(t.Context(), w.caller, "letters_made", true, false)
	require.NoError(t, err)
	require.Len(t, made, 2)
	require.Equal(t, "words", made[1].Plan.DAG)
	require.Equal(t, map[string]string{"spelled": "rebuild: forced"}, actions(made[1].Plan.Changes))
	w.settle()
	for _, m := range made {
		status, reason := w.status(m.Version.ID)
		require.Equal(t, registry.Active, status, reason)
	}
	require.NotEqual(t, w.generation(words.Version.ID, "spelled"), w.generation(made[1].Version.ID, "spelled"))
	require.Equal(t, map[string][]string{"2024-01-01": {"w(m(a))"}}, w.read("words"))
}

// What came as a request or did something outside cannot be had again: computing it anew would swap in emptiness.
func TestRematerializeRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(`
name: notes
jobs:
  - name: note
    operator: hook
    source: { kind: manual }
publish:
  notes: { from: { job: note } }
`)
	_, err := w.d.Registry.Rematerialize(t.Context(), w.caller, "notes", false, false)
	require.ErrorContains(t, err, "cannot be computed anew")
	w.serve(upkept)
	w.deploy(tagged("two"), func(r *registry.DeployRequest) { r.Activate = new(bool) })
	_, err = w.d.Registry.Rematerialize(t.Context(), w.caller, "letters_made", false, false)
	require.ErrorContains(t, err, "is Building")
}
