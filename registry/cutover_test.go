package registry_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/registry/deploy"
)

// served returns the generation that readers of a dataset see.
func (w *world) served(name string) uuid.UUID {
	w.t.Helper()
	d, err := w.registry.Dataset(w.t.Context(), w.caller, name)
	require.NoError(w.t, err)
	require.NotNil(w.t, d.Version, name)
	return *d.Version
}

func (w *world) statusOf(deployed registry.Deployment) registry.Status {
	w.t.Helper()
	v, err := w.registry.Version(w.t.Context(), w.caller, deployed.Version.DAG, deployed.Version.Number)
	require.NoError(w.t, err)
	return v.Status
}

func TestCutoverMovesEveryPointerOfTheDAG(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve(shop(), "2026-01-01")
	second := w.deploy(shop(otherDaily...))
	for _, job := range []string{"daily", "ranking"} {
		w.publish(second, job, "2026-01-01")
	}
	names := map[string]string{"orders": "shop/orders/0", "daily": "shop/daily/0", "ranking": "best_customers"}
	for job, name := range names {
		require.Equal(t, w.generation(first, job), w.served(name), "a build is not read")
	}

	w.cutover(second)
	for job, name := range names {
		require.Equal(t, w.generation(second, job), w.served(name))
	}
	require.Equal(t, w.generation(first, "orders"), w.served("shop/orders/0"), "what is reused stays")
	require.Equal(t, registry.Superseded, w.statusOf(first))
	require.Equal(t, registry.Active, w.statusOf(second))

	history, err := deploy.New(w.registry).History(t.Context(), w.caller, "shop", 0, 10)
	require.NoError(t, err)
	require.Len(t, history, 2)
	require.Equal(t, deploy.ByDeploy, history[0].Activations[0].Reason)
	require.Equal(t, 1, *history[0].Activations[0].From)
	require.NotNil(t, history[1].InstantUntil, "the way back is promised for a while")
}

func TestOnlyAReadyVersionIsCutOverTo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve(shop(), "2026-01-01")
	second := w.deploy(shop(otherDaily...))

	require.False(t, w.move(w.build(second), deploy.ByDeploy), "it is being built")
	require.Equal(t, w.generation(first, "daily"), w.served("shop/daily/0"))
	require.Equal(t, registry.Active, w.statusOf(first))
	require.Equal(t, registry.Building, w.statusOf(second))
}

func TestAReadyVersionWaitsForItsPromotion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	no := false
	deployed := w.deploy(shop(), func(r *registry.DeployRequest) { r.Activate = &no })
	builds := func() (numbers []int) {
		w.inTx(func(ctx context.Context, tx pgx.Tx) error {
			found, err := deploy.Builds(ctx, tx)
			for _, b := range found {
				numbers = append(numbers, b.Number)
			}
			return err
		})
		return numbers
	}
	require.Equal(t, []int{1}, builds())

	w.inTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := deploy.MarkReady(ctx, tx, w.build(deployed), contract.Contract{}, deployed.Version.CreatedAt)
		return err
	})
	require.Empty(t, builds())

	w.inTx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := deploy.Activate(ctx, tx, w.caller.OrgID, "shop", 1, nil, time.Now())
		return err
	})
	require.Equal(t, []int{1}, builds())
}

func TestARollbackMovesThePointersBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve(shop(), "2026-01-01")
	second := w.serve(shop(otherDaily...), "2026-01-01")

	w.rollback("shop")
	require.Equal(t, w.generation(first, "daily"), w.served("shop/daily/0"))
	require.Equal(t, w.generation(first, "ranking"), w.served("best_customers"))
	require.Equal(t, registry.Active, w.statusOf(first))
	require.Equal(t, registry.Superseded, w.statusOf(second))

	w.rollback("shop")
	require.Equal(t, w.generation(second, "daily"), w.served("shop/daily/0"), "the version before is now the second")
}

func TestRollbackTargetRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	target := func(to *int) (registry.Build, error) {
		tx, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
		return deploy.RollbackTarget(t.Context(), tx, w.caller.OrgID, "shop", to)
	}
	number := func(n int) *int { return &n }

	first := w.serve(shop(), "2026-01-01")
	_, err := target(nil)
	require.True(t, fault.Is(err, fault.Conflict), "nothing served before: %v", err)
	_, err = target(number(1))
	require.True(t, fault.Is(err, fault.Conflict), "it is active: %v", err)
	_, err = target(number(7))
	require.True(t, fault.Is(err, fault.NotFound), "there is none: %v", err)

	second := w.deploy(shop(otherDaily...))
	_, err = target(number(2))
	require.True(t, fault.Is(err, fault.Conflict), "it never served: %v", err)
	w.cutover(second)
	b, err := target(nil)
	require.NoError(t, err)
	require.Equal(t, first.Version.ID, b.ID)

	w.purge(w.generation(first, "daily"))
	_, err = target(nil)
	require.True(t, fault.Is(err, fault.Conflict), "its data is gone: %v", err)
	require.ErrorContains(t, err, "purged")
	require.False(t, w.move(b, deploy.ByRollback), "not even when it was found before the purge")
}

func TestNamesMoveAtTheCutover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	exists := func(name string) bool {
		_, err := w.registry.Dataset(t.Context(), w.caller, name)
		require.True(t, err == nil || fault.Is(err, fault.NotFound), "%v", err)
		return err == nil
	}
	w.serve(shop(), "2026-01-01")
	require.True(t, exists("best_customers"))
	require.False(t, exists("shop/ranking/0"), "a published dataset goes by its published name")

	renamed := w.deploy(shop("best_customers:", "top_customers:"))
	require.False(t, exists("top_customers"), "not before the cutover")
	w.cutover(renamed)
	require.True(t, exists("top_customers"))
	require.False(t, exists("best_customers"))

	w.rollback("shop")
	require.True(t, exists("best_customers"))
	require.False(t, exists("top_customers"))
}

func TestTwoPublishedNamesSwapInOneCutover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	both := func(a, b string) string {
		return shop("  best_customers: { from: { job: ranking }, owner: sales@example.com }",
			"  "+a+": { from: { job: ranking } }\n  "+b+": { from: { job: daily } }")
	}
	first := w.serve(both("one", "two"), "2026-01-01")
	require.Equal(t, w.generation(first, "ranking"), w.served("one"))

	_, err := w.tryDeploy(both("two", "one"))
	require.ErrorContains(t, err, "the name one would move from the dataset of job ranking to that of job daily")
	w.cutover(w.deploy(both("two", "one"), func(r *registry.DeployRequest) { r.AllowMoves = true }))
	require.Equal(t, w.generation(first, "ranking"), w.served("two"))
	require.Equal(t, w.generation(first, "daily"), w.served("one"))
}
