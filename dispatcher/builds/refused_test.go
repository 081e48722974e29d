package builds_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/storage"
)

// verifies counts, while it is on, how often the storage is asked for rows, and how often while a DAG's lock is held.
type verifies struct {
	mu          sync.Mutex
	on          bool
	all, locked int
	held        func() bool
}

func (v *verifies) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.on && strings.HasPrefix(q.SQL, "SELECT to_regclass($1) IS NOT NULL") {
		v.all++
		if v.held() {
			v.locked++
		}
	}
	return ctx
}

func (*verifies) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// However much was refused, the swap asks the storage for nothing while it holds the DAG's lock, and shows a bounded
// number of revisions by itself. The others are shown once their checks, here none, have passed.
func TestASwapAsksTheStorageForNothingUnderItsLock(t *testing.T) {
	t.Parallel()
	seen := &verifies{}
	w := dispatchertest.NewWorld(t, func(c *storage.Config) {
		traced := c.Pool.Config()
		traced.ConnConfig.Tracer = seen
		pool, err := pgxpool.NewWithConfig(t.Context(), traced)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		c.Pool = pool
	})
	seen.held = func() bool {
		return w.Count(`SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND (classid::bigint << 32 | objid::bigint)
				= hashtextextended((SELECT id::text FROM orgs WHERE slug = 'acme') || '/checked', 0)`) > 0
	}

	const strategy = "    execution_strategy: PerPartition\n"
	inTables := []string{strategy, strategy + "    storage: postgres\n"}
	w.Probe.Put("raw", "2024-01-01", "ab")
	w.Serve(dispatchertest.Edit(dispatchertest.Checked, inTables...))
	want := map[string][]string{"2024-01-01": {"ab,2"}}
	for i := range 30 {
		day := fmt.Sprintf("2024-02-%02d", i%28+1)
		if i >= 28 {
			day = fmt.Sprintf("2024-03-%02d", i-27)
		}
		w.Probe.Put("raw", day, "toolong")
		want[day] = []string{"toolong,7"}
	}
	w.Poll()
	w.Settle()
	require.Equal(t, 30, w.Count(`SELECT FROM partition_versions WHERE state = 'Rejected'`))
	require.Equal(t, map[string][]string{"2024-01-01": {"ab,2"}}, w.Read("checked_good"))

	seen.mu.Lock()
	seen.on = true
	seen.mu.Unlock()
	checks := w.Count(`SELECT FROM tasks WHERE kind = 'check'`)
	w.Deploy(dispatchertest.Edit(unchecked, inTables...))
	w.Advance()
	seen.mu.Lock()
	require.Equal(t, 16, seen.all)
	require.Zero(t, seen.locked)
	seen.on = false
	seen.mu.Unlock()
	require.Equal(t, checks+14, w.Count(`SELECT FROM tasks WHERE kind = 'check'`))
	require.Len(t, w.Read("checked_good"), 17)

	w.Settle()
	require.Equal(t, want, w.Read("checked_good"))
	require.Zero(t, w.Count(`SELECT FROM partition_versions WHERE state IN ('Held', 'Rejected')`))
}
