package builds_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

// A source with reset_outputs starts over with every version, once for each; deploying an existing version again does
// not reset it.
func TestResetOutputs(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	anew := func(tag string) string {
		return strings.Replace(dispatchertest.Tagged(tag), "partition_by: { time: day }",
			"partition_by: { time: day }\n    bootstrap: { reset_outputs: true }", 1)
	}
	w.Probe.Put("raw", "2024-01-01", "a")
	one := w.Serve(anew("one"))
	require.Equal(t, 1, w.Attempts("raw"))
	require.False(t, w.Deploy(anew("one")).Created)

	w.Probe.Put("raw", "2024-01-01", "")
	w.Probe.Put("raw", "2024-01-02", "b")
	two := w.Serve(anew("two"))
	require.Equal(t, map[string]string{"raw": "rebuild: outputs reset", "made": "rebuild: definition changed"},
		actions(two.Changes))
	require.Equal(t, map[string][]string{"2024-01-02": {"two(b)"}}, w.Read("letters_made"),
		"what the source had before is not there")
	require.NotEqual(t, w.Generation(one.Version.ID, "raw"), w.Generation(two.Version.ID, "raw"))
	again := w.Deploy(anew("two"))
	require.False(t, again.Created)
	require.Equal(t, two.Version.ID, again.Version.ID)
	require.Equal(t, 2, w.Attempts("raw"))

	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{})
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"2024-01-01": {"one(a)"}}, w.Read("letters_made"),
		"a rollback brings back what was there")
}
