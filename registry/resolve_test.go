package registry_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// as is a caller of the world's org with another role.
func (w *world) as(role authz.Role, orgRoles ...string) authz.Caller {
	c := w.caller
	c.Role, c.OrgRoles = role, orgRoles
	return c
}

func TestResolvePinsOneSnapshot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve(shop(), "2026-01-01")
	second := w.deploy(shop(otherDaily...))
	w.publish(second, "daily", "2026-01-01")
	w.publish(second, "ranking", "2026-01-01")

	require.NoError(t, pg.InOrgSnapshot(t.Context(), w.requests, w.caller.OrgID,
		func(ctx context.Context, tx pgx.Tx) error {
			before, err := registry.Resolve(ctx, tx, w.caller, []string{"shop/daily/0"}, registry.Moment{})
			require.NoError(t, err)
			require.Equal(t, w.generation(first, "daily"), before["shop/daily/0"].Generation.Version)

			w.publish(first, "orders", "2026-01-02")
			w.cutover(second)

			after, err := registry.Resolve(ctx, tx, w.caller, []string{"shop/orders/0", "best_customers"},
				registry.Moment{})
			require.NoError(t, err)
			require.Equal(t, w.generation(first, "ranking"), after["best_customers"].Generation.Version,
				"the cutover came later")
			require.Len(t, after["shop/orders/0"].Partitions, 1, "and so did the second day")
			return nil
		}))

	now, err := w.resolve(w.caller, registry.Moment{}, "shop/orders/0", "best_customers")
	require.NoError(t, err)
	require.Equal(t, w.generation(second, "ranking"), now["best_customers"].Generation.Version)
	require.Equal(t, 2, now["best_customers"].DAGVersion)
	require.Len(t, now["shop/orders/0"].Partitions, 2)
}

func TestResolveReadsPublishedRevisionsOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve(shop(), "2026-01-01")
	orders := w.job(first, "orders")
	revision := func() int64 {
		found, err := w.resolve(w.caller, registry.Moment{}, "shop/orders/0")
		require.NoError(t, err)
		require.Len(t, found["shop/orders/0"].Partitions, 1)
		return found["shop/orders/0"].Partitions[0].Revision
	}

	second := w.commit(orders, "2026-01-01", true)
	require.EqualValues(t, 1, revision(), "the second is held until its checks pass")
	w.inTx(func(ctx context.Context, tx pgx.Tx) error {
		return registry.RejectHeld(ctx, tx, registry.Ref{Version: second.Version, Key: second.Key}, second.Revision)
	})
	require.EqualValues(t, 1, revision(), "the checks have rejected it")

	third := w.commit(orders, "2026-01-01", true)
	w.inTx(func(ctx context.Context, tx pgx.Tx) error {
		published, err := registry.PublishHeld(ctx, tx, registry.Ref{Version: third.Version, Key: third.Key},
			third.Revision)
		require.True(t, published || err != nil)
		return err
	})
	require.EqualValues(t, 3, revision())
}

func TestResolveAtAnotherMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve(shop(), "2026-01-01")
	second := w.serve(shop(otherDaily...), "2026-01-01")
	third := w.deploy(shop("sum(price)", "min(price)"))
	const name = "best_customers"

	for which, deployed := range map[string]registry.Deployment{"": second, "latest": second, "candidate": third,
		"v1": first, "2": second} {
		at := registry.Moment{Which: which}
		if which == "v1" || which == "2" {
			at.DAG = "shop"
		}
		found, err := w.resolve(w.as(authz.RoleWriter), at, name)
		require.NoError(t, err, which)
		require.Equal(t, w.generation(deployed, "ranking"), found[name].Generation.Version, which)
	}

	for problem, c := range map[string]struct {
		caller authz.Caller
		at     registry.Moment
		kind   fault.Kind
	}{
		"readers read what serves": {w.as(authz.RoleReader), registry.Moment{Which: "candidate"}, fault.Forbidden},
		"a number needs its DAG":   {w.caller, registry.Moment{Which: "v1"}, fault.Invalid},
		"live is of no DAG":        {w.caller, registry.Moment{DAG: "shop"}, fault.Invalid},
		"no such version":          {w.caller, registry.Moment{Which: "v9", DAG: "shop"}, fault.NotFound},
		"no such candidate":        {w.caller, registry.Moment{Which: "candidate", DAG: "store"}, fault.NotFound},
		"not a moment":             {w.caller, registry.Moment{Which: "yesterday"}, fault.Invalid},
	} {
		_, err := w.resolve(c.caller, c.at, name)
		require.True(t, fault.Is(err, c.kind), "%s: %v", problem, err)
	}
}

// A number that is too large for the database is that of a version that does not exist.
func TestVersionsThatCannotBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(shop(), "2026-01-01")
	for _, which := range []string{"v9", "0", "-1", "v2147483648", "99999999999", "v99999999999999999999999"} {
		_, err := w.resolve(w.caller, registry.Moment{DAG: "shop", Which: which}, "best_customers")
		require.True(t, fault.Is(err, fault.NotFound), "%s: %v", which, err)
		require.ErrorContains(t, err, "DAG shop has no version v"+strings.TrimPrefix(which, "v"))
		w.inTx(func(ctx context.Context, tx pgx.Tx) error {
			_, _, _, err := w.registry.ResolveVersion(ctx, tx, w.caller, "best_customers", which)
			require.True(t, fault.Is(err, fault.NotFound), "%s: %v", which, err)
			require.ErrorContains(t, err, "dataset best_customers has no version "+which)
			return nil
		})
	}
}

func TestResolveHidesDatasetsFromCallers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(shop(), "2026-01-01")
	visible := func(caller authz.Caller) (names []string) {
		found, err := w.resolve(caller, registry.Moment{}, "best_customers", "shop/daily/0", "nothing")
		require.NoError(t, err)
		for name := range found {
			names = append(names, name)
		}
		return names
	}
	require.Equal(t, []string{"best_customers"}, visible(w.as(authz.RoleReader)))
	require.ElementsMatch(t, []string{"best_customers", "shop/daily/0"}, visible(w.as(authz.RoleWriter)))

	_, err := w.pool.Exec(t.Context(), `UPDATE datasets SET read_roles = '{finance}' WHERE name = 'best_customers'`)
	require.NoError(t, err)
	require.Empty(t, visible(w.as(authz.RoleReader)))
	require.Equal(t, []string{"best_customers"}, visible(w.as(authz.RoleReader, "finance")))
	require.Equal(t, []string{"shop/daily/0"}, visible(w.as(authz.RoleWriter)))
	require.Len(t, visible(w.caller), 2, "admins see everything")
}

func TestPurgedDataIsNotResolved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve(shop(), "2026-01-01")
	w.serve(shop(otherDaily...), "2026-01-01")
	at := registry.Moment{Which: "v1", DAG: "shop"}
	found, err := w.resolve(w.caller, at, "shop/daily/0")
	require.NoError(t, err)

	w.purge(w.generation(first, "daily"))
	_, err = w.resolve(w.caller, at, "shop/daily/0")
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	err = pg.InOrgTx(t.Context(), w.requests, w.caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		return registry.StillThere(ctx, tx, w.caller.OrgID, []registry.Readable{found["shop/daily/0"]})
	})
	require.True(t, fault.Is(err, fault.Conflict), "gc came between: %v", err)
}
