package dispatcher

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A source with reset_outputs begins anew with every version, once for each; and deploying a version again is no new one.
func TestResetOutputs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	anew := func(tag string) string {
		return strings.Replace(tagged(tag), "partition_by: { time: day }", "partition_by: { time: day }\n    bootstrap: { reset_outputs: true }", 1)
	}
	w.probe.put("raw", "2024-01-01", "a")
	one := w.serve(anew("one"))
	require.Equal(t, 1, w.attempts("raw"))
	require.False(t, w.deploy(anew("one")).Created)

	w.probe.put("raw", "2024-01-01", "")
	w.probe.put("raw", "2024-01-02", "b")
	two := w.serve(anew("two"))
	require.Equal(t, map[string]string{"raw": "rebuild: outputs reset", "made": "rebuild: definition changed"}, actions(two.Changes))
	require.Equal(t, map[string][]string{"2024-01-02": {"two(b)"}}, w.read("letters_made"), "what the source had before is not there")
	require.NotEqual(t, w.generation(one.Version.ID, "raw"), w.generation(two.Version.ID, "raw"))
	again := w.deploy(anew("two"))
	require.False(t, again.Created)
	require.Equal(t, two.Version.ID, again.Version.ID)
	require.Equal(t, 2, w.attempts("raw"))

	_, err := w.d.Rollback(t.Context(), w.caller, "letters", RollbackRequest{})
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"2024-01-01": {"one(a)"}}, w.read("letters_made"), "a rollback brings back what was there")
}
