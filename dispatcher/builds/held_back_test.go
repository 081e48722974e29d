package builds_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// Live tasks that a build held back go on as soon as it ends, and do not wait until it would have been done.
func TestABuildThatEndsReleasesLiveTasks(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *dispatchertest.World){
		"abandoned": func(w *dispatchertest.World) {
			_, err := w.D.Builds.Abandon(w.T.Context(), w.Caller, "pair")
			require.NoError(w.T, err)
		},
		"superseded": func(w *dispatchertest.World) {
			w.Deploy(dispatchertest.Pair+"description: nothing is rebuilt\n", dispatchertest.Supersede)
			w.Advance()
		},
		"failed": func(w *dispatchertest.World) {
			w.Probe.On("made", failing)
			w.Work()
			w.Advance()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.PairWorld(t)
			w.Change("b")
			deployed := w.Deploy(dispatchertest.Edit(dispatchertest.Pair, "tag: m", "tag: n"))
			w.Advance()
			var live uuid.UUID
			w.Row(`SELECT id FROM tasks t WHERE kind = 'reactive' AND status = 'Queued'`)(&live)
			var builds []registry.Build
			require.NoError(t, pg.InTx(t.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
				builds, err = deploy.Builds(ctx, tx)
				return err
			}))
			require.Len(t, builds, 1)
			require.NoError(t, w.D.Builds.HoldLive(t.Context(), builds[0], time.Now()))
			require.Equal(t, "Queued waiting:run_at", w.Task(live))

			end(w)
			status, _ := w.Status(deployed.Version.ID)
			require.Contains(t, []registry.Status{registry.Failed, registry.Abandoned}, status)
			w.Advance()
			require.Equal(t, "Queued ready", w.Task(live))
			w.Check()
		})
	}
}

// A first version that is promoted serves what its sources have then, not what they had when it was built.
func TestAPromoteOfAFirstVersionReadsItsSources(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	parked := w.Deploy(dispatchertest.Pair, func(r *registry.DeployRequest) { r.Activate = new(bool) })
	w.Settle()
	status, reason := w.Status(parked.Version.ID)
	require.Equal(t, registry.Ready, status, reason)

	w.Probe.Put("raw", "2024-01-01", "b")
	w.Probe.Put("raw", "2024-01-02", "c")
	promote(w, parked.Version)
	require.Equal(t, map[string][]string{"2024-01-01": {"m(b)"}, "2024-01-02": {"m(c)"}}, w.Read("pair_made"))
}

// A promoted version waits a while for a source that cannot be read, however long ago it was built.
func TestAPromoteWaitsForItsSources(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	parked := w.Deploy(dispatchertest.Pair, func(r *registry.DeployRequest) { r.Activate = new(bool) })
	w.Settle()
	w.Exec(`UPDATE dag_versions SET building_at = building_at - interval '1 day'`)
	w.Probe.Fail("raw", errors.New("no route to the source"))
	_, err := w.D.Builds.Promote(t.Context(), w.Caller, "pair", parked.Version.Number)
	require.NoError(t, err)
	_, err = w.D.Builds.AdvanceBuilds(t.Context(), time.Now())
	require.ErrorContains(t, err, "no route to the source")
	status, reason := w.Status(parked.Version.ID)
	require.Equal(t, registry.Ready, status)
	require.Contains(t, reason, "no route to the source")

	w.Probe.Fail("raw", nil)
	_, err = w.D.Builds.AdvanceBuilds(t.Context(), dispatchertest.Later(30*time.Second))
	require.NoError(t, err)
	w.Settle()
	status, reason = w.Status(parked.Version.ID)
	require.Equal(t, registry.Active, status, reason)
}

// failing is a run that fails for good.
func failing(context.Context, *operators.Task) (operators.Result, error) {
	return operators.Result{}, operators.Permanent(errors.New("no"))
}
