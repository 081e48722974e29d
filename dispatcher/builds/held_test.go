package builds_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/registry"
)

// A build that was under way when somebody rolled back does not undo that: it is built, waits and says why, until
// somebody promotes it or deploys it again.
func TestABuildDoesNotUndoARollback(t *testing.T) {
	t.Parallel()
	again := map[string]func(w *dispatchertest.World, yaml string, number int){
		"promote": func(w *dispatchertest.World, _ string, number int) {
			_, err := w.D.Builds.Promote(t.Context(), w.Caller, "letters", number)
			require.NoError(t, err)
		},
		"deploy": func(w *dispatchertest.World, yaml string, _ int) { w.Deploy(yaml) },
	}
	for name, goOn := range again {
		for _, built := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := dispatchertest.LettersWorld(t)
				first := w.Serve(dispatchertest.Letters)
				w.Serve(dispatchertest.Edit(dispatchertest.Letters, "'!'", "'2'"))
				third := dispatchertest.Edit(dispatchertest.Letters, "'!'", "'3'")
				deployed := w.Deploy(third)
				requireServes := func(v registry.Deployment, status registry.Status) registry.Version {
					now, err := w.D.Registry.Version(t.Context(), w.Caller, "letters", v.Version.Number)
					require.NoError(t, err)
					require.Equal(t, status, now.Status)
					return now.Version
				}

				_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "letters", builds.RollbackRequest{})
				require.NoError(t, err)
				if built {
					w.Settle()
					why, err := w.D.Why.VersionWhy(t.Context(), w.Caller, "letters", 3, time.Now())
					require.NoError(t, err)
					require.Len(t, why.Reasons, 1)
					require.Contains(t, why.Reasons[0].Text, "rolled back to version 1 while it was being built")
					held := requireServes(deployed, registry.Ready)
					require.Contains(t, held.HeldBecause, "rolled back to version 1")
				}
				requireServes(first, registry.Active)

				goOn(w, third, deployed.Version.Number)
				w.Settle()
				require.Empty(t, requireServes(deployed, registry.Active).HeldBecause)
				w.Check()
			})
		}
	}
}
