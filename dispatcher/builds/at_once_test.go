package builds_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// transition is one of two that must not both happen.
type transition struct {
	dag string
	run func(w *dispatchertest.World) error
	why string // it is refused with that once the other one has happened; "": it is not
}

// back rolls a DAG back to a version.
func back(dagName string, to int, why string) transition {
	return transition{dagName, func(w *dispatchertest.World) error {
		_, err := w.D.Builds.Rollback(w.T.Context(), w.Caller, dagName, builds.RollbackRequest{To: &to})
		return err
	}, why}
}

// cutOver cuts over to the build that is under way.
func cutOver(dagName, why string) transition {
	return transition{dagName, func(w *dispatchertest.World) error {
		if _, err := w.D.Builds.AdvanceBuilds(w.T.Context(), time.Now()); err != nil {
			return err
		}
		var status registry.Status
		var reason string
		w.Row(`SELECT status, coalesce(error, '') FROM dag_versions WHERE dag_name = $1 ORDER BY building_at DESC LIMIT 1`,
			dagName)(&status, &reason)
		if status != registry.Active {
			return fmt.Errorf("it is %s: %s", status, reason)
		}
		return nil
	}, why}
}

// promoted promotes a version that is ready, and says why it waits on if that is refused.
func promoted(dagName string, number int, why string) transition {
	return transition{dagName, func(w *dispatchertest.World) error {
		_, refused := w.D.Builds.Promote(w.T.Context(), w.Caller, dagName, number)
		var status registry.Status
		var activates bool
		w.Row(`SELECT status, activate FROM dag_versions WHERE dag_name = $1 AND number = $2`,
			dagName, number)(&status, &activates)
		switch {
		case refused == nil && status != registry.Active:
			return fmt.Errorf("it was promoted and is %s", status)
		case refused != nil && (status != registry.Ready || activates):
			return fmt.Errorf("it was refused and does not wait: it is %s (%w)", status, refused)
		}
		return refused
	}, why}
}

// deleted deletes a DAG.
func deleted(dagName, why string) transition {
	return transition{dagName, func(w *dispatchertest.World) error {
		_, err := w.D.Upkeep.DeleteDAG(w.T.Context(), w.Caller, dagName, nil, time.Now())
		return err
	}, why}
}

// parks lets a version wait for its promotion.
func parks(r *registry.DeployRequest) { r.Activate = new(bool) }

// crossed are pairs of transitions of two DAGs that each break what the other one relies on.
func crossed() map[string]struct {
	prepare func(w *dispatchertest.World)
	pair    [2]transition
} {
	const (
		reads  = "job shout reads column size of stations, which it has no more"
		loses  = "dataset stations would lose column size, but reader/shout reads size"
		circle = "would close a cycle over DAGs"
	)
	unpublished := dispatchertest.Edit(oldWithout, "content FROM raw", "content, length(content) AS size FROM raw")
	without := dispatchertest.Edit(readsStations, "dataset: stations }, as: st", "job: own }, as: st",
		"jobs:\n", "jobs:\n"+dispatchertest.Edit(dispatchertest.Raw, "name: raw", "name: own"))
	// The reader has a version that reads column size, and serves one that does not; old is to go on with another one.
	serve := func(reader string, then func(w *dispatchertest.World)) func(*dispatchertest.World) {
		return func(w *dispatchertest.World) {
			w.Serve(wideStations)
			w.Serve(sizes)
			w.Serve(reader)
			then(w)
		}
	}
	return map[string]struct {
		prepare func(w *dispatchertest.World)
		pair    [2]transition
	}{
		"two rollbacks that close a circle": {func(w *dispatchertest.World) {
			w.Serve(oldStations)
			w.Serve(readsStations)
			w.Serve(without)
			w.Serve(dispatchertest.Edit(oldStations, "    inputs: [{ from: { job: raw } }]\n",
				"    inputs: [{ from: { job: raw } }, { from: { dataset: shouted }, as: back, map: latest }]\n"))
			w.Serve(oldStations)
		}, [2]transition{back("old", 2, circle), back("reader", 1, circle)}},
		"a cutover that drops a column": {serve(readsStations, func(w *dispatchertest.World) {
			w.Serve(narrow)
			w.Serve(wideStations)
			w.Deploy(narrow)
		}), [2]transition{cutOver("old", loses), back("reader", 1, reads)}},
		"a rollback that drops a column": {serve(readsStations, func(w *dispatchertest.World) {
			w.Serve(narrow)
			w.Serve(wideStations)
		}), [2]transition{back("old", 2, loses), back("reader", 1, reads)}},
		"a cutover that unpublishes": {serve(without, func(w *dispatchertest.World) {
			w.Serve(unpublished)
			w.Serve(wideStations)
			w.Deploy(unpublished)
		}), [2]transition{cutOver("old", "dataset stations would no longer be published, but reader/shout reads it"),
			back("reader", 1, "")}}, // the reader is bound to the dataset, which is still there
		"a promotion": {serve(readsStations, func(w *dispatchertest.World) {
			w.Deploy(narrow, parks)
			w.Settle()
		}), [2]transition{promoted("old", 2, loses), back("reader", 1, reads)}},
		"a deletion": {serve(without, func(*dispatchertest.World) {}),
			[2]transition{deleted("old", "reader/shout"), back("reader", 1, "reads stations")}},
	}
}

// What a transition relies on in another DAG does not change before it is committed: of two at the same moment that
// cannot both be, the second is refused as if it had come later.
func TestTransitionsOfSeveralDAGsAreDecidedOneAfterTheOther(t *testing.T) {
	t.Parallel()
	for name, c := range crossed() {
		for i := range 2 {
			first, second := c.pair[i], c.pair[1-i]
			t.Run(fmt.Sprintf("%s, %s first", name, first.dag), func(t *testing.T) {
				t.Parallel()
				w := dispatchertest.NewWorld(t)
				w.Probe.Put("raw", "2024-01-01", "a")
				c.prepare(w)
				won, lost := oneInTheOther(w, first, second)
				require.NoError(t, won)
				if second.why == "" {
					require.NoError(t, lost)
				} else {
					require.ErrorContains(t, lost, second.why)
				}
			})
		}
	}
}

// oneInTheOther begins a transition, and another one while the first has decided and is about to write.
func oneInTheOther(w *dispatchertest.World, first, second transition) (won, lost error) {
	w.T.Helper()
	var g errgroup.Group
	began := func(tr transition, err *error) (ended chan struct{}) {
		ended = make(chan struct{})
		g.Go(func() error {
			defer close(ended)
			*err = tr.run(w)
			return nil
		})
		return ended
	}
	waiting := func(what, locktype string, ended chan struct{}) {
		w.Eventually(what, func() bool {
			select {
			case <-ended:
				return true
			default:
				return w.Count(`SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
					WHERE l.locktype = $1 AND NOT l.granted AND a.datname = current_database()`, locktype) > 0
			}
		})
	}

	require.NoError(w.T, pg.InTx(w.T.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) error {
		// A swap writes the DAG's pointer after it has decided, and so waits for this lock.
		if _, err := tx.Exec(ctx, `SELECT FROM dag_current_versions WHERE dag_name = $1 FOR UPDATE`,
			first.dag); err != nil {
			return err
		}
		waiting(first.dag+" to be about to write", "transactionid", began(first, &won))
		waiting(second.dag+" to end or wait", "advisory", began(second, &lost))
		return nil
	}))
	require.NoError(w.T, g.Wait())
	return won, lost
}

// Two DAGs that are rolled back again and again at the same moment never read each other.
func TestRollbacksAtTheSameMomentCloseNoCircle(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	c := crossed()["two rollbacks that close a circle"]
	c.prepare(w)

	for range 25 {
		var g errgroup.Group
		var failed [2]error
		for i, tr := range c.pair {
			g.Go(func() error { failed[i] = tr.run(w); return nil })
		}
		require.NoError(t, g.Wait())
		require.True(t, (failed[0] == nil) != (failed[1] == nil), "%v", failed)
		for i, tr := range c.pair {
			if failed[i] != nil {
				require.ErrorContains(t, failed[i], tr.why)
				continue
			}
			_, err := w.D.Builds.Rollback(t.Context(), w.Caller, tr.dag, builds.RollbackRequest{})
			require.NoError(t, err)
		}
	}
}
