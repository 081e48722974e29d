package registry_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// instant returns the database's time.
func (w *world) instant(t *testing.T) (at registry.Moment) {
	t.Helper()
	w.inTx(func(ctx context.Context, tx pgx.Tx) error {
		var now time.Time
		err := tx.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
		at.Which = now.UTC().Format(time.RFC3339Nano)
		return err
	})
	return at
}

// What readers saw at an instant: the versions that served, and of each partition the revision that was published.
func TestResolveAtAnInstant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const orders, ranking = "shop/orders/0", "best_customers"
	before := w.instant(t)
	first := w.serve(shop(), "2026-01-01")
	job := w.job(first, "orders")
	one := w.instant(t)

	w.commit(job, "2026-01-01", false)
	w.commit(job, "2026-01-02", false)
	two := w.instant(t)
	held := w.commit(job, "2026-01-01", true)
	w.commit(job, "2026-01-03", true)
	waiting := w.instant(t)
	w.inTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := registry.PublishHeld(ctx, tx, registry.Ref{Version: held.Version, Key: held.Key}, held.Revision)
		return err
	})
	three := w.instant(t)
	second := w.serve(shop(otherDaily...), "2026-01-01")
	after := w.instant(t)

	revisions := func(at registry.Moment) map[string]int64 {
		found, err := w.resolve(w.caller, at, orders)
		require.NoError(t, err)
		all := map[string]int64{}
		for _, p := range found[orders].Partitions {
			all[p.Key] = p.Revision
		}
		return all
	}
	require.Equal(t, map[string]int64{"2026-01-01": 1}, revisions(one))
	require.Equal(t, map[string]int64{"2026-01-01": 2, "2026-01-02": 1}, revisions(two))
	require.Equal(t, revisions(two), revisions(waiting), "what is held is not served")
	require.Equal(t, map[string]int64{"2026-01-01": 3, "2026-01-02": 1}, revisions(three))

	for _, c := range []struct {
		at     registry.Moment
		served registry.Deployment
		number int
	}{{three, first, 1}, {after, second, 2}} {
		for _, dag := range []string{"", "shop"} {
			c.at.DAG = dag
			found, err := w.resolve(w.as(authz.RoleWriter), c.at, ranking)
			require.NoError(t, err)
			require.Equal(t, w.generation(c.served, "ranking"), found[ranking].Generation.Version)
			require.Equal(t, c.number, found[ranking].DAGVersion)
		}
	}

	found, err := w.resolve(w.caller, before, orders, ranking)
	require.NoError(t, err)
	require.Empty(t, found, "nothing served yet")
	for kind, at := range map[fault.Kind]registry.Moment{
		fault.Invalid:  {Which: "2999-01-01T00:00:00Z"},
		fault.NotFound: {Which: before.Which, DAG: "shop"},
	} {
		_, err := w.resolve(w.caller, at, ranking)
		require.True(t, fault.Is(err, kind), "%v", err)
	}
	_, err = w.resolve(w.as(authz.RoleReader), one, ranking)
	require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
}

// Rows that are gone are no rows that never were.
func TestResolveAtAnInstantWhoseRowsAreGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const orders = "shop/orders/0"
	first := w.serve(shop(), "2026-01-01")
	one := w.instant(t)
	job := w.job(first, "orders")
	w.commit(job, "2026-01-01", false)
	two := w.instant(t)

	exec := func(sql string) {
		w.inTx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql+` WHERE dataset_version = $1 AND revision = 1`, w.generation(first, "orders"))
			return err
		})
	}
	for _, sql := range []string{"UPDATE partition_versions SET purged_at = now()", "DELETE FROM partition_versions"} {
		exec(sql)
		_, err := w.resolve(w.caller, one, orders)
		require.True(t, fault.Is(err, fault.Conflict), "%s: %v", sql, err)
		require.ErrorContains(t, err, "is not kept", sql)
		found, err := w.resolve(w.caller, two, orders)
		require.NoError(t, err, sql)
		require.Len(t, found[orders].Partitions, 1, sql)
	}
}
