package pg_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
)

// Whoever waits in vain for a connection has waited: while all connections hang, nobody gets one.
func TestWaitsInVainAreCounted(t *testing.T) {
	t.Parallel()
	pool := open(t, testdb.Empty(t), pg.WithMaxConns(1))
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(pg.Metrics("owner", pool)))
	waits := func() (n float64) {
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == "dagctl_db_waits_total" {
				n += f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		return n
	}

	held, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer held.Release()
	before := waits()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = pool.Acquire(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, before+1, waits())
}
