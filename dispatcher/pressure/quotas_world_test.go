package pressure_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
)

// An org beyond a quota waits, says so, and goes on by itself; other orgs notice nothing.
func TestAnOrgBeyondItsQuotasWaits(t *testing.T) {
	t.Parallel()
	w := dispatchertest.MonthWorld(t, "01", "02", "03")
	w.Secret("ORDERS", "hunter22", dispatchertest.BoundTo("shop/orders"))
	w.Serve(dispatchertest.HookDAG)
	w.Serve(dispatchertest.Mail)
	other := w.Org("other")
	other.Serve(dispatchertest.Mail)
	quotas := authz.NewQuotas(w.Pool, "one")
	w.D = w.Dispatcher("one", func(c *service.Config) { c.Quotas = quotas })
	w.D.Stepped = true
	now := time.Now()
	look := func() {
		t.Helper()
		now = now.Add(time.Hour)
		_, err := w.D.Pressure.ReviewQuotas(t.Context(), now)
		require.NoError(t, err)
	}
	set := func(q authz.Quota, most int64) {
		t.Helper()
		_, err := authz.ChangeQuotas(t.Context(), w.Pool, w.Caller.OrgSlug,
			[]authz.OrgQuota{{Quota: q, Most: most}}, nil)
		require.NoError(t, err)
	}
	deliver := func(id string) error {
		_, err := w.D.Sources.AcceptHook(t.Context(), dispatchertest.Signed("hunter22", id, time.Now(), `{"order": 1}`),
			time.Now())
		return err
	}
	to := dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]string{"to": "a"})}
	enqueue := func(n int) error {
		items := make([]dispatcher.EnqueueItem, n)
		for i := range items {
			items[i] = to
		}
		_, err := w.D.Enqueue(t.Context(), w.Caller, "mail", "send", items)
		return err
	}

	set(authz.QueuedTasks, 4)
	look()
	require.NoError(t, enqueue(3))
	refused := enqueue(2)
	require.True(t, fault.Is(refused, fault.TooMany), "%v", refused)
	require.Equal(t, "30", rest.ProblemOf(refused).GetHeaders().Get("Retry-After"))
	require.ErrorContains(t, refused, "has 3 queued tasks and may have 4")
	require.Equal(t, 3, w.Count(`SELECT FROM ready WHERE org_id = $1`, w.Caller.OrgID), "all or nothing")
	require.NoError(t, deliver("m1"))
	require.True(t, fault.Is(deliver("m2"), fault.TooMany))

	look()
	w.Probe.Put("raw", "2024-01-04", "04")
	w.Poll()
	require.Equal(t, 4, w.Count(`SELECT FROM ready WHERE org_id = $1`, w.Caller.OrgID), "its source waits")
	require.Contains(t, dispatchertest.CodesIn(w.WhyJob("letters", "raw").Reasons), "quota")
	other.Enqueue("send", to)

	// Work goes on, and with it everything else.
	w.Work()
	look()
	require.NotContains(t, dispatchertest.CodesIn(w.WhyJob("letters", "raw").Reasons), "quota")
	w.Settle()
	require.Len(t, w.Read("letters_made"), 4)

	// The same holds for what it stores.
	set(authz.StorageBytes, 1)
	look()
	require.True(t, quotas.Holds(w.Caller.OrgID))
	require.True(t, fault.Is(enqueue(1), fault.TooMany))
	require.False(t, quotas.Holds(other.Caller.OrgID))
	set(authz.StorageBytes, 1<<30)
	look()
	require.NoError(t, enqueue(1))
}

// Rows in PostgreSQL have no files, and their bytes count like those of files.
func TestStoredBytesOfBothStorages(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	stored := func() (bytes int64) {
		require.NoError(t, pg.InTx(t.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) error {
			all, err := registry.StoredBytes(ctx, tx, []uuid.UUID{w.Caller.OrgID})
			bytes = all[w.Caller.OrgID]
			return err
		}))
		return bytes
	}
	w.Serve(dispatchertest.Upkept)
	files := stored()
	require.Positive(t, files)

	w.Serve(dispatchertest.InTables)
	require.Contains(t, dispatchertest.Texts(t, w.Pool, `SELECT jsonb_typeof(files) FROM partition_versions`), "null")
	require.Greater(t, stored(), files)
}
