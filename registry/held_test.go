package registry_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// A process that is frozen or cut off in the middle of a transaction loses the lock of its DAG, alone or shared, while
// others still wait for it.
func TestAFrozenProcessLosesTheDAG(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, lock := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"alone": func(ctx context.Context, tx pgx.Tx) error {
			return registry.LockDAG(ctx, tx, w.caller.OrgID, "alone")
		},
		"shared": func(ctx context.Context, tx pgx.Tx) error {
			return registry.LockDAGShared(ctx, tx, w.caller.OrgID, "shared")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			held, err := w.pool.Begin(t.Context())
			require.NoError(t, err)
			defer func() { _ = held.Rollback(context.WithoutCancel(t.Context())) }() // it has ended
			require.NoError(t, lock(t.Context(), held))                              // and nothing more is heard of it

			ctx, cancel := context.WithTimeout(t.Context(), 2*registry.HeldIdle)
			defer cancel()
			require.NoError(t, pg.InTx(ctx, w.pool, func(ctx context.Context, tx pgx.Tx) error {
				return registry.LockDAG(ctx, tx, w.caller.OrgID, name)
			}))
			_, err = held.Exec(t.Context(), `SELECT 1`)
			require.True(t, pg.Away(err), "%v", err)
		})
	}
}

// The bound ends with the transaction.
func TestOtherTransactionsMayBeIdleForLonger(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	conn, err := w.requests.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	bound := func() (text string) {
		require.NoError(t, conn.QueryRow(t.Context(), `SHOW idle_in_transaction_session_timeout`).Scan(&text))
		return text
	}
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, registry.LockDAG(t.Context(), tx, w.caller.OrgID, "shop"))
	require.Equal(t, registry.HeldIdle.String(), bound())
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, "1min", bound())
}

// Whoever waited in vain for a DAG reads what for, and what to do.
func TestWhatARequestWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	held, err := w.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, held.Rollback(context.WithoutCancel(t.Context()))) }()
	require.NoError(t, registry.LockDAG(t.Context(), held, w.caller.OrgID, "shop"))

	asks, err := w.requests.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = asks.Rollback(context.WithoutCancel(t.Context())) }() // its connection is closed
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = registry.LockDAG(ctx, asks, w.caller.OrgID, "shop")
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.ErrorContains(t, err, "DAG shop is being changed: another deploy, plan or cutover of it")
	var f *fault.Error
	require.ErrorAs(t, err, &f)
	require.Contains(t, f.Hint, "try again in 15 s")
}
