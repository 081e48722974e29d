package registry_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// afterWindow is a moment at which no rollback window is open any more.
func afterWindow() time.Time { return time.Now().Add(8 * 24 * time.Hour) }

// purge marks generations as gc does.
func (w *world) purge(generations ...uuid.UUID) {
	w.t.Helper()
	w.inTx(func(ctx context.Context, tx pgx.Tx) error {
		return registry.MarkPurged(ctx, tx, w.caller.OrgID, generations, time.Now())
	})
}

// unreachable lists the datasets that have a generation which gc would remove.
func (w *world) unreachable(use registry.InUse, now time.Time) (names []string) {
	w.t.Helper()
	w.inTx(func(ctx context.Context, tx pgx.Tx) error {
		found, err := registry.UnreachableGenerations(ctx, tx, w.caller.OrgID, "shop", use, now)
		for _, g := range found {
			names = append(names, g.Dataset)
		}
		return err
	})
	return names
}

func TestUnreachableGenerationsAreGarbage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve(shop(), "2026-01-01")
	w.serve(shop(otherDaily...), "2026-01-01")
	later := afterWindow()

	require.Empty(t, w.unreachable(registry.InUse{}, time.Now()), "a rollback is promised")
	require.Equal(t, []string{"best_customers", "shop/daily/0"}, w.unreachable(registry.InUse{}, later),
		"orders still serves")

	daily := w.job(first, "daily")
	generation := daily.Outputs[0].Generation.Version
	require.Equal(t, []string{"best_customers"},
		w.unreachable(registry.InUse{Pins: []registry.Pin{{Version: generation, Key: "2026-01-01", Revision: 1}}},
			later), "a task reads daily")
	require.Equal(t, []string{"best_customers"},
		w.unreachable(registry.InUse{Origins: []uuid.UUID{daily.Origin}}, later), "a task writes daily")

	var hold uuid.UUID
	w.inTx(func(ctx context.Context, tx pgx.Tx) (err error) {
		hold, err = registry.HoldForRead(ctx, tx, w.caller.OrgID, []uuid.UUID{generation}, "query", later, time.Minute)
		return err
	})
	require.Equal(t, []string{"best_customers"}, w.unreachable(registry.InUse{}, later), "a query reads daily")
	require.Len(t, w.unreachable(registry.InUse{}, later.Add(2*time.Minute)), 2, "its hold has ended")
	w.inTx(func(ctx context.Context, tx pgx.Tx) error { return registry.ReleaseRead(ctx, tx, w.caller.OrgID, hold) })
	require.Len(t, w.unreachable(registry.InUse{}, later), 2)
}

func TestGenerationsOfAPinnedVersionAreReached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(shop(), "2026-01-01")
	w.serve(shop(otherDaily...), "2026-01-01")

	_, err := w.registry.Pin(t.Context(), w.caller, "shop", 1, nil, "the audit")
	require.NoError(t, err)
	require.Empty(t, w.unreachable(registry.InUse{}, afterWindow()))

	require.NoError(t, w.registry.Unpin(t.Context(), w.caller, "shop", 1))
	require.Len(t, w.unreachable(registry.InUse{}, afterWindow()), 2)
}

func TestGenerationsOfABuildAreReached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(shop(), "2026-01-01")
	w.serve(shop(otherDaily...), "2026-01-01")
	w.deploy(shop()) // swaps back to what the first version made

	require.Empty(t, w.unreachable(registry.InUse{}, afterWindow()))
}

func TestAPurgedGenerationIsNotReused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve(shop(), "2026-01-01")
	w.serve(shop(otherDaily...), "2026-01-01")
	w.purge(w.generation(first, "daily"), w.generation(first, "ranking"))
	require.Empty(t, w.unreachable(registry.InUse{}, afterWindow()))

	_, err := w.registry.Pin(t.Context(), w.caller, "shop", 1, nil, "too late")
	require.ErrorContains(t, err, "purged")
	for _, c := range w.plan(shop()).Changes[1:] {
		require.Equal(t, deploy.Rebuild, c.Action, "%s has to be built anew", c.Job)
	}
}

// garbage lists the numbers of the revisions that gc would remove.
func (w *world) garbage(use registry.InUse, now time.Time) (revisions []int64) {
	w.t.Helper()
	w.inTx(func(ctx context.Context, tx pgx.Tx) error {
		found, err := registry.GarbageRevisions(ctx, tx, w.caller.OrgID, use, nil, now)
		for _, r := range found {
			revisions = append(revisions, r.Revision)
		}
		return err
	})
	return revisions
}

func TestAReplacedRevisionIsGarbageOnceNobodyReadsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const day = "2026-01-01"
	first := w.serve(shop(), day)
	now := time.Now().Add(time.Hour)
	require.Empty(t, w.garbage(registry.InUse{}, now), "a published revision is not garbage")

	second := w.publish(first, "orders", day)
	require.Empty(t, w.garbage(registry.InUse{}, time.Now()), "a reader may have resolved the first revision")
	require.Equal(t, []int64{1}, w.garbage(registry.InUse{}, now))

	pin := registry.Pin{Version: second.Version, Key: day, Revision: 1}
	require.Empty(t, w.garbage(registry.InUse{Pins: []registry.Pin{pin}}, now), "a task reads it")
	check := registry.Checked{Origin: w.job(first, "orders").Origin, Key: day, Revision: 1}
	require.Empty(t, w.garbage(registry.InUse{Checks: []registry.Checked{check}}, now), "a check looks at it")

	var marked []registry.MarkedRevision
	w.inTx(func(ctx context.Context, tx pgx.Tx) error {
		garbage, err := registry.MarkGarbageRevisions(ctx, tx, w.caller.OrgID, registry.InUse{}, now, registry.Ref{})
		require.Equal(t, 1, garbage.Revisions)
		return err
	})
	w.inTx(func(ctx context.Context, tx pgx.Tx) (err error) {
		if marked, err = registry.MarkedRevisions(ctx, tx, w.caller.OrgID, 10); err != nil {
			return err
		}
		require.Len(t, marked, 1)
		return registry.ClearRevision(ctx, tx, marked[0])
	})
	require.Empty(t, w.garbage(registry.InUse{}, now))
	require.Equal(t, map[string]int64{day: 2}, w.published(w.job(first, "orders")))

	var rows int
	require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT count(*) FROM partition_versions
		WHERE dataset_version = $1`, second.Version).
		Scan(&rows))
	require.Equal(t, 1, rows, "the first is gone, row and all")
}

func TestTheInputsOfAHeldRevisionAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const day = "2026-01-01"
	first := w.serve(shop(), day)
	held := w.commit(w.job(first, "daily"), day, true) // made from the first revision of orders
	w.publish(first, "orders", day)
	now := time.Now().Add(time.Hour)
	require.Empty(t, w.garbage(registry.InUse{}, now), "its checks may want the input")

	w.inTx(func(ctx context.Context, tx pgx.Tx) error {
		published, err := registry.PublishHeld(ctx, tx, registry.Ref{Version: held.Version, Key: held.Key},
			held.Revision)
		require.True(t, published || err != nil)
		return err
	})
	require.Equal(t, []int64{1, 1}, w.garbage(registry.InUse{}, now), "of orders, and of daily")
}
