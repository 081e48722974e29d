package builds_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/registry"
)

// A source that does not answer delays its own DAG's build, and no other: neither one of its org nor of another.
func TestASourceThatDoesNotAnswerDelaysNoOtherBuild(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	day := dispatchertest.FirstDay
	thaw := w.Probe.Freeze("frozen")
	for _, list := range []string{"frozen", "quick", "other"} {
		w.Probe.Put(list, day, list)
	}
	other := w.Org("other")

	stuck := w.Deploy(builtDAG("frozen", "f"))
	w.Start(w.Dispatcher("running"))
	quick := w.Deploy(builtDAG("quick", "q"))
	elsewhere := other.Deploy(builtDAG("other", "o"))
	for _, d := range []registry.Deployment{quick, elsewhere} {
		w.Eventually("a build beside it is done", func() bool {
			status, _ := w.Status(d.Version.ID)
			return status == registry.Active
		})
	}
	status, _ := w.Status(stuck.Version.ID)
	require.Equal(t, registry.Building, status)

	thaw()
	w.Eventually("it goes on when its source answers", func() bool {
		status, _ := w.Status(stuck.Version.ID)
		return status == registry.Active
	})
}
