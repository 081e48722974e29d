package authz_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

var halfPast = time.Date(2024, 1, 1, 12, 0, 30, 0, time.UTC)

// quota sets a quota of the org, and returns servers that have read it.
func (w world) quota(t *testing.T, q authz.Quota, most int64, servers ...string) (all []*authz.Quotas) {
	t.Helper()
	_, err := authz.ChangeQuotas(t.Context(), w.owner, "acme", []authz.OrgQuota{{Quota: q, Most: most}}, nil)
	require.NoError(t, err)
	for _, name := range servers {
		s := authz.NewQuotas(w.owner, name)
		require.NoError(t, s.Review(t.Context(), halfPast))
		all = append(all, s)
	}
	return all
}

// usage returns what an org uses of a quota.
func (w world) usage(t *testing.T, q authz.Quota, now time.Time) (found authz.Usage) {
	t.Helper()
	require.NoError(t, pg.InOrgTx(t.Context(), w.requests, w.org.ID, func(ctx context.Context, tx pgx.Tx) error {
		all, err := authz.UsageOf(ctx, tx, w.admin(), now)
		require.Len(t, all, len(authz.AllQuotas))
		for _, u := range all {
			if u.Quota == q {
				found = u
			}
		}
		return err
	}))
	return found
}

// Servers share the requests of an org's minute: no more than the quota get in, and no fewer.
func TestServersShareTheRequestsOfAMinute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	servers := w.quota(t, authz.RequestsPerMinute, 100, "one", "two")
	var admitted, failed atomic.Int64
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			err := servers[i%2].TakeRequest(t.Context(), w.org.ID, halfPast)
			switch {
			case err == nil:
				admitted.Add(1)
			case !fault.Is(err, fault.TooMany):
				failed.Add(1)
			}
		})
	}
	wg.Wait()
	require.Zero(t, failed.Load())
	require.Equal(t, int64(100), admitted.Load())
	require.True(t, w.usage(t, authz.RequestsPerMinute, halfPast).Full)
	require.NoError(t, servers[0].TakeRequest(t.Context(), uuid.New(), halfPast), "another org")

	// A quota that was raised counts within the minute, and without one requests are counted only.
	require.Error(t, servers[1].TakeRequest(t.Context(), w.org.ID, halfPast))
	w.quota(t, authz.RequestsPerMinute, 101)
	require.NoError(t, servers[1].Review(t.Context(), halfPast))
	require.NoError(t, servers[1].TakeRequest(t.Context(), w.org.ID, halfPast))
	require.Error(t, servers[1].TakeRequest(t.Context(), w.org.ID, halfPast))
	require.NoError(t, servers[0].TakeRequest(t.Context(), w.org.ID, halfPast.Add(time.Minute)), "the next minute")
	_, err := authz.ChangeQuotas(t.Context(), w.owner, "acme", nil, []authz.Quota{authz.RequestsPerMinute})
	require.NoError(t, err)
	later := halfPast.Add(time.Hour)
	for range 2 {
		require.NoError(t, servers[1].Review(t.Context(), later))
		for range 5 {
			require.NoError(t, servers[1].TakeRequest(t.Context(), w.org.ID, later))
		}
	}
	require.NoError(t, servers[1].Review(t.Context(), later))
	u := w.usage(t, authz.RequestsPerMinute, later)
	require.Equal(t, int64(10), u.Used)
	require.Nil(t, u.Most)
}

// A request beyond the quota is told what the quota is, when to come again, and who can raise it.
func TestARequestBeyondTheQuota(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	quotas := authz.NewQuotas(w.owner, "one")
	api := w.api(t, authz.Config{Quotas: quotas})
	token := w.token(t, authz.NewToken{Name: "ci", Role: authz.RoleReader})
	ask := func() *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "/v1/org/usage", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		answer := httptest.NewRecorder()
		api.Handler().ServeHTTP(answer, r)
		return answer
	}
	require.Equal(t, http.StatusOK, ask().Code)
	w.quota(t, authz.RequestsPerMinute, 0)
	require.NoError(t, quotas.Review(t.Context(), time.Now()))

	answer := ask()
	require.Equal(t, http.StatusTooManyRequests, answer.Code)
	require.NotEmpty(t, answer.Header().Get("Retry-After"))
	require.Contains(t, answer.Body.String(), "may make no requests")
	require.Contains(t, answer.Body.String(), "dagctl admin quotas acme --set requests_per_minute=")
}

// Two transactions never take the last of a quota both.
func TestAQuotaIsTakenOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.quota(t, authz.UploadsPerDay, 5)
	w.quota(t, authz.QueuedTasks, 5)
	take := func(q authz.Quota, at time.Time) error {
		return pg.InOrgTx(t.Context(), w.requests, w.org.ID, func(ctx context.Context, tx pgx.Tx) error {
			return authz.TakeQuota(ctx, tx, w.org.ID, q, 1, at)
		})
	}
	for _, q := range []authz.Quota{authz.UploadsPerDay, authz.QueuedTasks} {
		var taken atomic.Int64
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if take(q, halfPast) == nil {
					taken.Add(1)
				}
			})
		}
		wg.Wait()
		require.Equal(t, int64(5), taken.Load(), q)
		require.True(t, fault.Is(take(q, halfPast), fault.TooMany))
	}
	require.NoError(t, take(authz.UploadsPerDay, halfPast.Add(24*time.Hour)), "the next day")
	require.NoError(t, take(authz.StorageBytes, halfPast), "no quota")

	// Measuring waits for who takes, and finds what they left.
	quotas := authz.NewQuotas(w.owner, "one")
	count := func(_ context.Context, _ pgx.Tx, orgs []uuid.UUID) (map[uuid.UUID]int64, error) {
		return map[uuid.UUID]int64{w.org.ID: 3}, nil
	}
	require.NoError(t, quotas.Measure(t.Context(), authz.QueuedTasks, halfPast, count))
	require.Equal(t, int64(3), w.usage(t, authz.QueuedTasks, halfPast).Used)
	require.NoError(t, take(authz.QueuedTasks, halfPast))
	require.NoError(t, quotas.Measure(t.Context(), authz.QueuedTasks, halfPast, count))
	require.Equal(t, int64(4), w.usage(t, authz.QueuedTasks, halfPast).Used, "it is measured once a second")
	require.NoError(t, take(authz.QueuedTasks, halfPast))
	require.NoError(t, quotas.Review(t.Context(), halfPast))
	require.True(t, quotas.Holds(w.org.ID))
	require.Equal(t, []uuid.UUID{w.org.ID}, quotas.Held())
	require.NoError(t, quotas.Measure(t.Context(), authz.QueuedTasks, halfPast.Add(2*time.Second), count))
	require.NoError(t, quotas.Review(t.Context(), halfPast))
	require.False(t, quotas.Holds(w.org.ID))
}

// A request takes from its own org's quotas only, and sets none.
func TestAnOrgCannotTouchQuotas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other, err := authz.CreateOrg(t.Context(), w.owner, "other", "Other")
	require.NoError(t, err)
	for _, statement := range []string{
		`SELECT take_quota($1, 'uploads_per_day', 1, false, now())`,
	} {
		_, err := w.asOrg(t.Context(), w.org.ID, statement, other.ID)
		require.True(t, denied(err), "%s: %v", statement, err)
	}
	for _, statement := range []string{
		`INSERT INTO org_quotas (org_id, quota, most) VALUES ($1, 'uploads_per_day', 9)`,
		`UPDATE org_quotas SET most = 9 WHERE org_id = $1`,
		`DELETE FROM org_usage WHERE org_id = $1`,
	} {
		_, err := w.asOrg(t.Context(), w.org.ID, statement, w.org.ID)
		require.True(t, denied(err), "%s: %v", statement, err)
	}
}

func TestEnginesOfServersAreNoted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	working := map[uuid.UUID]int64{w.org.ID: 2, uuid.New(): 1}
	servers := w.quota(t, authz.EnginesAtOnce, 3, "one", "two")
	for i, s := range servers {
		s.CountEngines(func() map[uuid.UUID]int64 {
			if working == nil {
				return nil
			}
			return map[uuid.UUID]int64{w.org.ID: working[w.org.ID] + int64(i)}
		})
		require.NoError(t, s.Review(t.Context(), halfPast))
		require.Equal(t, 3, s.Engines(w.org.ID))
	}
	require.Equal(t, int64(3), w.usage(t, authz.EnginesAtOnce, halfPast).Used, "of the server that has most")
	require.Zero(t, w.usage(t, authz.EnginesAtOnce, halfPast.Add(time.Minute)).Used, "servers that say no more")
	working = nil
	for _, s := range servers {
		require.NoError(t, s.Review(t.Context(), halfPast))
	}
	require.Zero(t, w.usage(t, authz.EnginesAtOnce, halfPast).Used)
}

func TestQuotasAreAudited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.quota(t, authz.StorageBytes, 7)
	require.Equal(t, []string{"org.quotas"}, w.seen(t, w.org.ID, `SELECT action FROM audit_log WHERE action <> 'org.create'`))
	for _, bad := range []string{"storage=1", "storage_bytes", "storage_bytes=-1", "engines=0", "storage_bytes=x"} {
		_, err := authz.ParseQuota(bad)
		require.True(t, fault.Is(err, fault.Invalid), bad)
	}
	_, err := authz.ChangeQuotas(t.Context(), w.owner, "acme", nil, []authz.Quota{"storage"})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
}
