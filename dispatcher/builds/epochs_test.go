package builds_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// anew says how a dataset is computed anew.
type anew = deploy.RematerializeRequest

func computeAnew(w *dispatchertest.World, name string, asked anew) ([]deploy.Rematerialized, error) {
	return deploy.New(w.D.Registry).Rematerialize(w.T.Context(), w.Caller, name, asked)
}

// rematerialize starts to compute a dataset anew.
func rematerialize(w *dispatchertest.World, name string) registry.Version {
	w.T.Helper()
	made, err := computeAnew(w, name, anew{})
	require.NoError(w.T, err)
	return *made[0].Version
}

// otherwise returns Letters with another definition of the job other.
func otherwise(text string) string {
	return dispatchertest.Edit(dispatchertest.Letters, "|| '!'", "|| '"+text+"'")
}

func resume(r *registry.DeployRequest) { r.Resume = true }

func TestARollbackRestoresEpochs(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	one := w.Serve(dispatchertest.Letters)
	two := rematerialize(w, "letters_upper")
	w.Settle()
	require.NotEqual(t, w.Generation(one.Version.ID, "upper"), w.Generation(two.ID, "upper"))

	same := w.Deploy(dispatchertest.Letters)
	require.Equal(t, two.ID, same.Version.ID, "the same file is what serves")
	require.NoError(t, goBack(w, "letters", 0))
	same = w.Deploy(dispatchertest.Letters)
	require.Equal(t, one.Version.ID, same.Version.ID, "the same file is what serves again")

	three := w.Serve(otherwise("?"))
	require.Equal(t, "reuse: same definition", actions(three.Changes)["upper"])
	require.Equal(t, "reuse: same definition", actions(three.Changes)["joined"])
	require.Equal(t, w.Generation(one.Version.ID, "upper"), w.Generation(three.Version.ID, "upper"))

	four := rematerialize(w, "letters_upper")
	w.Settle()
	require.NotEqual(t, w.Generation(two.ID, "upper"), w.Generation(four.ID, "upper"),
		"what is computed anew is not what was computed anew before")
	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{To: &two.Number})
	require.NoError(t, err)
	five := w.Serve(otherwise("."))
	require.Equal(t, w.Generation(two.ID, "upper"), w.Generation(five.Version.ID, "upper"))
}

func TestAFailedRematerializeLeavesTheDocumentAlone(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	one := w.Serve(dispatchertest.January)
	broken := true
	w.Probe.On("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		if broken {
			return operators.Result{}, errors.New("broken")
		}
		return operators.Result{}, w.Probe.Write(ctx, task, "mended")
	})

	two := rematerialize(w, "letters_made")
	same := w.Deploy(dispatchertest.January)
	require.Equal(t, one.Version.ID, same.Version.ID, "while it is built, too")
	w.Settle()
	status, reason := w.Status(two.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, "broken")

	same = w.Deploy(dispatchertest.January)
	require.False(t, same.Created)
	require.Equal(t, one.Version.ID, same.Version.ID)
	require.Equal(t, registry.Active, same.Version.Status)

	three := w.Serve(dispatchertest.January + "  letters_raw: { from: { job: raw } }\n")
	require.Equal(t, "reuse: same definition", actions(three.Changes)["made"])

	// What failed can be resumed, with what it has built, and anything computed anew is something else.
	broken = false
	again := w.Deploy(dispatchertest.January, resume)
	require.Equal(t, two.ID, again.Version.ID)
	w.Settle()
	status, reason = w.Status(two.ID)
	require.Equal(t, registry.Active, status, reason)
	require.Equal(t, map[string][]string{"2024-01-01": {"mended"}}, w.Read("letters_made"))
	four := rematerialize(w, "letters_made")
	w.Settle()
	require.NotEqual(t, w.Generation(two.ID, "made"), w.Generation(four.ID, "made"))
	_, err := w.TryDeploy(dispatchertest.January, resume)
	require.ErrorContains(t, err, "nothing to resume")
}

// An edit that rebuilds nothing does not pass a rematerialize: that would undo the edit when it serves.
func TestNothingPassesARematerialize(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Upkept)
	two := rematerialize(w, "letters_made")

	edited := strings.Replace(dispatchertest.Upkept, "max_attempts: 1", "max_attempts: 2", 1) +
		"  letters_raw: { from: { job: raw } }\n"
	_, err := w.TryDeploy(edited)
	require.ErrorContains(t, err, "is Building")
	three := w.Serve(edited, dispatchertest.Supersede)
	require.Equal(t, "reuse: same definition", actions(three.Changes)["made"])
	status, _ := w.Status(two.ID)
	require.Equal(t, registry.Abandoned, status)
}

// A definition that is deployed again goes on with the epoch with which it served last, also under a former name.
func TestEpochsOfDefinitionsThatServedBefore(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	w.Serve(dispatchertest.Letters)
	w.Serve(otherwise("?"))
	three := rematerialize(w, "letters_upper")
	w.Settle()

	four := w.Serve(dispatchertest.Letters)
	require.True(t, four.Created, "the first version has what was there before upper was computed anew")
	require.Equal(t, map[string]string{"raw": "reuse: same definition", "upper": "reuse: same definition",
		"joined": "reuse: same definition", "other": "swap-only: an earlier version made it"}, actions(four.Changes))

	low := dispatchertest.Edit(dispatchertest.Letters, "SELECT upper(content)", "SELECT lower(content)")
	w.Serve(low)
	six := w.Serve(dispatchertest.Letters)
	require.Equal(t, w.Generation(three.ID, "upper"), w.Generation(six.Version.ID, "upper"))

	renamed := dispatchertest.Edit(dispatchertest.Letters, "- name: upper", "- name: big\n    renamed_from: upper",
		"job: upper }, ", "job: big }, ", "{ job: upper }", "{ job: big }", "FROM upper", "FROM big")
	seven := w.Serve(renamed)
	require.Equal(t, w.Generation(three.ID, "upper"), w.Generation(seven.Version.ID, "big"))
	eight := rematerialize(w, "letters_upper")
	w.Settle()
	require.NoError(t, goBack(w, "letters", 0))
	require.NoError(t, goBack(w, "letters", 0))
	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{To: &six.Version.Number})
	require.NoError(t, err)
	w.Settle()
	nine := rematerialize(w, "letters_upper")
	w.Settle()
	require.NotEqual(t, w.Generation(eight.ID, "big"), w.Generation(nine.ID, "upper"))
}

func TestARollbackRestoresResetOutputs(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	reset := func(tag string) string {
		return strings.Replace(dispatchertest.Tagged(tag), "partition_by: { time: day }",
			"partition_by: { time: day }\n    bootstrap: { reset_outputs: true }", 1)
	}
	w.Probe.Put("raw", "2024-01-01", "a")
	one := w.Serve(reset("one"))
	two := w.Deploy(reset("two"))
	again := w.Deploy(reset("two"))
	require.Equal(t, two.Version.ID, again.Version.ID, "while it is built")
	w.Settle()
	again = w.Deploy(reset("two"))
	require.Equal(t, two.Version.ID, again.Version.ID)
	require.Equal(t, 2, w.Attempts("raw"))

	require.NoError(t, goBack(w, "letters", 0))
	again = w.Deploy(reset("one"))
	require.Equal(t, one.Version.ID, again.Version.ID, "it serves")
	again = w.Serve(reset("two"))
	require.Equal(t, two.Version.ID, again.Version.ID, "each version begins anew once")
	require.Equal(t, 2, w.Attempts("raw"))
}
