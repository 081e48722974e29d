package builds_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Whoever makes a version serve has to be able to read it when it does, not only when they asked for it: what is closed
// to them while their transition waits for its turn is refused.
func TestWhatIsClosedWhileATransitionWaits(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		closes  string // the dataset that an admin closes meanwhile
		prepare func(w *dispatchertest.World, g *readGraph)
		run     func(w *dispatchertest.World, caller authz.Caller) error
		serves  int // the version that goes on serving
	}{
		"a rollback to what reads it": {"a_x", func(w *dispatchertest.World, g *readGraph) {
			w.Serve(g.document("b", "a_x"))
			w.Serve(g.document("b", ""))
		}, rolledBack, 2},
		"a rollback to what makes it": {"b_y", func(w *dispatchertest.World, g *readGraph) {
			w.Serve(g.document("b", ""))
			w.Serve(g.document("b", "a_x"))
		}, rolledBack, 2},
		"a promotion": {"a_x", func(w *dispatchertest.World, g *readGraph) {
			w.Serve(g.document("b", ""))
			w.Deploy(g.document("b", "a_x"), parks)
			w.Settle()
		}, func(w *dispatchertest.World, caller authz.Caller) error {
			_, err := w.D.Builds.Promote(w.T.Context(), caller, "b", 2)
			return err
		}, 1},
	}

	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			g := &readGraph{dags: []string{"a", "b"}}
			_, err := authz.CreateOrgRole(t.Context(), w.Requests, w.Caller, "f", "")
			require.NoError(t, err)
			w.Serve(g.document("a", ""))
			c.prepare(w, g)
			writer := authz.Caller{OrgID: w.Caller.OrgID, OrgSlug: w.Caller.OrgSlug, Actor: "token:writer",
				Role: authz.RoleWriter}

			var (
				done    errgroup.Group
				refused error
			)
			require.NoError(t, pg.InTx(t.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := registry.LockDAGShared(ctx, tx, w.Caller.OrgID, "b"); err != nil {
					return err
				}
				done.Go(func() error {
					refused = c.run(w, writer)
					return nil
				})
				w.Eventually("the transition to wait for the lock", func() bool {
					return w.Count(`SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
						AND mode = 'ExclusiveLock'
						AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) > 0
				})
				_, err := w.D.Registry.SetVisibility(ctx, w.Caller, c.closes,
					registry.Visibility{ReadRoles: []string{"role:f"}})
				return err
			}))
			require.NoError(t, done.Wait())
			require.True(t, fault.Is(refused, fault.Forbidden), "%v", refused)
			require.Equal(t, 1, w.Count(`SELECT FROM dag_current_versions c JOIN dag_versions v ON v.id = c.dag_version_id
				WHERE c.dag_name = 'b' AND v.number = $1`, c.serves))
		})
	}
}

func rolledBack(w *dispatchertest.World, caller authz.Caller) error {
	_, err := w.D.Builds.Rollback(w.T.Context(), caller, "b", builds.RollbackRequest{AllowMoves: true})
	return err
}
